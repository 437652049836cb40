package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

// hostile are what clients could send to break the page: markup, a script, an attribute, text that
// runs to the left, control characters, and long words.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' autofocus onfocus=alert(1) x='`, "\u202egnp.exe", "a\x00\x1b[2Jb", `{{.}}</template>`,
	"javascript:alert(1)", strings.Repeat("W", 128), "\U0001F600́́́́",
}

// A site is a server whose page of operators is at /admin/.
type site struct {
	url   string
	limit http.Handler
	loads atomic.Int64 // of the page
	away  atomic.Bool  // the server answers with a page of its own, such as that of a login
}

// newSite returns a site that has refused hostile requests, one client above all, and many
// clients of a rule whose limit is too low.
func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOf(t, slices.Concat([]string{"alice", "bob", "a-customer-with-a-rather-long-name@example.com"}, hostile))
}

// newSiteOf returns a site that has refused requests of these users, and many of one more.
func newSiteOf(t *testing.T, users []string) *site {
	t.Helper()
	store, live := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
	recorder := watch.NewRecorder(1000, 10_000)
	api := weir.Rule{
		Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute).WithBurst(20), algorithms.AnchoredWindow(2000, time.Hour)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1000, time.Minute), Duration: time.Minute},
		ForKey:  live.Of("api", nil), Policy: weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied()),
	}
	address := weir.Rule{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Minute)}, Enforce: weir.Percent(0)}
	limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{api, address}, Logger: slog.New(slog.DiscardHandler), Observe: recorder.Observe})
	if err != nil {
		t.Fatal(err)
	}
	h, err := admin.New(store, admin.Options{
		Limiters: func() []*weir.Limiter { return []*weir.Limiter{limiter} }, Overrides: live, Recorder: recorder, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{limit: limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
	for i, user := range users {
		s.ask(user, fmt.Sprintf("2001:db8:%x::1", i), 25)
	}
	s.ask("mallory", "203.0.113.9", 400)
	mux := http.NewServeMux()
	mux.HandleFunc("/favicon.ico", func(http.ResponseWriter, *http.Request) { t.Error("the page has no icon of its own") })
	mux.Handle("/admin/", http.StripPrefix("/admin", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" || r.Method != http.MethodGet {
			h.ServeHTTP(w, r)
			return
		}
		s.loads.Add(1)
		if s.away.Load() {
			fmt.Fprint(w, "<!DOCTYPE html><title>Login</title>")
			return
		}
		page := httptest.NewRecorder() // a status other than 200 would be a line on the console
		h.ServeHTTP(page, r)
		maps.Copy(w.Header(), page.Header())
		w.Write(page.Body.Bytes())
	})))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL + "/admin/"
	return s
}

// ask sends n requests of a user, and returns the status of the last answer.
func (s *site) ask(user, addr string, n int) (status int) {
	for range n {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.Path = "/search/" + user
		r.Header.Set("X-User", user)
		r.Header.Set("User-Agent", user)
		r.RemoteAddr = addr
		if strings.Contains(addr, "::") {
			r.RemoteAddr = "[" + addr + "]"
		}
		r.RemoteAddr += ":4711"
		w := httptest.NewRecorder()
		s.limit.ServeHTTP(w, r)
		status = w.Code
	}
	return status
}

// views are the pages of operators, with all their parts.
var views = []struct{ name, query string }{
	{"now", ""},
	{"refusals", "?tab=refusals"},
	{"keys", "?tab=keys"},
	{"key", "?key=mallory&from=203.0.113.9"},
	{"hostile", "?rule=api&key=%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"},
	{"ban", "?do=ban&rule=api&key=mallory"},
	{"raise", "?do=override&rule=api&key=mallory"},
	{"changes", "?tab=changes"},
	{"rules", "?tab=rules&rule=api&quota=10&period=60"},
	{"mistake", "?rule=unknown&key=mallory"},
}

