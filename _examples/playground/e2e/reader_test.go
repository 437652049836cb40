package e2e

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/seed83679106/weir/quota"
)

// TestGate clicks the first picture and sends bursts. Every decision must be the library's,
// and the sentence must have the fullest 10 s of each limit.
func TestGate(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	p.do(chromedp.Click(chromedp.CSS("#gate svg.gate")))
	p.wait(`document.querySelector("#gate .why").textContent.startsWith("Fixed window: ") && playground.scenes.gate.sent.length === 1`)
	p.click("#gate .burst")
	p.wait(`/^Fixed window: (all|only \d|none) of your 10 passed(, because its window had counted 10)?\. GCRA: (only \d|none), because all share 2 at once, then one a second\.$/.test(document.querySelector("#gate .why").textContent)`)
	eval[any](p, `{ const g = playground.scenes.gate; g.pause(); g.until(g.now + 25e6); g.fill(); g.move(); }`)
	for i, l := range []limit{{Algorithm: "fixed-window", Quota: 10, Period: 10_000_000, Burst: 10}, {Algorithm: "gcra", Quota: 10, Period: 10_000_000, Burst: 2}} {
		dots := eval[[]told](p, fmt.Sprintf(`playground.scenes.gate.lanes[%d].dots.map((d) => ({ ...d, cost: 1 }))`, i))
		if len(dots) < 60 {
			t.Fatalf("lane %d: %d requests", i, len(dots))
		}
		retell(t, l.Algorithm, eval[int64](p, "playground.epoch"), 0, []limit{l}, false, dots)
		if got, want := eval[int](p, fmt.Sprintf("playground.scenes.gate.lanes[%d].worst.n", i)), peak(dots); got != want {
			t.Errorf("%s: at most %d in 10 s, want %d", l.Algorithm, got, want)
		}
	}
}

// TestProse changes the limit of a scene. Sentences must have the new numbers, and a lesson
// that does not hold must say so.
func TestProse(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	lesson := func() string { return p.text("#edge [data-tell=lesson]") }
	if got, want := lesson(), "Look at the edge at 10 s: 10 requests pass before it, and 10 after it, because the new window counts from 0. So 10 s around the edge hold 20, twice the limit."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	set := func(number, value string) {
		eval[any](p, fmt.Sprintf(`{ const e = document.querySelector("#edge [data-number=%s]"); e.value = %q; e.dispatchEvent(new Event("input")); }`, number, value))
	}
	set("quota", "6")
	if got, want := lesson(), "Look at the edge at 10 s: 6 requests pass before it, and 6 after it, because the new window counts from 0. So 10 s around the edge hold 12, twice the limit."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	eval[any](p, `{ const s = playground.scenes.edge; s.requests = s.requests.filter((r) => r.t > 25e6); s.decide(); }`)
	if got, want := lesson(), "So far the fullest 10 s hold "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// Pointing at a word lights its marks.
	p.click("#edge .reset")
	eval[any](p, `document.querySelector("#edge .lit").dispatchEvent(new Event("pointerover", { bubbles: true }))`)
	const lit = `(() => { const lit = (e) => getComputedStyle(e.querySelector(".box.open")).strokeWidth === "3px"; return [edge, windows].map(lit).join(); })()` // its own marks only
	p.wait(lit + ` === "true,false"`)
	eval[any](p, `playground.scenes.edge.go(21e6)`) // draws them anew
	p.wait(lit + ` === "true,false"`)
	eval[any](p, `document.querySelector("#edge .lit").dispatchEvent(new Event("pointerout", { bubbles: true }))`)
	p.wait(lit + ` === "false,false"`)
	// Where the picture is off screen, a click on a word brings it into view.
	p.do(chromedp.EmulateViewport(390, 500))
	eval[any](p, `document.querySelector("#edge h2").scrollIntoView()`)
	const seen = `((r) => r.top >= 0 && r.bottom <= innerHeight)(document.querySelector("#edge svg.tape").getBoundingClientRect())`
	p.wait("!" + seen)
	eval[any](p, `document.querySelector("#edge .lit").click()`)
	p.wait(seen)
}

