package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// ten has one limit of each algorithm, as the page makes them when it is set to 10 requests
// per 10 seconds. The calendar always counts by the day.
var ten = []weir.Limit{
	algorithms.FixedWindow(10, 10*time.Second),
	algorithms.AnchoredWindow(10, 10*time.Second),
	algorithms.SlidingWindow(10, 10*time.Second),
	algorithms.SlidingLog(10, 10*time.Second),
	algorithms.TokenBucket(10, 10, 10*time.Second),
	algorithms.LeakyBucket(10, 10, 10*time.Second),
	algorithms.GCRA(10, 10*time.Second),
	algorithms.Calendar(10, algorithms.Day, nil),
}

// all has the names of the algorithms in ten, separated as in a link.
var all = func() string {
	var names []string
	for _, l := range ten {
		names = append(names, l.Algorithm.Name())
	}
	return strings.Join(names, ",")
}()

// TestReplay takes all requests that the page shows, and decides them again without the
// playground. The decisions must be the same.
func TestReplay(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#paused=yes")
	for _, pattern := range []string{"steady", "bursts", "boundary", "spammer"} {
		p.show("paused=yes&algorithms=" + all + "&pattern=" + pattern)
		p.steps(1) // after more steps the page would drop the oldest requests
		for _, l := range ten {
			dots := p.dots(l.Algorithm.Name())
			if len(dots) < 20 {
				t.Errorf("%s, %v: %d dots, want more", pattern, l, len(dots))
			}
			replay(t, l, dots)
		}
	}
}

func replay(t *testing.T, l weir.Limit, dots []dot) {
	t.Helper()
	states := map[int]quota.State{}
	for _, got := range dots {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: l, Cost: 1}}}
		if l.Algorithm.Name() == "leaky-bucket" { // a queue
			tx.Within = l.Period
		}
		state := []quota.State{states[got.User]}
		tx.Decide(got.T, state)
		states[got.User] = state[0]
		d := tx.Decisions[0]
		want := dot{got.T, got.User, d.Allowed, d.Remaining, d.RetryAfter.Microseconds(), d.ResetAfter.Microseconds(), tx.Wait.Microseconds(), got.N}
		if got != want {
			t.Fatalf("%v: the page shows %+v, want %+v", l, got, want)
		}
	}
}

// TestBoundary sends the quota just before the edge of a window and again just after it.
// The fixed window must admit twice the quota, and the sliding log only the quota.
func TestBoundary(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#paused=yes&pattern=boundary&algorithms=fixed-window,sliding-log")
	for algorithm, want := range map[string]int{"fixed-window": 20, "sliding-log": 10} {
		if dots := p.dots(algorithm); len(dots) != 20 || passed(dots) != want {
			t.Errorf("%s: %d of %d passed, want %d of 20", algorithm, passed(dots), len(dots), want)
		}
		peak := fmt.Sprintf("peak: %d in 10 s", want)
		p.wait(fmt.Sprintf(`document.querySelector("[data-algorithm=%s] .peak").textContent === %q`, algorithm, peak))
	}
	p.wait(`document.querySelector("#disagree").textContent.startsWith("They decide 10 of the latest 20 ")`)
	p.picture("boundary-1280-light")
}