// TestPanelPicture writes the picture of the page of operators for README.md:
//
//	PANEL=$PWD/docs/figures/panel.png go test -C _examples/playground/e2e -run TestPanelPicture
func TestPanelPicture(t *testing.T) {
	t.Parallel()
	file := os.Getenv("PANEL")
	if file == "" {
		t.Skip("PANEL is not set: it names the file to write")
	}
	s := newSiteOf(t, []string{"alice", "bob", "acme-key", "carol"})
	p := open(t, "")
	p.do(chromedp.EmulateViewport(960, 800), chromedp.Navigate(s.url))
	shot, err := chromedp.Run(p.ctx, chromedp.Screenshot(chromedp.CSS("body")))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	var top bytes.Buffer
	if err := png.Encode(&top, whole.(interface {
		SubImage(image.Rectangle) image.Image
	}).SubImage(image.Rect(0, 0, 960, 590))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, top.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fill makes changes, so that lists of the page have rows.
func (s *site) fill(t *testing.T) {
	t.Helper()
	for path, body := range map[string]string{
		"ban?rule=api&key=trudy":            `{"seconds": 3600}`,
		"ban?rule=api&network=192.0.2.0/24": `{"seconds": 3600, "note": "<b>scrapers</b>"}`,
		"override?rule=api&key=customer":    `{"limits": [{"name": "1m", "quota": 500}], "seconds": 86400, "note": "ticket 7"}`,
		"reset?rule=api&key=alice":          ``,
	} {
		resp, err := http.Post(s.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// TestPanel opens every view of the page of operators at the widths of a telephone, a tablet and a
// desktop, light and dark. Nothing may be wider than the window, nothing that clients sent may be
// run, and axe-core must find no violation. The test fails if the page writes to the console, for
// example because its policy forbids something.
func TestPanel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fill(t)
	p := open(t, "")
	script := panelAxe(t)
	for _, view := range views {
		p.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(s.url+view.query))
		if script != "" {
			eval[any](p, script+"; void 0")
		}
		if got := eval[int](p, `document.querySelectorAll("img, main script, [onerror], [onfocus], [style]").length`); got != 0 {
			t.Errorf("%s: the page has %d elements that a client has sent", view.name, got)
		}
		for _, width := range []int64{360, 768, 1280} {
			p.do(chromedp.EmulateViewport(width, 900))
			for _, scheme := range []string{"light", "dark"} {
				p.prefer("prefers-color-scheme", scheme)
				if over := eval[int64](p, "document.documentElement.scrollWidth"); over > width {
					t.Errorf("%s, %d px: the page is %d px wide: %v", view.name, width, over, eval[[]string](p, fmt.Sprintf(
						`[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > %d && e.checkVisibility()).slice(0, 5).map((e) => e.outerHTML.slice(0, 120))`, width)))
				}
				small := eval[[]string](p, `[...document.querySelectorAll("button, select, input, nav a, .acts a")].filter((e) => e.checkVisibility())
					.filter((e) => e.getBoundingClientRect().height < 24 || e.getBoundingClientRect().width < 24).map((e) => e.outerHTML)`)
				if len(small) > 0 {
					t.Errorf("%s, %d px: below 24 px: %s", view.name, width, strings.Join(small, "\n"))
				}
				p.picture(fmt.Sprintf("panel-%s-%d-%s", view.name, width, scheme))
				if script == "" || width == 768 {
					continue
				}
				for _, v := range violations(p) {
					t.Errorf("%s, %d px, %s: %s", view.name, width, scheme, v)
				}
			}
		}
		// A field of a form is no bright box on a dark page.
		p.prefer("prefers-color-scheme", "dark")
		if bright := eval[[]string](p, `[...document.querySelectorAll("input, select, button")].filter((e) => e.checkVisibility())
			.filter((e) => getComputedStyle(e).backgroundColor.match(/\d+/g).slice(0, 3).some((c) => c > 90)).map((e) => e.outerHTML)`); len(bright) > 0 {
			t.Errorf("%s: bright in the dark: %s", view.name, strings.Join(bright, "\n"))
		}
		p.prefer()
		// No word of a heading of a table is broken.
		p.do(chromedp.EmulateViewport(360, 900))
		if broken := eval[[]string](p, `[...document.querySelectorAll("h1, h2, h3, dt, th, nav a, button")].filter((e) => e.checkVisibility() && !e.querySelector("bdi") && e.getClientRects().length)
			.filter((e) => ["anywhere", "break-word"].includes(getComputedStyle(e).overflowWrap) || getComputedStyle(e).wordBreak !== "normal").map((e) => e.outerHTML.slice(0, 100))`); len(broken) > 0 {
			t.Errorf("%s: words may be broken: %s", view.name, strings.Join(broken, "\n"))
		}
	}
}

// violations returns what axe-core finds in the page.
func violations(p *page) []string {
	return eval[[]string](p, `(async () => {
		await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
		const { violations, passes } = await axe.run({ resultTypes: ["violations"] });
		if (passes.length < 15) return ["only " + passes.length + " rules pass"];
		return violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + v.help + ": " + n.html.slice(0, 200) + " " + (n.any[0]?.message ?? "")));
	})()`)
}

// panelAxe returns the script of axe-core, or "" if npm cannot fetch it. With CI set, that is an
// error.
func panelAxe(t *testing.T) string {
	t.Helper()
	script, err := axe()
	var failed *exec.ExitError
	if (errors.Is(err, exec.ErrNotFound) || errors.As(err, &failed)) && os.Getenv("CI") == "" {
		t.Logf("without axe-core: %v", err)
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// scripts enables or disables the scripts of the page.
func (p *page) scripts(enabled bool) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !enabled}); err != nil {
		p.Fatal(err)
	}
}

// TestPanelWithoutScripts bans a key, and undoes that, in a browser that runs no scripts.
func TestPanelWithoutScripts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := open(t, "")
	p.scripts(false)
	defer p.scripts(true)
	text := func() string {
		p.Helper()
		text, err := chromedp.Run(p.ctx, chromedp.Text(chromedp.CSS("main")))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := func(want string) {
		p.Helper()
		if got := text(); !strings.Contains(got, want) {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	follow := func(selector string) { // and waits for the next page
		p.Helper()
		if _, err := chromedp.RunResponse(p.ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
			t.Fatal(err)
		}
	}
	p.do(chromedp.Navigate(s.url))
	want("One key causes ")
	follow(`#offenders .acts a.danger`)
	want("Every request of this key is refused under this rule")
	follow(`.confirm button.danger`)
	want("Done. Rule api, key mallory: banned it for 1h.")
	if got := s.ask("mallory", "203.0.113.9", 1); got != 429 {
		t.Errorf("banned: got %d", got)
	}
	follow(`#done button`)
	want("undid: banned it for 1h")
	follow(`nav a[href="./?tab=keys"]`)
	want("is an override\n\nNone.\n\nOverrides limits of single keys\n\nNone.")
}

// TestPanelKeyboard: the first tab stop skips to the content, each stop is visible, the stops follow
// the page from top to bottom, and a form can be sent by keys alone.
func TestPanelKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := open(t, "")
	stop := func() string { // presses Tab, and says where the focus is
		p.Helper()
		p.do(chromedp.KeyEvent("\t"))
		return eval[string](p, `(() => {
			const e = document.activeElement, box = e.getBoundingClientRect();
			if (getComputedStyle(e).outlineStyle === "none") return "no outline: " + e.outerHTML;
			if (box.width < 1 || box.right < 0) return "invisible: " + e.outerHTML;
			const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select")];
			return all.indexOf(e) + " of " + all.length;
		})()`)
	}
	p.do(chromedp.Navigate(s.url))
	n := eval[int](p, `document.querySelectorAll("a[href], button, input:not([type=hidden]), select").length`)
	for i := range n {
		if got, want := stop(), fmt.Sprintf("%d of %d", i, n); got != want {
			t.Fatalf("stop %d: got %s, want %s", i, got, want)
		}
	}
	p.do(chromedp.Navigate(s.url+"?do=ban&rule=api&key=mallory"), chromedp.KeyEvent("\t"), chromedp.KeyEvent(kb.Enter))
	p.wait(`document.activeElement.id === "main"`)
	p.do(chromedp.KeyEvent("\t"), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent("\t"))
	if _, err := chromedp.RunResponse(p.ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	p.wait(`document.querySelector("#done")?.textContent.includes("banned it for 24h")`)
}

// TestPanelRefresh: the numbers change without a click, except where the operator has the focus, and
// while the page is hidden nothing is loaded. If the page can no longer be loaded, it says so.
func TestPanelRefresh(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := open(t, "")
	p.do(chromedp.Navigate(s.url))
	allowed := `document.querySelector("#rules [data-label=allowed]").textContent`
	first, firstOffender := eval[string](p, allowed), eval[string](p, `document.querySelector("#offenders [data-label='in 5 min']").textContent`)
	p.do(chromedp.Focus(chromedp.CSS("#offenders a")))
	s.ask("carol", "198.51.100.1", 5)
	s.ask("mallory", "203.0.113.9", 50)
	p.wait(allowed + " !== " + fmt.Sprintf("%q", first))
	if got := eval[string](p, `document.querySelector("#offenders [data-label='in 5 min']").textContent`); got != firstOffender {
		t.Errorf("a part with the focus in it has changed from %s to %s", firstOffender, got)
	}
	hide := func(hidden bool) {
		p.Helper()
		eval[any](p, fmt.Sprintf(`Object.defineProperty(document, "hidden", { configurable: true, get: () => %v }); document.dispatchEvent(new Event("visibilitychange")); undefined`, hidden))
	}
	hide(true)
	p.wait("!loading")
	loads := s.loads.Load()
	for range 3 {
		hide(true)
	}
	eval[any](p, `fetch("style.css").then((r) => r.text()).then(() => undefined)`)
	if got := s.loads.Load(); got != loads {
		t.Errorf("hidden: the page was loaded %d times", got-loads)
	}
	p.wait(`document.querySelector("#stale").hidden`)
	s.away.Store(true)
	hide(false)
	p.wait(`!document.querySelector("#stale").hidden && document.querySelector("#stale").textContent.startsWith("Only another page from this process since ")`)
	s.away.Store(false)
	hide(false)
	p.wait(`document.querySelector("#stale").hidden`)
	eval[any](p, `window.fetch = async () => new Response("", { status: 502 }); undefined`) // a real one would be a line on the console
	hide(false)
	p.wait(`document.querySelector("#stale").textContent.startsWith("Only the status 502 from this process since ")`)
	eval[any](p, `window.fetch = async () => { throw new TypeError("Failed to fetch"); }; undefined`)
	hide(false)
	p.wait(`document.querySelector("#stale").textContent.startsWith("No answer from this process since ")`)
}

// TestPanelBookmark: the page is refreshed, too, if its URL has the token, as in a bookmark.
func TestPanelBookmark(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := open(t, "")
	p.do(chromedp.Navigate(strings.Replace(s.url, "://", "://anna:0123456789abcdef@", 1)))
	first := eval[string](p, `document.querySelector("#status time").textContent`)
	p.wait(fmt.Sprintf(`!document.querySelector("#stale").hidden || document.querySelector("#status time").textContent !== %q`, first))
	if stale := eval[string](p, `document.querySelector("#stale").textContent`); stale != "" {
		t.Errorf("got %q of a process that answers", stale)
	}
}