// TestTask gets 20 requests through a limit of 10. The task must be ticked only then, and
// the sliding log must get the same requests and let no more than 10 of them through.
func TestTask(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	p.click("#edge .begin")
	p.wait(`playground.scenes.edge.requests.length === 0`)
	eval[any](p, `{ const s = playground.scenes.edge; s.pause(); s.go(9.5e6); for (let i = 0; i < 10; i++) s.add(9e6 + i * 5e4); }`)
	if done := eval[bool](p, `document.querySelector("#edge .task").classList.contains("done")`); done {
		t.Error("the task is done with 10 requests")
	}
	eval[any](p, `{ const s = playground.scenes.edge; s.go(11.5e6); for (let i = 0; i < 10; i++) s.add(10.1e6 + i * 1e5); }`)
	p.wait(`document.querySelector("#edge .task.done output").textContent === "20 passed within 10 s. The next scene gets the same requests."`)
	dots := p.retold("log")
	if len(dots) != 20 || peak(dots) != 10 {
		t.Errorf("the log has %d requests, and at most %d in 10 s; want 20 and 10", len(dots), peak(dots))
	}
	p.wait(`document.querySelector("#log .task.done output").textContent.startsWith("You can't get more than 10 through: that is the point.")`)
}

// TestComesBack scrolls away from scenes and back to them. One that played then must play again, and
// one that the reader has paused must not.
func TestComesBack(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	scroll := func(id string) { // and lets the browser notice it, which it does with a frame
		eval[any](p, fmt.Sprintf(`(async () => {
			document.getElementById(%q).scrollIntoView();
			const frame = () => new Promise((next) => requestAnimationFrame(next));
			for (let i = 0; i < 3; i++) await frame();
		})()`, id))
	}
	for _, id := range []string{"bucket", "chat", "replicas", "outage"} {
		scene := "playground.scenes." + id
		for _, playing := range []bool{true, false} {
			scroll(id)
			p.click(fmt.Sprintf("#%s .play", id))
			p.wait(fmt.Sprintf("%s.playing === %v", scene, playing))
			scroll("which")
			p.wait(fmt.Sprintf("%s.away === %v && !%[1]s.playing", scene, playing))
			scroll(id)
			p.wait(fmt.Sprintf("%s.playing === %v && !%[1]s.away", scene, playing))
			eval[any](p, fmt.Sprintf("%s.go?.(0)", scene)) // far from the end of a tape
		}
	}
}

// TestActs presses each button that does something in a scene that is paused. Its clock must go on,
// and what the button did must be decided.
func TestActs(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for _, selector := range []string{"#gate .send", "#gate .burst", "#edge .send", "#log .ten", "#bucket [data-give]", "#chat form .primary", "#chat .limited",
		"#replicas [data-replica='1']", "#outage [data-replica='0']", "#outage button.down"} {
		id, _, _ := strings.Cut(selector[1:], " ")
		if !eval[bool](p, fmt.Sprintf(`playground.scenes.%s.pause(); document.querySelector(%q).click(); playground.scenes.%[1]s.playing`, id, selector)) {
			t.Errorf("%s does not make the scene play", selector)
		}
	}
	if got, want := p.text("#outage .why"), "Send 10 to A, and see who decides."; got != want {
		t.Errorf("after Redis has been stopped: got %q, want %q", got, want)
	}
	// Three gifts at one instant are decided at once, and fill the bucket.
	got := eval[struct {
		Gifts, Past, Tokens int
		Why                 string
	}](p, `(() => {
		const s = playground.scenes.bucket, press = document.querySelector("#bucket [data-give]");
		s.reset();
		s.go(17.6e6);
		for (let i = 0; i < 3; i++) press.click();
		s.pause();
		const gifts = s.dots.filter((d) => d.cost < 0);
		return { gifts: gifts.length, past: gifts.filter((d) => d.t <= s.now).length, tokens: s.look()[0].remaining, why: document.querySelector("#bucket .why").textContent };
	})()`)
	if got.Gifts != 3 || got.Past != 3 || got.Tokens != 5 || !strings.HasSuffix(got.Why, "5 are there now.") {
		t.Errorf("after three gifts: %+v", got)
	}
	// Ten at once, at the end of a tape: it begins anew.
	if ten := eval[[]int64](p, `(() => {
		const s = playground.scenes.log;
		s.reset();
		s.go(1e9);
		document.querySelector("#log .ten").click();
		s.pause();
		return s.dots.filter((d) => d.mine && d.t <= s.now).map((d) => d.t);
	})()`); len(ten) != 10 || ten[9] > 1_000_000 {
		t.Errorf("ten at once: %v", ten)
	}
	p.retold("log")
	// The limit that the reader has set stays for the task.
	if quota := eval[int](p, `(() => { const s = playground.scenes.edge; s.reset(); s.set("quota", 5); document.querySelector("#edge .begin").click(); s.pause(); return s.limits[0].quota; })()`); quota != 5 {
		t.Errorf("the task has a limit of %d, want 5", quota)
	}
}