// TestHit presses and holds the button Hit, with a mouse and with a key. Requests must be
// sent only while the button is held.
func TestHit(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#pattern=none&rate=0.1&algorithms=gcra&period=6000")
	p.click("#hit")
	p.wait(`playground.dots("gcra").length === 1`)
	p.wait(`document.querySelector("#live").textContent === "Passed by all."`)

	p.do(chromedp.Focus(chromedp.CSS("#hit")), chromedp.KeyEvent(" "))
	p.wait(`playground.dots("gcra").length === 2`)

	eval[any](p, `{ const e = document.querySelector("#rate"); e.value = Math.log10(20); e.dispatchEvent(new Event("change", { bubbles: true })); }`)
	p.wait("playground.scene.settings.rate === 20")
	eval[any](p, `document.querySelector("#hit").dispatchEvent(new PointerEvent("pointerdown", {button: 0, bubbles: true}))`)
	p.wait(`playground.dots("gcra").length > 12`)
	eval[any](p, `dispatchEvent(new PointerEvent("pointerup"))`)
	p.wait(`!document.querySelector("#hit.held")`)
	later := func() int { // the requests after 0.6 s of the scene: 12 more, if the button were held
		p.wait(fmt.Sprintf("playground.frame.now > %d", eval[int64](p, "playground.frame.now")+600_000))
		return len(p.dots("gcra"))
	}
	if n, after := later(), later(); after != n {
		t.Errorf("%d requests after the button was released, %d later", n, after)
	}
	if n := passed(p.dots("gcra")); n != 10 { // the eleventh fits after 600 s
		t.Errorf("%d requests passed, want 10", n)
	}
	p.wait(`document.querySelector("#live").textContent === "Refused by all."`)

	// The page shows the response of a Limiter in each dialect, where the reader sees it.
	eval[any](p, `document.querySelector("#answer").scrollIntoView()`)
	p.wait(`/^HTTP.1.1 429 [^]*Retry-After: [1-6]?\d?\d\n[^]*X-Ratelimit-Remaining: 0\n[^]*"violated-policies":\["api"\]/.test(document.querySelector("#answer").textContent)`)
	for dialect, want := range map[string]string{
		"ietf": `Ratelimit-Policy: "api";q=10;w=6000`, "github": "X-Ratelimit-Resource: api", "openai": "X-Ratelimit-Limit-Requests: 10",
		"anthropic": "Anthropic-Ratelimit-Requests-Limit: 10", "twitter": "X-Rate-Limit-Limit: 10", "draft-07": "limit=10, remaining=0", "draft-06": "Ratelimit-Limit: 10",
	} {
		p.do(chromedp.SetValue(chromedp.CSS("#dialect"), dialect))
		eval[any](p, `document.querySelector("#dialect").dispatchEvent(new Event("change", {bubbles: true}))`)
		p.wait(fmt.Sprintf(`document.querySelector("#answer").textContent.includes(%q)`, want))
	}
}

// TestControls changes algorithms, limit, pattern and clock while the scene runs, and
// checks what the page shows after each change.
func TestControls(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#pattern=steady&rate=5&speed=5")
	p.wait(`document.querySelectorAll(".row").length === 7`)
	p.click("#two")
	p.wait(`document.querySelectorAll(".row").length === 2`)
	p.click(`#algorithms input[value="gcra"]`)
	p.wait(`document.querySelectorAll(".row").length === 3 && playground.dots("gcra").length > 0`)
	p.click("#all")
	p.wait(`document.querySelectorAll(".row").length === 7`)

	set := func(id, value string) {
		eval[any](p, fmt.Sprintf(`{ const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event("change", {bubbles: true})); }`, id, value))
	}
	set("quota", "4")
	p.wait(`playground.scene.rows[0].capacity === 4`)
	set("burst", "2")
	p.wait(`document.querySelector("#go").textContent.includes('\tlimit := weir.Middleware(store, "api", weir.ByIP(), algorithms.FixedWindow(4, 10*time.Second))\n')`)
	set("focus", "gcra")
	p.wait(`document.querySelector("#go").textContent.includes('algorithms.GCRA(4, 10*time.Second).WithBurst(2))\n')`)
	p.wait(`document.querySelector("#yaml").textContent === "limits:\n  - name: api\n    algorithm: gcra\n    burst: 2\n    config: [{limit: 4, period: 10}]\n"`)
	set("focus", "token-bucket")
	p.wait(`document.querySelector("#go").textContent.includes("algorithms.TokenBucket(2, 4, 10*time.Second)")`)
	set("quota", "0")
	p.wait(`document.querySelector("#note").textContent === "Quota: at least 1." && playground.scene.rows[0].capacity === 1`)
	set("quota", "4")

	p.click(`#patterns input[value="spammer"]`)
	p.wait(`document.querySelectorAll(".row .lane").length === 21`)
	p.wait(`playground.dots("gcra").some((d) => d.user === 2 && !d.ok)`)
	if dots := p.dots("gcra"); slices.ContainsFunc(dots, func(d dot) bool { return d.User == 1 && !d.OK }) {
		t.Error("anna was refused for what the spammer does")
	}

	p.click("#pause")
	p.wait("playground.scene.settings.paused")
	now := eval[int64](p, "playground.frame.now")
	p.click("#step") // from where it was paused
	p.wait(fmt.Sprintf("playground.frame.now === %d", now+1_000_000))
	p.click("#tableBox summary")
	p.wait(`document.querySelectorAll("#table tbody tr").length === 12 && document.querySelectorAll("#table th").length === 9`)
	p.picture("spammer-1280-light")

	p.click("#restart")
	p.wait(`playground.frame.now === playground.scene.start && playground.dots("gcra").length === 0 && playground.frame.decided === 0`)
}

