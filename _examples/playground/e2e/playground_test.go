// Package e2e tests the playground as a visitor uses it: in a browser, over HTTP.
//
// It is a module of its own, because it requires a library that controls the browser. If
// chromium is missing the tests are skipped; if the environment variable CI is set, they fail.
package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
	browser   context.Context // nil if there is none
	temporary string          // directory of all tests
)

// compile compiles the library once for all tests.
var compile = sync.OnceValues(server.Compile)

// static writes the page to a directory and serves that, as any web server does.
var static = sync.OnceValues(func() (http.Handler, error) {
	dir := filepath.Join(temporary, "static")
	files, err := compile()
	if err == nil {
		err = server.WriteStatic(dir, files)
	}
	return http.FileServer(http.Dir(dir)), err
})

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	logging.Disable() // one of the tests takes Redis away
	dir, err := os.MkdirTemp("", "playground")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	temporary = dir
	if path, err := exec.LookPath("chromium"); err == nil {
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(dir, "profile")),
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

// A page is one tab of the browser.
type page struct {
	*testing.T
	ctx context.Context
}

// open opens a tab, at a URL if there is one, and waits for the first frame. The test fails if the
// page writes to the console.
func open(t *testing.T, url string) *page {
	t.Helper()
	if browser == nil {
		const msg = "no chromium: apt-get install chromium"
		if os.Getenv("CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	tab, cancel := chromedp.NewContext(browser)
	ctx, stop := context.WithTimeout(tab, time.Minute)
	p := &page{t, ctx}
	p.do(chromedp.EmulateViewport(1280, 900))
	messages, listened := chromedp.Console(ctx), make(chan struct{})
	go func() {
		defer close(listened)
		for m, err := range messages {
			if err != nil {
				return
			}
			t.Errorf("console: %v (%s)", m, m.URL)
		}
	}()
	t.Cleanup(func() {
		stop()
		cancel()
		<-listened
	})
	if url != "" {
		p.visit(url)
	}
	return p
}

func (p *page) visit(url string) {
	p.Helper()
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url))
	p.wait("playground.frame")
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
	if _, err := chromedp.Run(p.ctx, chromedp.Poll[any]("Boolean("+expression+")", chromedp.WithPollingTimeout(20*time.Second), chromedp.WithPollingInterval(20*time.Millisecond))); err != nil {
		state, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string]("JSON.stringify([document.querySelector('#problem').textContent, playground.scene?.settings, playground.frame])"))
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
	eval[any](p, fmt.Sprintf("(async () => { for (let i = 0; i < %d; i++) { await playground.command('step'); await new Promise((r) => setTimeout(r, 10)); } })()", n))
	p.wait(fmt.Sprintf("playground.frame.now >= %.0f", until))
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

func (p *page) prefer(name, value string) {
	p.Helper()
	features := []*emulation.MediaFeature{{Name: name, Value: value}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.Fatal(err)
	}
}

// TestSizes opens the page at the widths of a telephone, a tablet and a desktop, light and
// dark. Nothing is cut off at the side, and controls are large enough to be hit (WCAG 2.2,
// 2.5.8).
func TestSizes(t *testing.T) {
	base := serve(t)
	for _, width := range []int64{360, 768, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprint(width, scheme), func(t *testing.T) {
				p := open(t, "")
				p.do(chromedp.EmulateViewport(width, 800))
				p.prefer("prefers-color-scheme", scheme)
				p.visit(base + "/try.html#pattern=bursts&paused=yes&speed=1")
				p.steps(17)
				p.do(chromedp.Sleep(700 * time.Millisecond))
				if over := eval[int64](p, "document.documentElement.scrollWidth"); over > width {
					t.Errorf("the page is %d px wide, its window %d", over, width)
				}
				small := eval[[]string](p, `[...document.querySelectorAll("button, select, input[type=number], .choices label, summary")]
					.filter((e) => e.checkVisibility()).filter((e) => e.getBoundingClientRect().height < 24 || e.getBoundingClientRect().width < 24).map((e) => e.outerHTML)`)
				if len(small) > 0 {
					t.Errorf("below 24 px: %s", strings.Join(small, "\n"))
				}
				p.picture(fmt.Sprintf("bursts-%d-%s", width, scheme))
			})
		}
	}
}
