package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
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