// TestLink opens the link of a scene again. The decisions must be the same.
func TestLink(t *testing.T) {
	t.Parallel()
	base := serve(t)
	p := open(t, base+"/try.html#paused=yes")
	p.click(`#patterns input[value="boundary"]`)
	p.wait(`location.hash.includes("pattern=boundary")`)
	p.click(`#algorithms input[value="fixed-window"]`)
	eval[any](p, `{ const e = document.getElementById("quota"); e.value = 7; e.dispatchEvent(new Event("change", {bubbles: true})); }`)
	p.wait(`location.hash.includes("quota=7") && !location.hash.includes("fixed")`)
	link := eval[string](p, "location.href")

	var runs [2][]dot
	for i := range runs {
		p.visit(link)
		p.steps(30)
		runs[i] = p.dots("gcra")
	}
	if len(runs[0]) < 14 || !slices.Equal(runs[0], runs[1]) {
		t.Errorf("%s shows\n%+v and\n%+v", link, runs[0], runs[1])
	}
	if rows := eval[int](p, "playground.scene.rows.length"); rows != 6 {
		t.Errorf("%d rows, want 6", rows)
	}

	p.visit(base + "/try.html#quota=1000001")
	p.wait(`document.querySelector("#problem").textContent.includes('quota: "1000001" is not a whole number from 1 to 1000000')`)
}

// TestHistory lets 20 minutes pass for every algorithm. Then the page must have at most a
// fifth more elements than after 3 minutes, and at most a tenth more dots and samples.
func TestHistory(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#paused=yes&pattern=steady&rate=20&period=60")
	p.do(chromedp.Click(chromedp.CSS("#tableBox summary")))
	size := func() (kept, nodes int) {
		return eval[int](p, "playground.kept()"), eval[int](p, `document.querySelectorAll("*").length`)
	}
	p.steps(30) // three minutes
	p.wait(`playground.frame.now - playground.scene.start >= 180e6`)
	kept, nodes := size()
	p.steps(170)
	p.wait(`playground.frame.now - playground.scene.start >= 1200e6`)
	keptLater, nodesLater := size()
	if keptLater > kept*11/10 || nodesLater > nodes*12/10 || len(p.dots("gcra")) > 1200 {
		t.Errorf("%d dots and samples, %d elements after 3 minutes; %d, %d after 20", kept, nodes, keptLater, nodesLater)
	}
}

// TestStill opens the page for a visitor who prefers reduced motion. The picture must change
// about twice a second.
func TestStill(t *testing.T) {
	t.Parallel()
	p := open(t, "")
	p.prefer("prefers-reduced-motion", "reduce")
	p.visit(serve(t) + "/try.html#pattern=steady&algorithms=gcra")
	if rate := p.changes(5); rate > 2.5 {
		t.Errorf("the picture changed %.1f times a second, want about 2", rate)
	}
}