// TestSteady lets scenes go on, and sends requests, at the widths of a desktop and a telephone. What
// is below a scene must not move.
func TestSteady(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for _, width := range []int64{1200, 390} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.wait("Object.values(playground.scenes).every((s) => !s.width || s.width === s.picture.clientWidth)")
		moved := eval[[]string](p, `(() => {
			const found = [], { gate, outage, replicas, chat } = playground.scenes;
			const high = (s) => s.root.getBoundingClientRect().height;
			const check = (s, what, before) => { const after = high(s); if (Math.abs(after - before) > 0.5) found.push(s.root.id + ", " + what + ": " + before + " px, then " + after); };
			for (const s of Object.values(playground.scenes)) {
				const before = high(s), press = (selector) => { s.root.querySelector(selector)?.click(); s.pause(); };
				if (s.go) {
					for (let t = 0; t <= s.end; t += s.end / 40) { s.go(t); check(s, "at " + t / s.unit, before); }
					for (const d of s.dots.filter((d) => !d.ends)) { s.go(d.t); s.pick(d); check(s, "request " + d.n, before); }
				}
				for (const selector of [".send", ".ten", ".burst", "[data-replica='0']", "form .primary", "button.down", "button.down"]) {
					press(selector);
					check(s, selector, before);
				}
				s.reset();
			}
			return found;
		})()`)
		if len(moved) > 0 {
			t.Errorf("%d px: %d moves: %s", width, len(moved), strings.Join(moved[:min(20, len(moved))], "; "))
		}
	}
}

// TestTasks does the task of each scene as a reader can. It must not be ticked before, and then it
// must be.
func TestTasks(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for id, try := range map[string]string{
		"edge":     `s.try(); s.add(9.5e6, 10); s.add(10.5e6, 10); s.go(12e6)`,
		"log":      `s.add(13e6, 1); s.go(14e6)`,
		"weighted": `s.try(); s.add(9.5e6, 10); s.add(15e6, 10); s.go(17e6)`,
		"bucket":   `type("burst", 10)`,
		"gcra":     `type("burst", 2)`,
		"waiting":  `type("burst", 10); type("within", 10)`,
		"windows":  `type("1.zone", 0)`,
		"whose":    `{ const e = s.find("[data-choice]"); e.value = "token"; e.dispatchEvent(new Event("change")); }`,
		"several":  `type("1.quota", 12); type("1.period", 6)`,
		"flights":  `type("quota", 6)`,
		"retry":    `type("burst", 6)`,
		"load":     `type("burst", 1)`,
		"chat":     `for (let i = 0; i < 4; i++) s.find("form .primary").click()`,
		"replicas": `{ const e = s.find(".count"); e.value = "apart"; e.dispatchEvent(new Event("change")); for (const b of s.root.querySelectorAll("[data-replica]")) b.click(); }`,
		"outage":   `{ s.find("button.down").click(); const e = s.find(".policy"); e.value = "memory"; e.dispatchEvent(new Event("change")); }`,
	} {
		got := eval[struct {
			Before, After bool
			Text          string
		}](p, fmt.Sprintf(`(() => {
			const s = playground.scenes.%s, box = s.find(".task"), done = () => box.classList.contains("done");
			const type = (name, value) => { const e = s.find("[data-number='" + name + "']"); e.value = value; e.dispatchEvent(new Event("input")); };
			s.reset?.(); // the task of scene 1 gives its requests to scene 2
			const before = done();
			%s;
			s.pause();
			return { before, after: done(), text: box.querySelector("output").textContent };
		})()`, id, try))
		if got.Before || !got.After || strings.HasPrefix(got.Text, "Task:") {
			t.Errorf("%s: %+v", id, got)
		}
	}
}

