package e2e

import (
	"fmt"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/seed83679106/weir/_examples/playground/server"
)

// TestMeasure measures the processor time and memory of pages that play for the duration in
// MEASURE:
//
//	MEASURE=20s go test -C _examples/playground/e2e -run TestMeasure -v
//	MEASURE=10m go test -C _examples/playground/e2e -run TestMeasure/all -v
//
// On a busy machine the processor time is somewhat longer.
func TestMeasure(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("MEASURE"))
	if err != nil {
		t.Skip("MEASURE is not set: it says how long to measure, such as 20s")
	}
	patience += length
	base := serveStatic(t)
	for _, name := range append(tapes, "gate", "chat", "replicas", "outage", "all", "lab") {
		t.Run(name, func(t *testing.T) {
			begin := used()
			var p *page
			if name == "lab" {
				p = open(t, base+"/try.html#pattern=steady")
			} else {
				p = openWhole(t, base)
			}
			if name != "lab" && name != "all" {
				p.do(chromedp.ScrollIntoView(chromedp.CSS("#" + name + " .stage")))
			}
			load := since(begin)
			time.Sleep(5 * time.Second) // until the browser has compiled the code
			eval[any](p, fmt.Sprintf(`(() => {
				const again = () => {
					for (const [name, s] of Object.entries(playground.scenes ?? {})) if ([name, "all"].includes(%q) && !s.playing) (s.start ?? s.play).call(s);
				};
				again();
				setInterval(again, 500);
			})()`, name))
			from, until := used(), time.Now().Add(length)
			for time.Now().Before(until) {
				time.Sleep(min(time.Until(until), time.Minute))
				eval[any](p, "0")
			}
			play := since(from)
			eval[any](p, hide)
			time.Sleep(time.Second)
			from = used()
			time.Sleep(length / 2)
			hidden := since(from)
			eval[any](p, show)
			m := eval[[2]float64](p, `(globalThis.gc?.(), [performance.memory.usedJSHeapSize / 1e6, weir.memory() / 1e6])`)
			t.Logf("%.1f s of processor time to load, %.1f %% of a core to play and %.1f %% when hidden, a heap of %.1f MB and %.1f MB of the library",
				load.Seconds(), 100*play.Seconds()/length.Seconds(), 200*hidden.Seconds()/length.Seconds(), m[0], m[1])
		})
	}
}

// used returns the processor time that each process of the browser has used, by pid. It
// works on Linux only.
func used() map[int]time.Duration {
	root := chromedp.FromContext(browser).Browser.Process().Pid
	parents, all := map[int]int{}, map[int]time.Duration{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		parents[pid], _ = strconv.Atoi(fields[1])
		for _, ticks := range fields[11:13] {
			n, _ := strconv.Atoi(ticks)
			all[pid] += time.Duration(n) * 10 * time.Millisecond
		}
	}
	for pid := range all {
		up := pid
		for up != root && up != 0 {
			up = parents[up]
		}
		if up == 0 {
			delete(all, pid)
		}
	}
	return all
}

// since returns the processor time that the browser has used since an earlier call of used.
// The argument before is what that call returned.
func since(before map[int]time.Duration) (sum time.Duration) {
	for pid, d := range used() {
		sum += d - before[pid]
	}
	return sum
}

// precompressed serves a directory that server.Precompress has changed, as web servers do that send
// its smaller copies.
func precompressed(dir string) http.Handler {
	files := http.FileServer(http.Dir(dir))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path
		if strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		for _, encoding := range []struct{ name, ext string }{{"br", ".br"}, {"gzip", ".gz"}} {
			if _, err := os.Stat(filepath.Join(dir, name+encoding.ext)); err == nil && r.Header.Get("Unacceptable") != encoding.name {
				w.Header().Set("Content-Type", mime.TypeByExtension(filepath.Ext(name)))
				w.Header().Set("Content-Encoding", encoding.name)
				r.URL.Path = name + encoding.ext
				break
			}
		}
		files.ServeHTTP(w, r)
	})
}

// TestUsable measures how long a phone waits: a screen of 390 by 844, a line of 1.6 Mbit/s with 150 ms
// there and back, and a quarter of this processor. It needs MEASURE, because it compresses for minutes.
//
//	MEASURE=1s go test -C _examples/playground/e2e -run TestUsable -v
func TestUsable(t *testing.T) {
	if os.Getenv("MEASURE") == "" {
		t.Skip("MEASURE is not set")
	}
	dir := t.TempDir()
	files, err := compile()
	if err == nil {
		err = server.WriteStatic(dir, "", files)
	}
	if err == nil {
		err = server.Precompress(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(precompressed(dir))
	t.Cleanup(srv.Close)
	patience += time.Minute
	p := open(t, "")
	if _, err := chromedp.Call(p.ctx, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: 4}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		chromedp.Call(p.ctx, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: 1})
	})
	line := network.Conditions{Latency: 150, DownloadThroughput: 1.6e6 / 8, UploadThroughput: 0.75e6 / 8}
	if _, err := chromedp.Call(p.ctx, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{&line}}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.EmulateViewport(390, 844))
	for range 3 {
		p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(srv.URL+"/?"+strconv.FormatInt(time.Now().UnixNano(), 10)))
		p.wait("globalThis.playground?.ready")
		got := eval[map[string]float64](p, `(() => {
			const of = (name) => performance.getEntriesByType("resource").find((e) => e.name.endsWith(name));
			return { first: playground.first, weir: of("weir.bin").responseEnd, begun: of("weir.bin").requestStart, usable: playground.usable, ready: playground.ready,
				bytes: performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation")).reduce((n, e) => n + e.transferSize, 0) };
		})()`)
		t.Logf("ms: the first picture moves at %.0f, weir.bin begins at %.0f and is there at %.0f, the reader can send requests at %.0f, all scenes are there at %.0f; %.0f kB",
			got["first"], got["begun"], got["weir"], got["usable"], got["ready"], got["bytes"]/1e3)
	}
}
