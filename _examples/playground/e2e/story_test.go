package e2e

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed83679106/weir/_examples/playground/scene"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// tapes are the scenes of the story with a time line, which has a beginning and an end.
var tapes = []string{"edge", "log", "weighted", "bucket", "gcra", "waiting", "windows", "whose", "several", "flights", "retry", "load"}

// A told is a request as a scene of the story shows it. Times are in µs.
type told struct {
	T         int64
	User      string
	Cost      int64
	Most      int64 // if above 0, so many requests at once
	Allowed   bool
	Granted   []int64 // by each group of limits that decide together
	Wait      int64
	Decisions []scene.Decision
}

// A limit is a limit of a scene. Period is in µs.
type limit struct {
	Algorithm            string
	Quota, Period, Burst int64
	Zone                 float64
}

func (l limit) limit() quota.Limit {
	period := time.Duration(l.Period) * time.Microsecond
	switch l.Algorithm {
	case "fixed-window":
		return algorithms.FixedWindow(l.Quota, period)
	case "sliding-log":
		return algorithms.SlidingLog(l.Quota, period)
	case "sliding-window":
		return algorithms.SlidingWindow(l.Quota, period)
	case "token-bucket":
		return algorithms.TokenBucket(l.Burst, l.Quota, period)
	case "leaky-bucket":
		return algorithms.LeakyBucket(l.Burst, l.Quota, period)
	case "gcra":
		return algorithms.GCRA(l.Quota, period).WithBurst(l.Burst)
	case "anchored-window":
		return algorithms.AnchoredWindow(l.Quota, period)
	case "calendar":
		return algorithms.Calendar(l.Quota, algorithms.Day, time.FixedZone("", int(l.Zone*3600)))
	case "in-flight":
		return algorithms.InFlight(l.Quota, period)
	}
	panic(l.Algorithm)
}

// retell decides the requests of a scene again without the page, and compares the decisions
// with those that the page shows. If apart is set, each limit decides by itself.
func retell(t *testing.T, name string, epoch, within int64, limits []limit, apart bool, dots []told) {
	t.Helper()
	groups := [][]limit{limits}
	if apart {
		groups = slices.Collect(slices.Chunk(limits, 1))
	}
	states := map[string][]quota.State{}
	for i, got := range dots {
		id := func(j int) string { return fmt.Sprint(got.User, j) }
		var all quota.Transaction
		same := true
		for j, group := range groups {
			tx := quota.Transaction{Within: time.Duration(within) * time.Microsecond}
			if got.Most > 0 {
				tx.Mode, tx.Most = quota.ModeAtMost, got.Most
			}
			for _, l := range group {
				tx.Charges = append(tx.Charges, quota.Charge{Rule: "any", Key: got.User, Limit: l.limit(), Cost: got.Cost})
			}
			state := states[id(j)]
			if state == nil {
				state = make([]quota.State, len(group))
			}
			tx.Decide(epoch+got.T, state)
			states[id(j)] = state
			if got.Granted != nil {
				same = same && got.Granted[j] == granted(&tx)
			}
			if j == 0 {
				all = tx
			} else {
				all.Decisions = append(all.Decisions, tx.Decisions...)
			}
		}
		tx, allowed := all, all.Allowed()
		if apart {
			allowed = all.Decisions[0].Allowed
		}
		same = same && got.Allowed == allowed && got.Wait == tx.Wait.Microseconds()
		for j, d := range tx.Decisions {
			same = same && got.Decisions[j] == decision(d)
		}
		if !same {
			t.Fatalf("%s: dot %d is %+v, want %+v after %v", name, i, got, tx.Decisions, tx.Wait)
		}
	}
}

// granted returns how often a transaction has spent its charges.
func granted(t *quota.Transaction) int64 {
	if t.Mode != quota.ModeAtMost && t.Allowed() {
		return 1
	}
	return t.Granted
}

// decision returns a Decision as the page has it.
func decision(d quota.Decision) scene.Decision {
	retry := d.RetryAfter.Microseconds()
	if d.RetryAfter == quota.Never {
		retry = -1
	}
	return scene.Decision{Allowed: d.Allowed, Remaining: d.Remaining, RetryAfter: retry, NextAfter: d.NextAfter.Microseconds(), ResetAfter: d.ResetAfter.Microseconds()}
}

