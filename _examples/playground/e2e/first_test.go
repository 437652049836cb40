package e2e

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/_examples/playground/server"
)

// TestBeforeLibrary opens the page while the library does not arrive. The first picture must move,
// by what the library has decided when the page was made. Once the library has arrived, it decides
// what follows, in the states that it would have without the recording.
func TestBeforeLibrary(t *testing.T) {
	t.Parallel()
	handler, err := static()
	if err != nil {
		t.Fatal(err)
	}
	arrive, once := make(chan struct{}), sync.Once{}
	let := func() { once.Do(func() { close(arrive) }) }
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/weir.bin" {
			<-arrive
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(let)
	p := open(t, "")
	p.do(chromedp.Navigate(srv.URL))
	p.wait(`document.querySelector("#gate .why") && document.readyState === "complete"`)
	const gate = `import("./story/first.js").then(async (m) => { const { gate } = await m.first; globalThis.gate = gate; return gate.playing; })`
	if !eval[bool](p, gate) {
		t.Error("the first picture does not play")
	}
	p.wait("gate.now > 31.7e6")
	if got := p.text("#loading"); !strings.Contains(got, "is being loaded") {
		t.Errorf("the page says %q", got)
	}
	p.do(chromedp.Click(chromedp.CSS("#gate svg.gate")))
	p.wait(`document.querySelector("#gate .why").textContent === "You can send requests as soon as the library has been loaded."`)
	eval[any](p, "gate.until(75e6)")
	let()
	p.wait("globalThis.playground?.ready")
	p.wait("gate.playing && gate.now > 75.2e6")
	eval[any](p, "{ gate.pause(); gate.until(Math.max(gate.now, 77.5e6)); gate.send(3); gate.pause(); }")
	for i, l := range []limit{{Algorithm: "fixed-window", Quota: 10, Period: 10_000_000, Burst: 10}, {Algorithm: "gcra", Quota: 10, Period: 10_000_000, Burst: 2}} {
		states := eval[string](p, `JSON.stringify(gate.lanes[`+string(rune('0'+i))+`].ledger.states[""])`)
		want := eval[string](p, `(async () => {
			const { Ledger } = await import("./story/world.js"), lane = gate.lanes[`+string(rune('0'+i))+`], ledger = new Ledger([lane.limit]), mine = gate.sent;
			const script = [...Array.from({ length: 7 }, (_, i) => 1.2 + i), ...Array.from({ length: 20 }, (_, i) => 9.05 + i * 0.1), ...Array.from({ length: 8 }, (_, i) => 11.05 + i)];
			for (let n = 0; n < gate.next; n++) ledger.take(Math.round((Math.floor(n / 35) * 20 + script[n % 35]) * 1e6));
			for (const t of mine) ledger.take(t);
			return JSON.stringify(ledger.states[""]);
		})()`)
		if states != want {
			t.Errorf("%s: the states are %s, want %s", l.Algorithm, states, want)
		}
	}
}

// TestWithoutLibrary opens both pages where the library cannot be loaded. Nothing that needs it may
// be offered, and each section must say that its numbers stay.
func TestWithoutLibrary(t *testing.T) {
	t.Parallel()
	if browser == nil {
		open(t, "") // skips
	}
	whole, err := static()
	if err != nil {
		t.Fatal(err)
	}
	tab, end := chromedp.NewContext(browser) // a tab of its own: the browser reports what it cannot load
	t.Cleanup(end)
	if err := chromedp.Do(tab); err != nil {
		t.Fatal(err)
	}
	fails := func() (map[string][]byte, error) {
		return nil, errors.New("go build: /home/gopher/main.go:1: no such package")
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { rdb.Close() })
	for _, test := range []struct {
		what    string
		handler http.Handler
		blocked string // the end of paths that the server does not have
		want    string
	}{
		{"a server that cannot compile", server.New(t.Context(), rdb, fails), "", "Its log has the reason."},
		{"no program", whole, ".bin", "Reload the page."},
		{"no wasm_exec.js", whole, "/wasm_exec.js", "Reload the page."},
		{"no script", whole, "/story/svg.js", "A script of the page did not arrive."},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.blocked != "" && strings.HasSuffix(r.URL.Path, test.blocked) {
				http.NotFound(w, r)
				return
			}
			test.handler.ServeHTTP(w, r)
		}))
		t.Cleanup(srv.Close)
		ctx, stop := context.WithTimeout(tab, patience)
		t.Cleanup(stop)
		p := &page{t, ctx}
		for _, path := range []string{"/", "/try.html"} {
			p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(srv.URL+path))
			p.wait(`document.body.matches(".lost") && document.readyState === "complete"`)
			got := eval[struct {
				Said    string
				Offered []string
				Unsaid  []string
			}](p, `({
				said: document.querySelector("header").innerText + document.querySelector("#problem").innerText,
				offered: [...document.querySelectorAll("button, input, select, textarea")].filter((e) => !e.disabled && e.checkVisibility({ visibilityProperty: true })).map((e) => e.outerHTML),
				unsaid: [...document.querySelectorAll("main > section")].filter((e) => e.checkVisibility() && !e.innerText.includes("nothing here can be changed")).map((e) => e.id),
			})`)
			if len(got.Offered) > 0 || len(got.Unsaid) > 0 {
				t.Errorf("%s: %s offers %q, and says nothing in %q", test.what, path, got.Offered, got.Unsaid)
			}
			if !strings.Contains(got.Said, "The library could not be loaded") || !strings.Contains(got.Said, test.want) {
				t.Errorf("%s: %s says %q, want %q", test.what, path, got.Said, test.want)
			}
			for _, bad := range []string{"/home/gopher", "every request that you see.", "as soon as"} {
				if strings.Contains(got.Said, bad) {
					t.Errorf("%s: %s says %q", test.what, path, bad)
				}
			}
		}
	}
}