// TestDraws opens a steady pattern. The picture must change at most about 7 times a second, and only
// in charts that the visitor can see. Screen readers must hear only of requests that the visitor sent.
func TestDraws(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#pattern=steady&rate=10")
	if rate := p.changes(20); rate > 8 {
		t.Errorf("the picture changed %.1f times a second, want about 7", rate)
	}
	p.do(chromedp.EmulateViewport(1280, 400), chromedp.ScrollIntoView(chromedp.CSS(".line")))
	p.wait(`playground.line("fixed-window").seen() && !playground.line("gcra").seen()`)
	before := eval[[2]float64](p, `["fixed-window", "gcra"].map((a) => playground.line(a).view)`)
	p.wait(fmt.Sprintf(`playground.line("fixed-window").view > %.0f`, before[0]+1e6))
	if after := eval[float64](p, `playground.line("gcra").view`); after != before[1] {
		t.Error("a chart out of view is drawn")
	}
	p.do(chromedp.ScrollIntoView(chromedp.CSS("[data-algorithm=gcra] .line")))
	p.wait(fmt.Sprintf(`playground.line("gcra").view > %.0f`, before[1]))
	if text := eval[string](p, `document.querySelector("#live").textContent`); text != "" {
		t.Errorf("the page announces a request of the pattern: %s", text)
	}
	eval[any](p, `document.querySelector("#hit").click()`) // one request, however long it takes
	p.wait(`document.querySelector("#live").textContent !== ""`)
	if n := eval[int](p, `playground.dots("gcra").filter((d) => d.mine).length`); n != 1 {
		t.Errorf("the visitor sent %d requests, want 1", n)
	}
}

// changes waits until the picture of the first chart has changed n times, from one change on, and
// returns how many changes a second that were. A busy machine draws fewer.
func (p *page) changes(n int) (rate float64) {
	p.Helper()
	return eval[float64](p, fmt.Sprintf(`new Promise((done) => {
		const picture = document.querySelector(".line");
		let n = -1, before = picture.innerHTML, begun;
		(function look(time) {
			const now = picture.innerHTML;
			if (now !== before && ++n === 0) begun = time;
			before = now;
			n < %[1]d ? requestAnimationFrame(look) : done(%[1]d * 1000 / (time - begun));
		})();
	})`, n))
}

// TestTabs opens two tabs. A request of one tab must not appear in the other tab.
func TestTabs(t *testing.T) {
	t.Parallel()
	base := serve(t)
	one, two := open(t, base+"/try.html#pattern=none"), open(t, base+"/try.html#pattern=none")
	one.click("#hit")
	one.wait(`playground.dots("gcra").length === 1`)
	two.click("#step")
	two.wait(`playground.frame.decided === 0 && playground.frame.now - playground.scene.start > 1e6`)
	if dots := two.dots("gcra"); len(dots) != 0 {
		t.Errorf("the other tab shows %+v", dots)
	}
	for range 4 { // six tabs in all: a browser opens at most six connections to one server
		p := open(t, base+"/try.html#pattern=steady")
		p.wait(`playground.dots("gcra").length > 1`)
	}
}

