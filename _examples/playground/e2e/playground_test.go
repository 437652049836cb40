// Package e2e tests the playground, and the page of operators of package admin, as people use them:
// in a browser, over HTTP.
//
// It is a module of its own, because it requires a library that controls the browser. If
// chromium is missing, the tests are skipped. They fail instead if the environment variable
// CI is set.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed83679106/weir/_examples/playground/server"
	"github.com/seed83679106/weir/redisstore"
)

var (
	browser   context.Context // nil if chromium is missing
	temporary string          // a directory that all tests share
)

// compile compiles the library once for all tests.
var compile = sync.OnceValues(server.Compile)

// static writes the page to a directory and returns a handler that serves this directory.
var static = sync.OnceValues(func() (http.Handler, error) {
	dir := filepath.Join(temporary, "static")
	files, err := compile()
	if err == nil {
		err = server.WriteStatic(dir, "", files)
	}
	return http.FileServer(http.Dir(dir)), err
})

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Set("test.parallel", "5") // tests wait for the browser, each in a tab of its own
	logging.Disable()              // one of the tests takes Redis away
	dir, err := os.MkdirTemp("", "playground")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	temporary = dir
	if path, err := exec.LookPath("chromium"); err == nil {
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.WSURLReadTimeout(patience/5), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(dir, "profile")),
			chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true))
		allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
		defer cancel()
		var end context.CancelFunc
		browser, end = chromedp.NewContext(allocator)
		defer end()
		if err := chromedp.Do(browser); err != nil {
			fmt.Fprintln(os.Stderr, "chromium does not start:", err)
			return 1
		}
	}
	return m.Run()
}

// serve starts a playground and returns its URL. Scenes can use the Redis at redisAddr, if it
// is given.
func serve(t *testing.T, redisAddr ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	if _, err := compile(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(server.Timeout, append(redisAddr, "127.0.0.1:1")[0]))
	srv := httptest.NewServer(server.New(ctx, rdb, compile))
	t.Cleanup(func() {
		stop()
		srv.Close()
		rdb.Close()
	})
	return srv.URL
}

// A page is the tab of the browser that a test uses.
type page struct {
	*testing.T
	ctx context.Context
}

// A tab is used by one test after another, because opening a tab takes longer than most
// tests.
type tab struct {
	ctx   context.Context
	close context.CancelFunc
	mu    sync.Mutex
	lines []string // what the page wrote to the console during the test
	ended chan struct{}
}

// end is what a test writes to the console when it ends.
const end = "The test ends."

var tabs = make(chan *tab, 20) // tabs that no test is using

func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	tab := &tab{ctx: ctx, close: cancel, ended: make(chan struct{}, 1)}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	// With this setting, a tab in the background also gets keys and draws.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			switch {
			case err != nil:
				return
			case strings.Contains(m.String(), end):
				tab.ended <- struct{}{}
			default:
				tab.mu.Lock()
				tab.lines = append(tab.lines, fmt.Sprintf("%v (%s)", m, m.URL))
				tab.mu.Unlock()
			}
		}
	}()
	return tab
}

// patience is how long a test may use a tab, and one wait may take a fifth of it. Both are long, because
// a busy machine may draw one picture a second, and only a failure waits so long.
var patience = 10 * time.Minute

// open opens a tab. If url is not empty, it loads url and waits for the first frame. The
// test fails if the page writes to the console.
func open(t *testing.T, url string) *page {
	t.Helper()
	if browser == nil {
		const msg = "no chromium: apt-get install chromium"
		if os.Getenv("CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	var tab *tab
	select {
	case tab = <-tabs:
	default:
		tab = newTab(t)
	}
	ctx, stop := context.WithTimeout(tab.ctx, patience)
	p := &page{t, ctx}
	t.Cleanup(func() {
		defer stop()
		if t.Failed() {
			tab.close()
		} else {
			p.leave(tab)
		}
		tab.mu.Lock()
		defer tab.mu.Unlock()
		for _, line := range tab.lines {
			t.Error("console: " + line)
		}
		tab.lines = nil
	})
	p.do(chromedp.EmulateViewport(1280, 900))
	p.prefer()
	if url != "" {
		p.visit(url)
	}
	return p
}

// leave waits until all that the page wrote to the console has arrived, and then frees the
// tab for the next test.
func (p *page) leave(tab *tab) {
	p.Helper()
	p.do(chromedp.Navigate("about:blank"))
	p.touch(false)
	eval[any](p, fmt.Sprintf("console.log(%q)", end))
	select {
	case <-tab.ended:
		tabs <- tab
	case <-p.ctx.Done():
		p.Fatal(p.ctx.Err())
	}
}

func (p *page) touch(enabled bool) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetTouchEmulationEnabled, emulation.SetTouchEmulationEnabledParams{Enabled: enabled}); err != nil {
		p.Fatal(err)
	}
}