// TestCounts draws pictures again, as a change of the limit does. Crosses that cover each other
// must again be one with their number. Marks must fall where they cannot be misread, and sentences
// must have the numbers of the pictures.
func TestCounts(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	for name, want := range map[string]string{"log": "×12", "load": "37 refused"} {
		for range 2 {
			eval[any](p, fmt.Sprintf("playground.scenes.%s.draw()", name))
			if got := eval[string](p, fmt.Sprintf(`[...document.querySelectorAll("#%s .heap.bad")].map((e) => e.textContent).join()`, name)); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	}
	// A mark that falls is never above its own row, nor at another height of a chart of latencies.
	if wrong := eval[[]string](p, `["several", "whose", "load"].flatMap((id) => {
		const s = playground.scenes[id], [first, ...rest] = s.areas, found = [];
		s.playing = true;
		for (let t = 0; t < s.end; t += 1e5) {
			s.go(t);
			for (const e of s.picture.querySelectorAll(".dot.past > g")) {
				const m = e.firstChild, y = m.outline ? Number(m.getAttribute("d").match(/^M\S+ ([\d.]+)/)[1]) : Number(m.getAttribute("cy"));
				if (rest.some((a) => e.y >= a.top && y < a.top - 6) || id === "load" && Math.abs(y - e.y) > 6) found.push(id + " at " + t + ": " + y);
			}
		}
		s.playing = false;
		return found;
	})`); len(wrong) > 0 {
		t.Errorf("%d marks fall through another row: %v", len(wrong), wrong[:min(5, len(wrong))])
	}
	// What the picture says of the three clients is what the sentence says, with every burst.
	if wrong := eval[[]string](p, `[1, 2, 3, 4, 5, 6].flatMap((burst) => {
		const s = playground.scenes.retry, tenths = (i) => Math.round(s.dots.findLast((d) => d.who === i && d.allowed).t / 1e5);
		s.set("burst", burst);
		const late = tenths(1) - tenths(0), said = s.find("[data-tell]").textContent, refused = s.dots.filter((d) => d.who === 2 && !d.allowed).length;
		return late >= 0 && refused === 0 && said.includes(late ? "is done " + (late / 10).toFixed(1) + " s later" : "at the same time") ? [] : [burst + ": " + late + ", " + refused + ": " + said];
	})`); len(wrong) > 0 {
		t.Errorf("the three clients: %v", wrong)
	}
}

// TestTen sends 10 requests to a replica. The picture must show ten marks, each by itself,
// and again ten after 10 more.
func TestTen(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	for _, width := range []int64{320, 1280} {
		p.do(chromedp.EmulateViewport(width, 800))
		for range 2 {
			p.click("#replicas [data-replica='0']")
			if got := eval[[2]float64](p, `(() => {
				const x = [...document.querySelectorAll("#replicas .mark")].map((e) => e.getBoundingClientRect()).filter((r) => r.left < document.querySelector("#replicas svg").getBoundingClientRect().left + playground.scenes.replicas.picture.clientWidth / 3).map((r) => [r.left, r.right]).sort((a, b) => a[0] - b[0]);
				return [x.length, Math.min(...x.slice(1).map((r, i) => r[0] - x[i][1]))];
			})()`); got[0] != 10 || got[1] < -1 {
				t.Errorf("%d px: %v marks, %.1f px apart; want 10 that do not cover each other", width, got[0], got[1])
			}
		}
	}
}

// TestOutagePage stops the Redis of the scene under each policy, and starts it again.
func TestOutagePage(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	back := map[string]string{ // what the page says of each policy in the 10 s after Redis is back
		"open":   "It does not know what passed meanwhile, and nothing limited that: in the last 10 s 20 requests passed, and the limit is 10.",
		"closed": "Nothing passed meanwhile, so the limit of 10 holds: in the last 10 s 10 requests passed.",
		"memory": "It does not know what the replicas let through meanwhile, at most 9 in any 10 s, so these 10 s may hold up to 19: now 13 requests.",
	}
	for policy, want := range map[string]string{"open": "Replica A answered 10 requests: 10 with 200.", "closed": "Replica A answered 10 requests: 10 with 503.", "memory": "Replica A answered 10 requests: 3 with 200, 7 with 429."} {
		eval[any](p, fmt.Sprintf(`{ const e = document.querySelector("#outage .policy"); e.value = %q; e.dispatchEvent(new Event("change"));
			const down = document.querySelector("#outage button.down"); // Redis stays down when the policy changes
			if (!playground.scenes.outage.down) down.click();
			document.querySelector("#outage [data-replica='0']").click();
			playground.scenes.outage.pause();
		}`, policy))
		if got, want := p.text("#outage button.down"), "Start Redis"; got != want {
			t.Errorf("%s: the button says %q, want %q", policy, got, want)
		}
		if got := p.text("#outage .why"); got != want {
			t.Errorf("%s: got %q, want %q", policy, got, want)
		}
		if got := p.text("#outage [data-tell]"); !strings.HasPrefix(got, "Redis is down") {
			t.Errorf("%s: the page says %q", policy, got)
		}
		if got, want := eval[string](p, `(() => {
			const s = playground.scenes.outage, down = s.find("button.down");
			s.find(".policy").dispatchEvent(new Event("change")); // 10 pass, and then Redis is down
			s.send(0, 10);
			down.click();
			s.pause();
			const told = s.find("[data-tell]").textContent;
			down.click();
			s.pause();
			return told;
		})()`), "Redis decides again, with the counts that it had. "+back[policy]; got != want {
			t.Errorf("%s, after Redis is back: got %q, want %q", policy, got, want)
		}
	}
	// What was called before is not drawn while Redis is down, and the newest request is the last.
	got := eval[struct {
		Lines int
		Marks string
	}](p, `(() => {
		const s = playground.scenes.outage, e = s.find(".policy"), marks = () => [...s.picture.querySelectorAll(".mark")].filter((m) => m.getBoundingClientRect().x < s.picture.getBoundingClientRect().x + s.picture.clientWidth / 3).sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x);
		e.value = "open";
		e.dispatchEvent(new Event("change"));
		s.send(0, 3);
		s.draw();
		s.pause();
		return { lines: s.picture.querySelectorAll(".call").length, marks: marks().map((m) => m.classList.contains("passed") ? "o" : "x").join("") };
	})()`)
	if want := "ooooxooo"; got.Lines != 0 || got.Marks != want {
		t.Errorf("got %+v, want no lines and %s", got, want)
	}
	p.click("#outage .reset")
	if got, want := p.text("#outage button.down"), "Stop Redis"; got != want {
		t.Errorf("after Start over the button says %q, want %q", got, want)
	}
}

// TestWhich chooses limits and answers in the ending, and decides the requests of its table
// again. The code must be that of the limit.
func TestWhich(t *testing.T) {
	t.Parallel()
	p := openWhole(t, serveStatic(t))
	cells := func(row string) []string {
		return eval[[]string](p, fmt.Sprintf(`[...[...document.querySelectorAll("#which tbody tr")].find((tr) => tr.cells[0].textContent === %q).cells].slice(1, 5).map((e) => e.textContent)`, row))
	}
	worst := map[string]int{"Fixed window": 20, "Sliding log": 10, "GCRA": 19} // tested in package scene
	times := eval[[]int64](p, `playground.which.traffic.attack().map(Math.round)`)
	for row, l := range map[string]limit{"Fixed window": {Algorithm: "fixed-window", Quota: 10, Period: 10_000_000}, "Sliding log": {Algorithm: "sliding-log", Quota: 10, Period: 10_000_000}, "GCRA": {Algorithm: "gcra", Quota: 10, Period: 10_000_000, Burst: 10}} {
		state, dots := []quota.State{{}}, []told{}
		for _, at := range times {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: l.limit(), Cost: 1}}}
			tx.Decide(20_834*86_400*1_000_000+at, state)
			dots = append(dots, told{T: at, Allowed: tx.Allowed()})
		}
		n := 0
		for _, d := range dots {
			if d.Allowed {
				n++
			}
		}
		want := fmt.Sprint([]int{peak(dots), worst[row], n, len(dots) - n})
		if got := fmt.Sprint(cells(row)); got != want {
			t.Errorf("%s: got %s, want %s", row, got, want)
		}
	}
	for preset, want := range map[string]string{
		"github": "algorithms.FixedWindow(5000, time.Hour)", "stripe": "algorithms.GCRA(100, time.Second)",
		"openai": "algorithms.Calendar(10000, algorithms.Day, time.UTC)", "login": "algorithms.SlidingLog(5, 15*time.Minute)",
	} {
		p.click("#which [data-preset=" + preset + "]")
		for code, want := range map[string]string{"go": want, "test": "func TestLimit("} {
			if got := p.text("#which ." + code); !strings.Contains(got, want) || !strings.HasPrefix(got, "package main\n\nimport (") {
				t.Errorf("%s: got %s, want %s", preset, got, want)
			}
		}
	}
	for preset, who := range map[string]string{"stripe": "Each API key ", "login": "Each client address "} {
		p.click("#which [data-preset=" + preset + "]")
		if got := p.text("#which .customers"); !strings.HasPrefix(got, who) {
			t.Errorf("%s: got %q, want %s", preset, got, who)
		}
	}
	set := func(name, value string) {
		eval[any](p, fmt.Sprintf(`{ const e = document.querySelector("#which form").elements[%q]; e.value = %q; (e[0] ?? e).dispatchEvent(new Event("input", { bubbles: true })); }`, name, value))
	}
	p.click("#which [data-preset=login]")
	// Answers change the code. Answers that conflict are named, and the link and the text have them.
	if over := eval[int](p, `document.querySelectorAll("#which .over").length`); over == 0 {
		t.Error("with “must never happen” no row is red")
	}
	if over := eval[int](p, `document.querySelectorAll("#which .best .over").length`); over != 0 {
		t.Error("what is recommended is red")
	}
	for name, value := range map[string]string{"whose": "account", "servers": "several", "down": "closed", "back": "daily"} {
		set(name, value)
	}
	for selector, want := range map[string]string{".go": "stack.New(rdb", ".test": "StatusServiceUnavailable", ".yaml": "limits:\n  - name: api\n    key: account # which your program defines", ".customers": "Each account may send 5 requests in any 15 min.", ".given": "“at midnight” is given up", ".answer": "Take Sliding log."} {
		if got := p.text("#which " + selector); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", selector, got, want)
		}
	}
	eval[any](p, `globalThis.copied = ""; navigator.clipboard.writeText = async (text) => { copied = text; }`)
	p.click("#which .text")
	p.wait(`/\nGCRA\t\d+\t9\t/.test(copied) && copied.includes("What to tell your customers: Each account") && copied.endsWith("/which.html?" + location.hash.slice("#which?".length))`)
	p.click("#which [data-copy=customers]")
	p.wait(`copied.startsWith("Each account may ") && document.querySelector("#note").textContent === "Text copied."`)
	p.click("#which .share")
	p.wait(`copied.startsWith(location.origin + "/which.html?quota=5&periods=15&unit=min&burst=&late=refuse&exact=yes&back=daily") && copied.endsWith("/which.html?" + location.hash.slice("#which?".length))`)
	link := eval[string](p, "copied")
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link+"&quota=-1&unit=x&nothing=1&length=1&item=2"))
	p.wait("globalThis.playground?.which")
	if got := p.text("#which .customers"); !strings.HasPrefix(got, "Each account may send 5 requests in any 15 min.") {
		t.Errorf("the link opens with %q", got)
	}
	eval[any](p, `location.hash = "#which?quota=7&whose=key"`) // in a page that is open
	p.wait(`document.querySelector("#which .customers").textContent.startsWith("Each API key may send 7 requests in any 15 min.")`)
	set("quota", "1000000")
	set("periods", "30")
	set("unit", "d")
	p.wait(`document.querySelector("#which .error").textContent === "" && document.querySelector("#which .go").textContent.includes("1000000")`)
	set("periods", "31")
	p.wait(`document.querySelector("#which .error").textContent === "The period: at most 30 days."`)
	const all = `document.querySelector("#which .text").disabled` // there is no answer to copy
	if !eval[bool](p, all) {
		t.Error("Copy all as text would copy the answer to other numbers")
	}
	set("periods", "1")
	if eval[bool](p, all) {
		t.Error("Copy all as text stays disabled")
	}
	set("traffic", "clicks")
	p.wait(`document.querySelector("#which .traffic").textContent.startsWith("You have sent no requests yet.")`)
}

