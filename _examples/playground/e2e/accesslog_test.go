package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestAccessLog pastes an access log and chooses files of logs. The page must say what the limit of
// the reader would have refused, as `weir try` does, and must send nothing to the server.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	// 30 requests of one address in 15 s, and 5 of another: of the first, a GCRA of 10 in 10 s
	// admits 10 at once and then one a second. The times are whole seconds.
	var log strings.Builder
	line := func(client, second int) {
		at := time.Date(2026, 11, 25, 10, 0, second, 0, time.FixedZone("", 3600)).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(&log, "192.0.2.%d - - [%s] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n", client, at)
	}
	for i := range 15 {
		line(1, i)
		line(1, i)
		if i%3 == 0 {
			line(2, i)
		}
	}
	log.WriteString("rubbish\n")
	// 2 come in each second and 1 unit comes back in each but the first: 10 + 14 pass.
	const want = "GCRA would have refused 6 of 35 requests (17.1 %) from 2026-11-25 10:00:00 +0100 to 2026-11-25 10:00:14 +0100. The first refusal is at 2026-11-25 10:00:09 +0100, the last at 2026-11-25 10:00:14 +0100."
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write([]byte(log.String()))
	z.Close()
	for where, base := range map[string]string{"static": serveStatic(t), "served": serve(t)} {
		t.Run(where, func(t *testing.T) {
			p := openWhole(t, base)
			said := func() string { return p.text("#log-form .said") }
			p.click("#which .replays summary")
			p.click("#log-form .replay")
			p.wait(`document.querySelector("#log-form .said").textContent === "There are no lines yet."`)
			p.wait("playground.which.log.ready") // the program that reads logs is loaded when the form opens
			eval[any](p, "performance.clearResourceTimings()")
			eval[any](p, fmt.Sprintf(`document.querySelector("#log-form textarea").value = %q`, log.String()))
			p.click("#log-form .replay")
			p.wait("playground.which.log.reply")
			if got := said(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got, want := p.text("#log-form tbody"), "192.0.2.16"; got != want { // the address and 6
				t.Errorf("the table has %q, want %q", got, want)
			}
			if got := p.text("#log-form .notes"); !strings.Contains(got, "1 line could not be read; the first is line 36: want a line such as") || !strings.Contains(got, "The times are whole seconds:") {
				t.Errorf("the notes are %q", got)
			}
			for name, data := range map[string][]byte{"access.log": []byte(log.String()), "access.log.gz": packed.Bytes()} {
				eval[any](p, "delete playground.which.log.reply")
				p.do(chromedp.SetUploadFiles(chromedp.CSS("#log-form [type=file]"), []string{write(name, data)}))
				p.wait("playground.which.log.reply")
				if got := said(); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			// The limit is the reader's.
			p.click("#which [data-preset=github]")
			eval[any](p, `{ delete playground.which.log.reply; document.querySelector("#log-form textarea").value = '192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5\n'.repeat(6000); }`)
			p.click("#log-form .replay")
			p.wait("playground.which.log.reply")
			if got, want := said(), "Fixed window would have refused 1000 of 6000 requests (16.7 %)"; !strings.HasPrefix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			eval[any](p, `{ delete playground.which.log.reply; document.querySelector("#log-form textarea").value += "rubbish\n".repeat(2000); }`)
			p.click("#log-form .replay")
			p.wait("playground.which.log.reply")
			if got, want := said(), "Fixed window would have refused 1000 of 6000 requests (16.7 %)"; !strings.HasPrefix(got, want) {
				t.Errorf("a log that can be read in part: got %q, want %q", got, want)
			}
			if got, want := p.text("#log-form .notes"), "25.0 % of the lines could not be read, so the report says little."; !strings.HasPrefix(got, want) {
				t.Errorf("a log that can be read in part: the notes are %q, want %q", got, want)
			}
			eval[any](p, `{ delete playground.which.log.reply; document.querySelector("#log-form textarea").value = "rubbish"; }`)
			p.click("#log-form .replay")
			p.wait("playground.which.log.reply")
			if got, want := said(), "Nothing was replayed: the log has no request that can be read."; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got := eval[int](p, "performance.getEntriesByType('resource').length"); got != 0 {
				t.Errorf("the page has sent %d requests meanwhile", got)
			}
		})
	}
}
