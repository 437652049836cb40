package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPausedHit sends a request while the scene is paused. The dot of the request must be
// drawn in full size.
func TestPausedHit(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes&pattern=none&algorithms=sliding-log")
	p.click("#hit")
	p.wait(`playground.dots("sliding-log").length === 1`)
	p.wait(`document.querySelectorAll(".line .mine").length === 1`)
	dot := eval[struct{ Width, Away, Down float64 }](p, `(() => {
		const mark = document.querySelector(".line .mark.passed").getBoundingClientRect(), head = document.querySelector(".line .head").getBoundingClientRect();
		return { width: mark.width, away: Math.abs(mark.left + mark.width / 2 - head.left), down: mark.top - head.top };
	})()`)
	if dot.Width < 6 || dot.Width > 10 || dot.Away > 3 || dot.Down < 60 { // a disc of 7 px, with its border, which has fallen to its level
		t.Errorf("the dot is %.1f px wide, %.1f px from now and %.1f px down", dot.Width, dot.Away, dot.Down)
	}
}

// TestLimitStep changes the quota. The line of the limit must step at the instant of the
// change, and the past must stay as it was drawn.
func TestLimitStep(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes&algorithms=sliding-log,token-bucket")
	p.steps(5)
	past := `JSON.stringify(["sliding-log", "token-bucket"].map((a) => playground.dots(a).map((d) => d.v)))`
	before := eval[string](p, past)
	eval[any](p, `{ const e = document.getElementById("quota"); e.value = 4; e.dispatchEvent(new Event("change", { bubbles: true })); }`)
	p.wait(`playground.scene.rows[0].capacity === 4`)
	if after := eval[string](p, past); after != before {
		t.Errorf("the past was %s and is %s", before, after)
	}
	limits := eval[[]struct{ T, V int64 }](p, `playground.line("sliding-log").record.limits`)
	if now := eval[int64](p, "playground.frame.now"); len(limits) != 2 || limits[0].V != 10 || limits[1].V != 4 || limits[1].T != now {
		t.Errorf("at %d the limits are %v", now, limits)
	}
}

// TestMany sends 50 requests a second. Marks that would cover each other must be drawn as
// one mark with a number.
func TestMany(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes&pattern=steady&rate=50&algorithms=gcra,sliding-log")
	p.steps(10)
	p.wait(`playground.line("gcra").most > 9 && playground.line("sliding-log").most > 9`)
	p.picture("many-1280-light")
}

// TestHint opens a pattern that begins later. The page must say when the pattern sends its
// next request.
func TestHint(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#pattern=boundary&period=60")
	p.wait(`/^The pattern sends its next request in 1\d s\.$/.test(document.querySelector("#hint").textContent)`)
}

// TestProblem enters no quota. The error text must appear without moving the rows.
func TestProblem(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes")
	p.wait(`document.querySelector("#storeNote").textContent`) // it is above the rows
	where := `JSON.stringify(document.querySelector("#rows").getBoundingClientRect())`
	before := eval[string](p, where)
	eval[any](p, `{ const e = document.getElementById("quota"); e.value = ""; e.dispatchEvent(new Event("change", { bubbles: true })); }`)
	p.wait(`document.querySelector("#problem").textContent === "Quota: a whole number from 1 to 1000000."`)
	if after := eval[string](p, where); after != before {
		t.Errorf("the rows were at %s and are at %s", before, after)
	}
	for us, want := range map[int]string{0: "0.0 s", 1: "1 ms", 49_000: "49 ms", 100_001: "0.2 s", 1_000_000: "1.0 s"} {
		if got := eval[string](p, fmt.Sprintf(`import("/dom.js").then((m) => m.seconds(%d))`, us)); got != want {
			t.Errorf("%d µs are %q, want %q", us, got, want)
		}
	}
}

// TestViews sends the boundary pattern. Requests must wait in a leaky bucket, and the
// calendar must count anew from midnight on.
func TestViews(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes&algorithms=leaky-bucket,calendar&pattern=boundary")
	waits := 0
	for _, d := range p.dots("leaky-bucket") {
		if d.Wait > 0 {
			waits++
		}
	}
	if waits < 5 {
		t.Errorf("%d requests wait", waits)
	}
	if dots := p.dots("calendar"); len(dots) != 20 || passed(dots) != 20 {
		t.Errorf("%d of %d passed around midnight, want 20 of 20", passed(dots), len(dots))
	}
	p.picture("views-1280-light")
}

// TestFold opens the page at the sizes of two telephones, and of a desktop at a zoom of
// 200 %. The first chart must be visible without scrolling.
func TestFold(t *testing.T) {
	t.Parallel()
	base := serveStatic(t)
	for _, size := range [][2]int64{{305, 640}, {360, 740}, {640, 450}} {
		p := open(t, "")
		p.do(chromedp.EmulateViewport(size[0], size[1]))
		p.visit(base + "/try.html")
		if y := eval[float64](p, `document.querySelector(".line").getBoundingClientRect().top`); y > float64(size[1])-60 {
			t.Errorf("%v: the first chart begins at %.0f px", size, y)
		}
		if over := eval[float64](p, `Math.max(document.documentElement.scrollWidth, document.querySelector("#restart").getBoundingClientRect().right)`); over > float64(size[0]) {
			t.Errorf("%v: the page or its last button ends at %.0f px", size, over)
		}
	}
}

// TestOwnLimit sends a request to a scene without the page. The header fields of the
// response must be those of the scene's limit, not of the limit that protects the
// playground.
func TestOwnLimit(t *testing.T) {
	t.Parallel()
	base := serve(t)
	_, data, _ := stream(t, base, "pattern=none")
	var scene struct{ ID string }
	if err := json.Unmarshal([]byte(data), &scene); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(base + "/scenes/" + scene.ID + "/gcra?headers=ietf")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got, want := resp.Header.Get("RateLimit-Policy"), `"api";q=10;w=10`; got != want {
		t.Errorf("RateLimit-Policy: got %q, want %q", got, want)
	}
	for name := range resp.Header {
		if strings.HasPrefix(name, "X-Ratelimit") {
			t.Errorf("there is a field %s", name)
		}
	}
}

// TestNoScript reads the pages. Each must have a text for browsers without JavaScript.
func TestNoScript(t *testing.T) {
	t.Parallel()
	base := serveStatic(t)
	for _, name := range []string{"/", "/try.html"} {
		resp, err := http.Get(base + name)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(text), "<noscript>") {
			t.Errorf("%s says nothing without JavaScript", name)
		}
	}
}

// TestPast opens try.html. The chart must begin with two periods that are over, and their
// counts.
func TestPast(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes")
	past := eval[struct{ Now, Start, First, Dots, Drops int64 }](p, `(() => {
		const { dots, levels: [level] } = playground.line("fixed-window").record, { now } = playground.frame, { start } = playground.scene;
		const drops = level.filter((s, i) => i && s.v === 0 && level[i - 1].v > 0).map((s) => s.t / 1e7 % 1);
		return { now, start, first: dots[0].t, dots: dots.length, drops: drops.filter((x) => x === 0).length };
	})()`)
	if past.Now-past.Start != 20_000_000 || past.First-past.Start > 2_000_000 || past.Dots < 20 || past.Drops < 1 {
		t.Errorf("the lab opens with %+v", past)
	}
}