func (p *page) visit(url string) {
	p.Helper()
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url))
	p.wait("globalThis.playground?.frame")
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.Fatal(err)
	}
}

// wait waits until a JavaScript expression is true.
func (p *page) wait(expression string) {
	p.Helper()
	for {
		_, err := chromedp.Run(p.ctx, chromedp.Poll[any]("Boolean("+expression+")", chromedp.WithPollingTimeout(patience/5), chromedp.WithPollingInterval(20*time.Millisecond)))
		if err == nil {
			return
		}
		if strings.Contains(err.Error(), "Cannot find context") { // the page was still loading
			continue
		}
		state, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string]("JSON.stringify([document.querySelector('#problem')?.textContent, globalThis.playground?.scene?.settings, globalThis.playground?.frame])"))
		p.Fatalf("waiting for %s: %v\n%s", expression, err, state)
	}
}

func eval[T any](p *page, expression string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return v
}

func (p *page) click(selector string) {
	p.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// steps takes n steps of the scene's clock and waits for the last of them.
func (p *page) steps(n int) {
	p.Helper()
	period := eval[float64](p, "playground.scene.settings.period")
	until := eval[float64](p, "playground.frame.now") + float64(n)*period*1e5
	eval[any](p, fmt.Sprintf("(async () => { for (let i = 0; i < %d; i++) await playground.command('step'); })()", n))
	p.wait(fmt.Sprintf("playground.frame.now >= %.0f", until))
}

// show opens another scene in the page, as a link does.
func (p *page) show(link string) {
	p.Helper()
	eval[any](p, fmt.Sprintf("{ playground.frame.old = true; location.hash = %q }", link))
	p.wait("playground.frame && !playground.frame.old")
}

// A dot is a request as the page shows it. Times are in µs.
type dot struct {
	T         int64
	User      int
	OK        bool
	Remaining int64
	Retry     int64
	Reset     int64
	Wait      int64
	N         int
}

func (p *page) dots(algorithm string) []dot {
	p.Helper()
	return eval[[]dot](p, fmt.Sprintf("playground.dots(%q)", algorithm))
}

func passed(dots []dot) (n int) {
	for _, d := range dots {
		if d.OK {
			n++
		}
	}
	return n
}

// picture takes a picture of the whole page, if PICTURES names a directory for it.
func (p *page) picture(name string) {
	p.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		p.Fatal(err)
	}
}

// prefer sets CSS media features such as prefers-color-scheme, as pairs of names and
// values, and unsets all others.
func (p *page) prefer(pairs ...string) {
	p.Helper()
	features := []*emulation.MediaFeature{}
	for pair := range slices.Chunk(pairs, 2) {
		features = append(features, &emulation.MediaFeature{Name: pair[0], Value: pair[1]})
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.Fatal(err)
	}
}

// TestSizes opens the page at the widths of a telephone, a tablet and a desktop, light and
// dark. Nothing may be cut off at the side, and controls must be at least 24 px wide and
// high (WCAG 2.2, 2.5.8).
func TestSizes(t *testing.T) {
	t.Parallel()
	base := serve(t)
	p := open(t, "")
	for _, width := range []int64{360, 768, 1280} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.visit(base + "/try.html#pattern=bursts&paused=yes&speed=1")
		for _, scheme := range []string{"light", "dark"} {
			p.prefer("prefers-color-scheme", scheme)
			p.wait(`playground.line("gcra").fresh`)
			if over := eval[int64](p, "document.documentElement.scrollWidth"); over > width {
				t.Errorf("%d, %s: the page is %d px wide", width, scheme, over)
			}
			small := eval[[]string](p, `[...document.querySelectorAll("button, select, input[type=number], .choices label, summary")]
				.filter((e) => e.checkVisibility()).filter((e) => e.getBoundingClientRect().height < 24 || e.getBoundingClientRect().width < 24).map((e) => e.outerHTML)`)
			if len(small) > 0 {
				t.Errorf("%d, %s: below 24 px: %s", width, scheme, strings.Join(small, "\n"))
			}
			p.picture(fmt.Sprintf("bursts-%d-%s", width, scheme))
		}
	}
}
