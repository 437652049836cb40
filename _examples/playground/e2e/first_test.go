package e2e

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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
		blocked string // a path that the server does not have
		want    string
	}{
		{"a server that cannot compile", server.New(t.Context(), rdb, fails), "", "Its log has the reason."},
		{"no weir.bin", whole, "/weir.bin", "Reload the page."},
		{"no wasm_exec.js", whole, "/wasm_exec.js", "Reload the page."},
		{"no script", whole, "/story/svg.js", "A script of the page did not arrive."},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == test.blocked {
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