// openWhole is openStory with the last scenes, which need more of the library.
func openWhole(t *testing.T, base string) *page {
	t.Helper()
	p := openStory(t, base)
	eval[any](p, "playground.rest()")
	return p
}

// openStory opens the story with its scenes paused.
func openStory(t *testing.T, base string) *page {
	t.Helper()
	p := open(t, "")
	p.do(chromedp.Navigate(base + "/?still"))
	p.wait("globalThis.playground?.ready")
	return p
}

// retold checks the decisions of a scene with retell, and that its picture has a mark for
// each request that is past.
func (p *page) retold(name string) []told {
	p.Helper()
	s := eval[struct {
		Epoch, Now, Within int64
		Limits             []limit
		Apart              bool
		Dots               []told
		Passed, Refused    int // visible marks: one for each request, and one for each limit if the limits decide apart
	}](p, fmt.Sprintf(`(() => {
		const s = playground.scenes[%q], seen = (kind) => s.picture.querySelectorAll(".dot.past > g" + (s.scene.apart ? "" : ":nth-child(1)") + " .mark." + kind).length;
		return { apart: Boolean(s.scene.apart), epoch: playground.epoch, now: s.now, within: s.within, limits: s.limits.map((l) => ({ burst: l.quota, ...l })), dots: s.dots,
			passed: seen("passed"), refused: seen("refused") + seen("spared") };
	})()`, name))
	retell(p.T, name, s.Epoch, s.Within, s.Limits, s.Apart, s.Dots)
	passed, refused := 0, 0
	for _, d := range s.Dots {
		if d.T > s.Now || d.Cost < 0 {
			continue
		}
		for i, x := range d.Decisions {
			allowed := d.Allowed
			if s.Apart {
				allowed = x.Allowed
			} else if i > 0 {
				break
			}
			if allowed {
				passed++
			} else {
				refused++
			}
		}
	}
	if s.Passed != passed || s.Refused != refused {
		p.Errorf("%s: the picture shows %d that passed and %d that did not, want %d and %d", name, s.Passed, s.Refused, passed, refused)
	}
	return s.Dots
}

// text returns the text of the first element that matches selector.
func (p *page) text(selector string) string {
	p.Helper()
	return eval[string](p, fmt.Sprintf("document.querySelector(%q).textContent", selector))
}

// TestStory decides every request of every scene again: when the scene opens, at its end,
// and after the reader has changed its numbers. It opens the static page and the served page.
func TestStory(t *testing.T) {
	t.Parallel()
	for where, base := range map[string]string{"static": serveStatic(t), "served": serve(t)} {
		t.Run(where, func(t *testing.T) {
			p := openStory(t, base)
			for _, name := range tapes {
				if dots := p.retold(name); len(dots) < 15 {
					t.Errorf("%s opens with %d requests", name, len(dots))
				}
				eval[any](p, fmt.Sprintf("playground.scenes.%s.go(1e9)", name))
				p.retold(name)
				eval[any](p, fmt.Sprintf(`for (const input of document.querySelectorAll("#%s [data-number]")) {
					input.value = Math.max(Number(input.min), Number(input.value) - 1);
					input.dispatchEvent(new Event("input"));
				}`, name))
				p.retold(name)
			}
			chat := eval[[]told](p, "playground.scenes.chat.dots.map((d) => ({ ...d, cost: 1 }))")
			if len(chat) < 15 {
				t.Errorf("the chat opens with %d messages", len(chat))
			}
			retell(t, "chat", eval[int64](p, "playground.epoch"), 0, []limit{{Algorithm: "token-bucket", Quota: 1, Period: 4_000_000, Burst: 3}}, false, chat)
		})
	}
}

