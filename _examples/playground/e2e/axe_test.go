package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// axe returns the script of axe-core, which npm fetches and compares with the hash in
// testdata/axe/package-lock.json.
var axe = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(temporary, "axe")
	if err := os.CopyFS(dir, os.DirFS("testdata/axe")); err != nil {
		return "", err
	}
	if err := npm(dir); err != nil {
		return "", err
	}
	script, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	return string(script), err
})

// errNoNPM is the error of npm if there is no npm, or it cannot fetch the packages.
var errNoNPM = errors.New("npm ci")

// npm fetches the packages in the package-lock.json of a directory, and compares them with
// the hashes there.
func npm(dir string) error {
	retries := "1"
	if os.Getenv("CI") != "" { // TestPanel fails without the packages
		retries = "5"
	}
	cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries="+retries)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case strings.Contains(string(out), "EINTEGRITY"):
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return fmt.Errorf("%w: %w\n%s", errNoNPM, err, out)
}

// TestAxe checks every page by the accessibility rules of axe-core: light, dark, and as
// wide as a telephone. It is skipped if npm cannot fetch axe-core.
func TestAxe(t *testing.T) {
	t.Parallel()
	base := serveStatic(t)
	p := open(t, "")
	script, err := axe()
	if errors.Is(err, errNoNPM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ path, ready string }{
		{"/?still", "globalThis.playground?.ready"},
		{"/try.html#paused=yes&pattern=spammer", `document.querySelectorAll("#answer.passed, #answer.refused").length === 1`},
	} {
		p.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(base+test.path))
		p.wait(test.ready)
		eval[any](p, "playground.rest?.()") // the last scenes of the story, too
		eval[any](p, script+"; void 0")
		for _, how := range []struct {
			width  int64
			scheme string
		}{{1280, "light"}, {1280, "dark"}, {360, "light"}} {
			p.do(chromedp.EmulateViewport(how.width, 900))
			p.prefer("prefers-color-scheme", how.scheme)
			for _, v := range eval[[]string](p, `(async () => {
				await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
				const { violations, passes } = await axe.run({ resultTypes: ["violations"] });
				if (passes.length < 20) return ["only " + passes.length + " rules pass"];
				return violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + v.help + ": " + n.html.slice(0, 200) + " " + (n.any[0]?.message ?? "")));
			})()`) {
				t.Errorf("%s, %d px, %s: %s", test.path, how.width, how.scheme, v)
			}
		}
	}
}