// TestRedis runs a scene in Redis. Without Hybrid every decision must ask Redis, and with
// Hybrid at most three quarters of the decisions. When Redis stops, the scene must pause.
func TestRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Server(t)
	p := open(t, serve(t, redis.Addr())+"/try.html#pattern=steady&rate=20&algorithms=gcra&store=redis")
	p.wait(`playground.dots("gcra").length > 30`)
	f := eval[struct{ Decided, Asked int }](p, "playground.frame")
	if f.Asked != f.Decided {
		t.Errorf("Redis was asked %d times for %d decisions", f.Asked, f.Decided)
	}
	if !eval[bool](p, `document.querySelector("#step").disabled && document.querySelector("#speed").disabled`) {
		t.Error("the page offers to step the clock of Redis")
	}
	replay(t, ten[6], p.dots("gcra"))

	// A pause stops the requests. The clock of Redis and the picture go on.
	p.click("#pause")
	p.wait("playground.scene.settings.paused")
	still := eval[struct{ Now, Decided int64 }](p, "playground.frame")
	p.wait(fmt.Sprintf("playground.frame.now > %d + 2e6 && playground.frame.decided === %d", still.Now, still.Decided))
	p.wait(`document.querySelector("[data-algorithm=gcra] .facts b").textContent === "10" || playground.line("gcra").record.left[0].remaining > 1`)
	p.click("#pause")
	p.wait("!playground.scene.settings.paused")

	p.click("#hybrid")
	p.wait(`playground.scene.settings.hybrid && playground.frame.decided > 60`)
	f = eval[struct{ Decided, Asked int }](p, "playground.frame")
	if f.Asked > f.Decided*3/4 {
		t.Errorf("with Hybrid Redis was asked %d times for %d decisions", f.Asked, f.Decided)
	}
	p.wait(`/^Redis was asked \d+ times for \d+ decisions/.test(document.querySelector("#storeNote").textContent)`)
	p.picture("hybrid-1280-light")

	redis.Kill()
	p.wait(`document.querySelector("#problem").textContent === "Redis does not answer. The scene is paused." && playground.scene.settings.paused`)
	p.click(`#controls input[value="memory"]`)
	p.click("#pause")
	p.wait(`!playground.scene.settings.redis && playground.dots("gcra").length > 3`)
}

// names returns the role and name of each element that a screen reader reads out. An
// element without a name fails the test.
func (p *page) names() map[string]bool {
	p.Helper()
	tree, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		p.Fatal(err)
	}
	names := map[string]bool{}
	for _, n := range tree.Nodes {
		role := text(n.Role)
		switch role {
		case "button", "checkbox", "radio", "slider", "spinbutton", "combobox", "image", "heading", "article", "region", "link", "textbox":
			if n.Ignored {
				continue
			}
			if text(n.Name) == "" {
				p.Errorf("a %s has no name", role)
			}
			names[role+" "+text(n.Name)] = true
		}
	}
	return names
}

// TestAccess checks the names for screen readers. The Tab key must reach every control, and
// the focus must be visible.
func TestAccess(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t)+"/try.html#paused=yes")
	names := p.names()
	for _, name := range []string{
		"button Hit hold to fire", "button Run", "button Step 1 s", "button Copy Go", "button Copy YAML", "slider rate", "spinbutton quota", "spinbutton period", "spinbutton burst",
		"radio boundary attack", "radio Redis", "checkbox hybrid", "checkbox GCRA", "combobox speed", "combobox dialect", "article GCRA",
		"image Time line of GCRA. The latest requests are in a table below.",
	} {
		if !names[name] {
			t.Errorf("there is no %s; there are %v", name, slices.Sorted(maps.Keys(names)))
		}
	}

	seen := map[string]bool{}
	for range 60 {
		p.do(chromedp.KeyEvent("\t"))
		focus := eval[struct {
			ID      string
			Visible bool
		}](p, `(() => {
			const e = document.activeElement, box = e.closest("label") ?? e;
			return { id: e.id || e.value || e.tagName, visible: [e, box].some((e) => getComputedStyle(e).outlineStyle === "solid") };
		})()`)
		if focus.ID != "BODY" && !focus.Visible {
			t.Errorf("the focus of %s is not visible", focus.ID)
		}
		seen[focus.ID] = true
	}
	for _, id := range []string{"hit", "pause", "step", "restart", "bursts", "rate", "quota", "period", "burst", "memory", "speed", "gcra", "two", "link", "focus", "dialect"} {
		if !seen[id] {
			t.Errorf("the Tab key does not reach %s", id)
		}
	}
}

func text(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	return strings.Trim(string(v.Value), `"`)
}