// TestLessons checks the sentence that each scene shows when it opens.
func TestLessons(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	for selector, want := range map[string]string{
		"#gate .say":     "Within 10 s the fixed window let 20 through, and GCRA 11: 2 at once (its burst), then 9 more, one a second. With a burst of 10 it could let 19 through.",
		"#edge .say":     "This window has counted 10 of 10. In the last 10 s, 20 passed: more than 10, because an edge lies between.",
		"#log .say":      "The log keeps the times of 10 requests now. A fixed window keeps 1 number.",
		"#weighted .say": "10 before × 40 % + 5 now = 9 of 10. In the last 10 s 15 passed: the estimate is too low.",
		"#bucket .say":   "The bucket holds 2 of 5 tokens. If no request comes, it is full in 3.0 s.",
		"#gcra .say":     "The TAT lies 3.0 s ahead of now, and may lie 5.0 s ahead. So 2.0 s are free: 2 requests fit, 1 s each.",
		"#waiting .say":  "3 requests wait. The next goes ahead in 1.0 s.",
		"#several .say":  "The short limit has counted 1 of 3, and the long one 10 of 10.",
	} {
		if got := p.text(selector); got != want {
			t.Errorf("%s: got %q, want %q", selector, got, want)
		}
	}
	if dir := os.Getenv("PICTURES"); dir != "" { // the picture of the README
		png, err := chromedp.Run(p.ctx, chromedp.ScreenshotScale(chromedp.CSS("#gate .frame"), 1.5))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "playground.png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// In the scene of the sliding log no span of 10 s holds more than 10 requests. In the
	// scene of the fixed window the fullest span holds 20.
	for name, want := range map[string]int{"edge": 20, "log": 10} {
		if got := peak(p.retold(name)); got != want {
			t.Errorf("%s: at most %d in 10 s, want %d", name, got, want)
		}
	}
}

// peak returns the largest number of requests that passed within 10 s.
func peak(dots []told) (most int) {
	for _, a := range dots {
		n := 0
		for _, b := range dots {
			if b.Allowed && b.T > a.T-10_000_000 && b.T <= a.T {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestPace opens the story as a reader does. A scene must play while it is visible. With
// reduced motion it must wait until the reader presses Play, and move in steps.
func TestPace(t *testing.T) {
	t.Parallel()
	p := open(t, "")
	base := serveStatic(t)
	p.do(chromedp.Navigate(base))
	p.wait("globalThis.playground?.scenes.gate.playing")
	eval[any](p, `document.getElementById("log").scrollIntoView({ block: "center" })`)
	p.wait("playground.scenes.log.playing && !playground.scenes.gate.playing")
	p.wait("playground.scenes.log.fallen.some((dot) => dot.way < 1)")
	if on := eval[float64](p, `(async () => {
		const s = playground.scenes.several, frame = () => new Promise(requestAnimationFrame);
		s.play();
		for (let i = 0; i < 10; i++) await frame(); // the browser tells the scene that it is not in view
		await new Promise((next) => setTimeout(next, 300)); // a call of the timer may have begun
		const t = s.now, begun = performance.now();
		while (performance.now() - begun < 500) await frame();
		s.pause();
		return s.now - t;
	})()`); on != 0 {
		t.Errorf("a scene that is not in view goes on by %v µs", on)
	}

	p.prefer("prefers-reduced-motion", "reduce")
	p.do(chromedp.Navigate(base))
	p.wait("globalThis.playground?.ready && !playground.scenes.gate.playing")
	p.click("#edge .play")
	steps := eval[[]float64](p, `new Promise((done) => {
		const s = playground.scenes.edge, all = [], go = s.go;
		s.go = (t) => { all.push(t - s.now); go.call(s, t); if (all.length === 4) { s.pause(); done(all); } };
	})`)
	for _, step := range steps {
		if step < 440_000 { // half a second, less half of the tenth on which beats fall, and rounding
			t.Errorf("with reduced motion the scene goes on by %v µs", steps)
		}
	}
	if eval[bool](p, `playground.scenes.edge.fallen.some((dot) => dot.way < 1)`) {
		t.Error("with reduced motion a dot falls")
	}
}

// place scrolls to a scene and returns the point of the screen at which the scene's line of
// requests shows the instant t, in µs.
func (p *page) place(name string, t float64) (x, y float64) {
	p.Helper()
	at := eval[[2]float64](p, fmt.Sprintf(`(() => {
		const s = playground.scenes[%q];
		s.picture.scrollIntoView({ block: "center" });
		const r = s.picture.getBoundingClientRect();
		return [r.left + s.x(%v), r.top + 40];
	})()`, name, t))
	return at[0], at[1]
}

// TestTouch changes scenes with the mouse, a finger and the keyboard: it sends requests,
// reads the answers of dots, moves limits and plays. Decisions and texts must follow.
func TestTouch(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	count := func() int { return eval[int](p, "playground.scenes.log.dots.length") }
	n := count()
	x, y := p.place("log", 12.5e6)
	p.do(chromedp.MouseClickXY(x, y))
	p.wait(fmt.Sprintf("playground.scenes.log.dots.length === %d", n+1))
	if got, want := p.text("#log .why"), ", at 12.5 s: refused. The 10 s before it already hold 10. The oldest of them leaves at 18.8 s."; !strings.Contains(got, want) {
		t.Errorf("the answer is %q, want %q", got, want)
	}
	p.retold("log")

	x, y = p.place("log", 20e6)
	eval[any](p, `{
		const why = document.querySelector("#log .why");
		globalThis.said = [];
		new MutationObserver(() => { if (playground.scenes.log.playing) said.push(why.textContent); }).observe(why, { childList: true, characterData: true, subtree: true });
	}`)
	tap(p, x, y)
	p.wait(fmt.Sprintf("playground.scenes.log.dots.length === %d", n+2))
	p.wait(`said.includes("Your request comes at 20.0 s.")`) // until it does, the scene plays
	eval[any](p, "playground.scenes.log.pause(); playground.scenes.log.go(13e6)")

	// The keyboard moves to an instant, sends a request there, and goes to the dot before
	// it.
	p.do(chromedp.Focus(chromedp.CSS("#log .scrub")))
	for range 10 {
		p.do(chromedp.KeyEvent(kb.ArrowRight))
	}
	p.do(chromedp.Focus(chromedp.CSS("#log .send")), chromedp.KeyEvent(kb.Enter))
	p.wait(fmt.Sprintf("playground.scenes.log.dots.some((d) => d.mine && d.t === 14e6) && playground.scenes.log.dots.length === %d", n+3))
	eval[any](p, "playground.scenes.log.pause()")
	p.retold("log")
	p.do(chromedp.Focus(chromedp.CSS(`#log .dot[tabindex="0"]`)), chromedp.KeyEvent(kb.ArrowLeft))
	p.wait(`document.activeElement.classList.contains("dot") && document.querySelector("#log .why").textContent === document.activeElement.getAttribute("aria-label")`)

	// Pointing at a dot with the mouse shows its answer.
	at := eval[[2]float64](p, `(() => { const r = document.querySelector("#log .dot.past .mark.passed").getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()`)
	p.do(chromedp.MouseEvent("mouseMoved", at[0], at[1]))
	p.wait(`document.querySelector("#log .why").textContent.startsWith("Request 1, at 8.8 s: passed. It counts until 18.8 s.")`)

	// The mouse drags the limit, and keys move it.
	for name, field := range map[string]string{"edge": "quota", "bucket": "burst"} {
		selector := "#" + name + " .handle"
		at := eval[[2]float64](p, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({ block: "center" }); const r = e.querySelector(".knob").getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()`, selector))
		step := eval[float64](p, fmt.Sprintf("playground.scenes.%s.areas[0].y(0) - playground.scenes.%[1]s.areas[0].y(1)", name))
		before := eval[int](p, fmt.Sprintf("playground.scenes.%s.limits[0].%s", name, field))
		p.do(chromedp.MouseEvent("mouseMoved", at[0], at[1]), chromedp.MouseEvent("mousePressed", at[0], at[1], chromedp.ButtonLeft),
			chromedp.MouseEvent("mouseMoved", at[0]-3, at[1]+2*step, chromedp.ButtonLeft), chromedp.MouseEvent("mouseReleased", at[0]-3, at[1]+2*step, chromedp.ButtonLeft))
		p.wait(fmt.Sprintf("playground.scenes.%s.limits[0].%s === %d", name, field, before-2))
		p.do(chromedp.Focus(chromedp.CSS(selector)), chromedp.KeyEvent(kb.ArrowUp))
		p.wait(fmt.Sprintf(`playground.scenes.%s.limits[0].%s === %d && document.querySelector("#%[1]s [data-number=%[2]s]").value === "%[3]d"`, name, field, before-1))
		p.retold(name)
	}
	at = eval[[2]float64](p, `(() => { const e = document.querySelector("#log .handle"); e.scrollIntoView({ block: "center" }); const r = e.querySelector(".pad").getBoundingClientRect(); return [r.left + 20, r.top + 14]; })()`)
	step := eval[float64](p, "playground.scenes.log.areas[0].y(0) - playground.scenes.log.areas[0].y(1)")
	tap(p, at[0], at[1], at[1]+step, at[1]+2*step, at[1]+3*step)
	p.wait("playground.scenes.log.limits[0].quota === 7")
	p.retold("log")

	// The button puts five tokens into the bucket.
	p.click("#bucket .reset")
	eval[any](p, `document.querySelector("#bucket [data-give]").click(); playground.scenes.bucket.pause()`)
	p.wait(`document.querySelector("#bucket .say").textContent.startsWith("The bucket holds 5 of 5 tokens.")`)
	p.retold("bucket")

	// The reader sends messages in the chat, and the limit applies to them.
	eval[any](p, `for (let i = 0; i < 4; i++) document.querySelector("#chat form .primary").click()`)
	p.wait(`document.querySelector("#chat .why").textContent.startsWith("Your message was refused, because your 3 were used up. One more fitted 4.0 s later.")`)
	p.click("#chat .limited")
	p.click("#chat form .primary")
	p.wait(`document.querySelector("#chat .room li.you:last-of-type")?.textContent === "youhello"`)

	// The buttons Play and Step move the time.
	p.click("#edge .play")
	p.wait("playground.scenes.edge.playing && playground.scenes.edge.now > 13.3e6")
	p.click("#edge .play")
	now := eval[int64](p, "playground.scenes.edge.now")
	p.click("#edge .step")
	p.wait(fmt.Sprintf("!playground.scenes.edge.playing && Math.abs(playground.scenes.edge.now - %d) < 1", now+500_000))
}

// tap touches the screen at x and y with a finger. It moves the finger up or down to further
// points, whose y coordinates follow, and then lifts the finger.
func tap(p *page, x, y float64, to ...float64) {
	p.Helper()
	p.touch(true)
	touches := []input.DispatchTouchEventParams{{Type: input.DispatchTouchEventTypeTouchStart, TouchPoints: []*input.TouchPoint{{X: x, Y: y}}}}
	for _, y := range to {
		touches = append(touches, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchMove, TouchPoints: []*input.TouchPoint{{X: x, Y: y}}})
	}
	touches = append(touches, input.DispatchTouchEventParams{Type: input.DispatchTouchEventTypeTouchEnd, TouchPoints: []*input.TouchPoint{}})
	for _, touch := range touches {
		if _, err := chromedp.Call(p.ctx, input.DispatchTouchEvent, touch); err != nil {
			p.Fatal(err)
		}
	}
}

// TestReplicas sends more than the limit to the three replicas. Without Hybrid they must call the
// store for every request, with Hybrid for at most half of them, and never if each counts by itself:
// then three times the limit passes.
func TestReplicas(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for count, passed := range map[string]int{"hybrid": 10, "shared": 10, "apart": 30} {
		r := eval[struct {
			Sent, Passed, Asked, Lines int
			Say                        string
		}](p, fmt.Sprintf(`(() => {
			const s = playground.scenes.replicas, e = s.find(".count"), sum = (all) => all.reduce((a, b) => a + b, 0);
			e.value = %q;
			e.dispatchEvent(new Event("change"));
			s.pause();
			for (const b of s.root.querySelectorAll("[data-replica]")) b.click();
			s.pause();
			return { sent: sum(s.sent), passed: s.recent(200), asked: sum(s.asked), lines: s.picture.querySelectorAll(".call").length, say: s.find(".say").textContent };
		})()`, count))
		asked := map[string]bool{"hybrid": r.Asked > 0 && r.Asked <= r.Sent/2, "shared": r.Asked == r.Sent, "apart": r.Asked == 0}[count]
		if r.Sent != 48 || r.Passed != passed || !asked || count == "apart" && r.Lines > 0 || count == "shared" && r.Lines == 0 {
			t.Errorf("%s: got %+v, want %d that passed", count, r, passed)
		}
		if want := fmt.Sprintf("In the last 10 s, %d of 48 requests passed", passed); !strings.HasPrefix(r.Say, want) {
			t.Errorf("%s: the page says %q, want %q", count, r.Say, want)
		}
	}
}

// TestStoryStays runs every scene for ten minutes, twice. The second time the page must not
// gain more than 20 elements.
func TestStoryStays(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	grow := func() { // ten minutes of every scene
		eval[any](p, `{ const { chat, replicas } = playground.scenes;
			chat.until(chat.now + 600e6);
			for (let i = 0; i < 600; i++) replicas.take(i % 3);
			for (const s of Object.values(playground.scenes)) if (s.go) for (let i = 0; i < 60; i++) s.go(i * 5e5);
		}`)
	}
	nodes := func() int { return eval[int](p, `document.querySelectorAll("*").length`) }
	heap := func() float64 {
		return eval[float64](p, "(async () => { globalThis.gc?.(); return performance.memory.usedJSHeapSize })()")
	}
	grow()
	n, h := nodes(), heap()
	grow()
	if later := nodes(); math.Abs(float64(later-n)) > 20 {
		t.Errorf("%d elements, and %d after ten minutes", n, later)
	}
	t.Logf("JavaScript's heap: %.1f MB, and %.1f MB after ten minutes", h/1e6, heap()/1e6)
}

// TestStoryFits opens the story at the widths of telephones and desktops, and at the widths
// of a 1280 px window at a zoom of 200 and 400 %, there also beside a scroll bar. Nothing may be cut off, controls must be
// at least 24 px wide and high, and colours must have enough contrast, light and dark.
func TestStoryFits(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for _, width := range []int64{305, 320, 390, 640, 768, 1280, 1920} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.wait("Object.values(playground.scenes).every((s) => !s.width || s.width === s.picture.clientWidth)")
		if over := eval[int64](p, "document.documentElement.scrollWidth"); over > width {
			t.Errorf("the page is %d px wide, its window %d", over, width)
		}
		small := eval[[]string](p, `[...document.querySelectorAll("button, input:not([type=checkbox], [type=radio]), .questions label, nav a, .next, .switch")]
			.filter((e) => e.getBoundingClientRect().height < 24 || e.getBoundingClientRect().width < 24).map((e) => e.outerHTML)`)
		if len(small) > 0 {
			t.Errorf("%d: below 24 px: %s", width, strings.Join(small, "\n"))
		}
		outside := eval[[]string](p, `[0, 1e6, 13e6, 25e6, 1e9].flatMap((now) => {
			for (const s of Object.values(playground.scenes)) s.go?.(now);
			return [...document.querySelectorAll(".stage svg")].flatMap((s) => [...s.querySelectorAll("text")].filter((e) => {
				const a = s.getBoundingClientRect(), b = e.getBoundingClientRect();
				return b.width && (b.left < a.left - 2 || b.right > a.right + 2);
			}).map((e) => s.closest("section").id + ": " + e.textContent));
		})`)
		if len(outside) > 0 {
			t.Errorf("%d: text is cut off: %s", width, strings.Join(outside, "; "))
		}
		eval[any](p, `for (const s of Object.values(playground.scenes)) s.go?.(s.scene.start * 1e6)`)
		for _, scheme := range []string{"light", "dark"} {
			p.prefer("prefers-color-scheme", scheme)
			p.contrast(scheme)
			p.picture(fmt.Sprintf("story-%d-%s", width, scheme))
		}
	}
}

// collisions is a script that returns where a label of a picture lies on another label or on
// a mark, at several instants of every scene.
const collisions = `[0, 3e6, 8e6, 9.5e6, 10.4e6, 13e6, 16e6, 20e6, 25e6, 40e6, 1e9].flatMap((now) => {
	const found = [], meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
	for (const [id, s] of Object.entries(playground.scenes)) {
		if (!s.go) continue;
		s.go(now * s.unit / 1e6);
		for (const picture of [s.picture, s.gauge].filter(Boolean)) {
			const texts = [...picture.querySelectorAll("text")].filter((e) => e.textContent && e.checkVisibility()).map((e) => {
				const r = e.getBoundingClientRect(); // the letters fill the middle of it
				return [e.textContent, new DOMRect(r.x, r.y + r.height * 0.2, r.width, r.height * 0.6)];
			});
			const marks = [...picture.querySelectorAll(".dot.past > g:not(.under) > .mark, .arrivals .mark")].map((e) => ["a mark", e.getBoundingClientRect()]);
			texts.forEach(([t, a], i) => { for (const [u, b] of [...texts.slice(i + 1), ...marks]) if (meet(a, b)) found.push(id + " at " + now / 1e6 + " s: " + t + " on " + u); });
		}
	}
	return found;
})`

// TestLabels looks for labels on labels and on marks: as the scenes open, with the smallest
// and with the largest limits, at several widths.
func TestLabels(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	for _, width := range []int64{320, 768, 1280} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.wait("Object.values(playground.scenes).every((s) => !s.width || s.width === s.picture.clientWidth)")
		for _, limit := range []string{"value", "min", "max"} {
			eval[any](p, fmt.Sprintf(`for (const e of document.querySelectorAll("section [data-number]")) {
				if (!/quota|burst/.test(e.dataset.number)) continue;
				e.value = e.getAttribute(%q);
				e.dispatchEvent(new Event("input"));
			}`, limit))
			if found := eval[[]string](p, collisions); len(found) > 0 {
				t.Errorf("%d px, %s: %d labels collide: %s", width, limit, len(found), strings.Join(found[:min(12, len(found))], "; "))
			}
		}
	}
}

// contrast checks that each colour of text has a contrast of at least 4.5:1 to its
// background (WCAG 2.2, 1.4.3).
func (p *page) contrast(scheme string) {
	p.Helper()
	colors := eval[map[string]string](p, `(() => {
		const style = getComputedStyle(document.documentElement);
		return Object.fromEntries(["paper", "raised", "ink", "soft", "accent", "onaccent", "ok", "bad"].map((n) => [n, style.getPropertyValue("--" + n).trim()]));
	})()`)
	for _, pair := range [][2]string{{"ink", "paper"}, {"soft", "paper"}, {"accent", "paper"}, {"ok", "paper"}, {"bad", "paper"}, {"soft", "raised"}, {"accent", "raised"}, {"ok", "raised"}, {"bad", "raised"}, {"onaccent", "accent"}} {
		a, b := luminance(p.T, colors[pair[0]]), luminance(p.T, colors[pair[1]])
		if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
			p.Errorf("%s: %s on %s is %.1f:1", scheme, pair[0], pair[1], ratio)
		}
	}
}

func luminance(t *testing.T, color string) float64 {
	t.Helper()
	var r, g, b uint8
	if _, err := fmt.Sscanf(color, "#%02x%02x%02x", &r, &g, &b); err != nil {
		t.Fatalf("%q: %v", color, err)
	}
	linear := func(c uint8) float64 {
		if x := float64(c) / 255; x > 0.04045 {
			return math.Pow((x+0.055)/1.055, 2.4)
		}
		return float64(c) / 255 / 12.92
	}
	return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b)
}

// TestStoryNames checks the names that a screen reader reads out.
func TestStoryNames(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	names := p.names()
	for _, name := range []string{
		"heading Rate limiting, in pictures that you can change", "button Send", "textbox Your message", "checkbox limit on", "slider Time of the scene: a sliding log", "slider Limit: requests in a window",
		"spinbutton tokens in the bucket", "button Put five tokens into the bucket", "image The bucket", "image Three replicas and the store that they share", "link Last: which one?",
	} {
		if !names[name] {
			t.Errorf("there is no %s; there are %v", name, names)
		}
	}
	if left := eval[string](p, "JSON.stringify([...document.querySelectorAll('.dot.past')].filter((e) => !e.getAttribute('aria-label')))"); left != "[]" {
		t.Errorf("dots without a name: %s", left)
	}
}

// TestStoryKeys goes through the story with the Tab key. The key must reach every control,
// and the focus must be visible.
func TestStoryKeys(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	seen := map[string]bool{}
	for range 320 {
		p.do(chromedp.KeyEvent("\t"))
		focus := eval[struct {
			What    string
			Visible bool
		}](p, `(() => {
			const e = document.activeElement, scene = e.closest("section")?.id ?? "", style = getComputedStyle(e);
			const inner = e.querySelector?.(".grip, .mark");
			return e === document.body ? { what: "nothing", visible: true } : { what: scene + " " + (e.classList[0] ?? e.dataset.number ?? e.dataset.give ?? e.dataset.replica ?? e.type ?? e.tagName),
				visible: style.outlineStyle === "solid" || Boolean(inner) && getComputedStyle(inner).strokeWidth >= "2" };
		})()`)
		if !focus.Visible {
			t.Errorf("the focus of %s is not visible", focus.What)
		}
		seen[focus.What] = true
	}
	for _, what := range []string{"chat text", "chat primary", "chat play", "chat limited", "edge quota", "edge period", "edge scrub", "edge primary", "edge play", "edge step", "edge reset", "edge handle", "edge dot",
		"bucket burst", "bucket 5", "waiting within", "several 1.quota", "several handle", "several dot", "replicas 0", "replicas play", "replicas count", "replicas reset"} {
		if !seen[what] {
			t.Errorf("the Tab key does not reach %s; it reaches %v", what, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// TestFirstPicture measures how long a reader waits for the still picture in index.html, and
// for the first picture that moves, and for the library: of the static page over slow lines, and of
// the served page. The bound of 60 s allows for a busy machine.
func TestFirstPicture(t *testing.T) {
	t.Parallel()
	handler, err := static()
	if err != nil {
		t.Fatal(err)
	}
	bases := map[string]string{"served": serve(t)}
	served, err := url.Parse(bases["served"])
	if err != nil {
		t.Fatal(err)
	}
	near := httptest.NewServer(&slow{next: httputil.NewSingleHostReverseProxy(served), rate: 10e6 / 8})
	t.Cleanup(near.Close)
	bases["served, 10 Mbit/s"] = near.URL
	for _, mbit := range []float64{1.6, 10} {
		far := httptest.NewServer(&slow{next: handler, rate: mbit * 1e6 / 8})
		t.Cleanup(far.Close)
		bases[fmt.Sprintf("static, %v Mbit/s", mbit)] = far.URL
	}
	for where, base := range bases {
		took := eval[struct{ Paint, First, Ready float64 }](openStory(t, base), `({ paint: performance.getEntriesByName("first-contentful-paint")[0].startTime, first: playground.first, ready: playground.ready })`)
		t.Logf("%s: a still picture is there after %.0f ms, the first that moves after %.0f ms, and every one after %.0f ms", where, took.Paint, took.First, took.Ready)
		if took.First > 60_000 {
			t.Errorf("%s: the first picture took %.0f ms", where, took.First)
		}
	}
}

// A slow handler sends at most rate bytes a second in all its responses together.
type slow struct {
	next http.Handler
	rate float64
	mu   sync.Mutex
	free time.Time // when all bytes so far are sent
}

func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.next.ServeHTTP(slowly{w, s}, r)
}

type slowly struct {
	http.ResponseWriter
	line *slow
}

func (w slowly) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, 1<<14) {
		w.line.mu.Lock()
		if now := time.Now(); w.line.free.Before(now) {
			w.line.free = now
		}
		w.line.free = w.line.free.Add(time.Duration(float64(len(part)) / w.line.rate * float64(time.Second)))
		sent := w.line.free
		w.line.mu.Unlock()
		time.Sleep(time.Until(sent))
		if _, err := w.ResponseWriter.Write(part); err != nil {
			return n, err
		}
		n += len(part)
		w.ResponseWriter.(http.Flusher).Flush()
	}
	return n, nil
}