// TestShare copies the link to a scene and opens it. The scene must be as it was.
func TestShare(t *testing.T) {
	t.Parallel()
	base := serveStatic(t)
	p := openWhole(t, base)
	eval[any](p, `{ const s = playground.scenes.edge; s.try(); s.pause(); s.set("quota", 4); for (const t of [8e6, 9e6, 11e6]) s.add(t); s.go(12.5e6); }`)
	for answer, want := range map[string]string{"async () => {}": "Link copied.", "async () => { throw new Error(); }": "The browser does not let this page copy. The link is in the address bar."} {
		eval[any](p, fmt.Sprintf("{ navigator.clipboard.writeText = %s }", answer))
		p.click("#edge .share")
		p.wait(fmt.Sprintf(`document.querySelector("[role=status]#note").textContent === %q`, want))
	}
	p.wait(`location.hash === "#edge?quota=4&period=10&at=12.5&requests=8,9,11"`)
	link := eval[string](p, `import("./story/link.js").then((m) => m.link(playground.scenes.edge))`)
	if want := base + "/edge.html?quota=4&period=10&at=12.5&requests=8,9,11"; link != want {
		t.Errorf("the link is %s, want %s", link, want)
	}
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	p.wait(`globalThis.playground?.ready && location.hash.startsWith("#edge?")`)
	if got, want := eval[string](p, `JSON.stringify([playground.scenes.edge.limits[0].quota, playground.scenes.edge.now, playground.scenes.edge.dots.map((d) => d.t)])`), "[4,12500000,[8000000,9000000,11000000]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// In a page that is open, a link does the same, and a scene that played stands still.
	eval[any](p, `{ playground.scenes.edge.play(); location.hash = "#edge?quota=5&period=12&at=7&requests=1,2"; }`)
	p.wait(`(({ limits: [l], now, dots, playing }) => JSON.stringify([l.quota, l.period, now, dots.length, playing]))(playground.scenes.edge) === "[5,12000000,7000000,2,false]"`)
	eval[any](p, `location.hash = "#which?quota=7&periods=3&unit=h"`)
	p.wait(`document.querySelector("#which [name=quota]").value === "7" && document.querySelector("#which .go").textContent.includes("(7, 3*time.Hour)")`)
	for _, wrong := range []string{"#edge?quota=1e9&at=-3&requests=x,1", "#edge?", "#nothing?quota=1"} {
		p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(base+"/"+wrong))
		p.wait("globalThis.playground?.ready")
		p.retold("edge")
	}
}