// TestMore opens the story where the library of the last scenes arrives late, or never. The page loads
// it when the reader comes near to these scenes, and not before. Until then, they have their numbers
// and offer nothing, and the other scenes work.
func TestMore(t *testing.T) {
	t.Parallel()
	handler, err := static()
	if err != nil {
		t.Fatal(err)
	}
	if browser == nil {
		open(t, "") // skips
	}
	tab, end := chromedp.NewContext(browser) // a tab of its own: the browser reports what it cannot load
	t.Cleanup(end)
	if err := chromedp.Do(tab); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(tab, patience)
	t.Cleanup(stop)
	p := &page{t, ctx}
	const (
		offered = `["replicas", "outage", "which"].map((id) => document.querySelectorAll("#" + id + " :is(button, input, select, textarea):enabled").length)`
		said    = `[...document.querySelectorAll(".stays")].map((e) => e.textContent)`
		first   = `document.querySelectorAll("#edge button:enabled").length`
	)
	for _, missing := range []bool{false, true} {
		asked, arrive := make(chan struct{}, 10), make(chan struct{})
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/more.bin" {
				asked <- struct{}{}
				if <-arrive; missing {
					http.NotFound(w, r)
					return
				}
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(srv.Close)
		let := sync.OnceFunc(func() { close(arrive) })
		t.Cleanup(let)
		p.do(chromedp.Navigate(srv.URL + "/?still"))
		p.wait("globalThis.playground?.ready")
		if n := len(asked); n > 0 {
			t.Error("the page loads what the last scenes need, although the reader is not near to them")
		}
		eval[any](p, `document.getElementById("load").scrollIntoView()`)
		select {
		case <-asked:
		case <-ctx.Done():
			t.Fatal("the page loads nothing for the last scenes, although the reader is near to them")
		}
		if got := eval[[]int](p, offered); !slices.Equal(got, []int{0, 0, 0}) {
			t.Errorf("before the library is there, the last scenes offer %v controls, want none", got)
		}
		if got := eval[[]string](p, said); len(got) != 3 || !strings.Contains(got[0], "needs another part of the library") {
			t.Errorf("before the library is there, the last scenes say %q", got)
		}
		if got := eval[int](p, first); got == 0 {
			t.Error("the first scene offers nothing")
		}
		let()
		if missing {
			p.wait(`document.querySelectorAll(".stays").length === 3 && [...document.querySelectorAll(".stays")].every((e) => e.textContent.includes("nothing here can be changed"))`)
		} else {
			p.wait(`document.querySelectorAll(".stays").length === 0 && playground.which`)
		}
		got := eval[[]int](p, offered)
		if !missing && slices.Contains(got, 0) || missing && !slices.Equal(got, []int{0, 0, 0}) {
			t.Errorf("missing %v: at last, the last scenes offer %v controls", missing, got)
		}
	}
}

// TestLegible opens the page on a phone while the library does not arrive: each text, also in a
// picture, must be 11 px high or more while the recording plays.
func TestLegible(t *testing.T) {
	t.Parallel()
	handler, err := static()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/weir.bin" {
			<-r.Context().Done()
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	for _, width := range []int64{320, 390} {
		p := open(t, "")
		p.do(chromedp.EmulateViewport(width, 844), chromedp.Navigate(srv.URL))
		p.wait(`document.querySelector("#gate .why") && document.querySelectorAll("#gate svg.gate text").length > 3`)
		small := eval[[]string](p, `[...document.querySelectorAll("svg text, p, button, a, li, h1, h2, label, td, th, pre")].filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => {
			const m = e.getScreenCTM?.(), size = parseFloat(getComputedStyle(e).fontSize) * (m ? Math.hypot(m.a, m.b) : 1);
			return { size, what: size.toFixed(1) + " px: " + e.textContent.trim().slice(0, 30) };
		}).filter(({ size }) => size < 10.95).map(({ what }) => what)`)
		if len(small) > 0 {
			t.Errorf("at %d px, %d texts are too small: %q", width, len(small), small[:min(5, len(small))])
		}
	}
}