// TestFile opens the page from a file. It must say why the pictures stand still, and not
// that it loads.
func TestFile(t *testing.T) {
	t.Parallel()
	if browser == nil {
		open(t, "") // skips
	}
	serveStatic(t)
	ctx, cancel := chromedp.NewContext(browser) // a tab of its own: the browser reports that it blocks modules
	defer cancel()
	page := url.URL{Scheme: "file", Path: filepath.Join(temporary, "static", "index.html")}
	if err := chromedp.Do(ctx, chromedp.Navigate(page.String())); err != nil {
		t.Fatal(err)
	}
	got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.getElementById("loading").textContent + document.querySelectorAll("#gate .mark").length`))
	if err != nil || !strings.Contains(got, " Opened from a file, ") || strings.HasSuffix(got, ".0") {
		t.Errorf("got %q, %v", got, err)
	}
}

// hide is a script that hides the page, and show one that shows it again.
const (
	hide = `Object.defineProperty(document, "hidden", { value: true, configurable: true }); document.dispatchEvent(new Event("visibilitychange"))`
	show = `delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))`
)

// TestHidden hides try.html and the story while they play. They must stand still meanwhile.
func TestHidden(t *testing.T) {
	t.Parallel()
	for path, clock := range map[string]string{"/try.html#pattern=steady&rate=20&algorithms=gcra": "playground.frame?.decided", "/": "playground.scenes?.gate.now"} {
		p := open(t, "")
		p.do(chromedp.Navigate(serveStatic(t) + path))
		p.wait("globalThis.playground && " + clock + " > 5")
		p.wait("(globalThis.first ??= " + clock + ") < " + clock)
		eval[any](p, hide)
		before, after := 0.0, eval[float64](p, clock)
		for i := 0; i < 10 && before != after; i++ { // a call of the timer may have begun
			time.Sleep(time.Second) // 20 requests, if it played
			before, after = after, eval[float64](p, clock)
		}
		if after != before {
			t.Errorf("%s: the hidden page goes on from %v to %v", path, before, after)
		}
		eval[any](p, show)
		p.wait(fmt.Sprintf("%s > %v", clock, before))
	}
}

// TestBoxes: a number that is out of range becomes the nearest that is in range when the reader
// leaves the box, not what the box held after its first digit, and the page says so.
func TestBoxes(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	for typed, want := range map[string]struct {
		n    int
		note string
	}{"1000": {12, "Requests in a window: at most 12."}, "13": {12, "Requests in a window: at most 12."}, "4": {4, ""}, "0": {1, "Requests in a window: at least 1."}, "2.4": {2, "Requests in a window: a whole number."}} {
		got := eval[[]any](p, fmt.Sprintf(`(() => {
			const s = playground.scenes.edge, e = s.find("[data-number=quota]"), typed = %q;
			s.reset();
			document.querySelector("#note").textContent = "";
			for (let i = 1; i <= typed.length; i++) {
				if (typed[i - 1] === ".") continue;
				e.value = typed.slice(0, i);
				e.dispatchEvent(new Event("input", { bubbles: true }));
			}
			e.dispatchEvent(new Event("change", { bubbles: true }));
			return [Number(e.value), s.limits[0].quota, document.querySelector("#note").textContent];
		})()`, typed))
		if want := fmt.Sprint([]any{want.n, want.n, want.note}); fmt.Sprint(got) != want {
			t.Errorf("after %s: got the box, the limit and the note %v, want %s", typed, got, want)
		}
	}
}

// TestLate presses the button of a tape just after the tape has ended. The press was meant to pause,
// so the tape must not begin again; a later press begins again.
func TestLate(t *testing.T) {
	t.Parallel()
	p := openStory(t, serveStatic(t))
	eval[any](p, `{ const s = playground.scenes.log; s.find(".stage").scrollIntoView(); s.go(s.end - 3e5); s.play(); }`)
	if got := eval[[]any](p, `new Promise((next) => {
		const s = playground.scenes.log, button = s.find(".play"), began = performance.now(), look = () => {
			if (s.playing) return requestAnimationFrame(look);
			const ended = s.ended > began;
			s.ended = performance.now(); // however late this frame is, the press comes just after the end
			button.click();
			next([ended, s.now === s.end, s.playing, button.textContent, s.find(".send").textContent]);
		};
		look();
	})`); fmt.Sprint(got) != "[true true false Play again Send one at 0 s]" {
		t.Errorf("after a late press: %v", got)
	}
	p.wait(`(playground.scenes.log.find(".play").click(), playground.scenes.log.playing)`)
}
