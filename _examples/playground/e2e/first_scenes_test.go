package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestFirstScenes tests what scenes 1 to 8 say, one after the other in the same page.
func TestFirstScenes(t *testing.T) {
	t.Parallel()
	base := serveStatic(t)
	p := openStory(t, base)
	for _, test := range []func(*testing.T, *page, string){sayings, queue, chatKeeps, days, anchored} {
		test(t, p, base)
	}
}

// sayings plays the scenes. Their sentences must count what is drawn so far, no number in them may have
// more than two decimals, and those about GCRA must add up.
func sayings(t *testing.T, p *page, _ string) {
	if wrong := eval[[]string](p, `(async () => {
		const { busiest } = await import("./story/world.js"), wrong = [];
		const refused = (s) => s.past.filter((d) => !d.allowed).length, fullest = (s) => busiest(s.passed, s.limits[0].period).n;
		const counts = { // a number of a sentence, and what it must be
			edge: [/ hold (\d+)/, fullest], log: [/has refused (\d+)/, refused], weighted: [/so far hold (\d+)/, fullest], bucket: [/So far (\d+)/, refused],
			waiting: [/and (\d+) (was|were) refused/, refused], windows: [/ of (\d+) requests?/, (s) => s.past.length],
		};
		for (const [id, s] of Object.entries(playground.scenes)) {
			if (!s.go) continue;
			for (let t = 0; t <= s.end; t += s.end / 41) {
				s.go(t);
				const text = s.root.textContent.replace(/\s+/g, " "), say = (what) => wrong.push(id + " at " + t / s.unit + ": " + what);
				for (const [long] of text.matchAll(/.{20}\d\.\d{3}/g)) say(long);
				if (counts[id]) {
					const [pattern, f] = counts[id], got = s.find("[data-tell=lesson]").textContent.match(pattern)?.[1];
					if (got !== String(f(s))) say("the sentence says " + got + ", want " + f(s));
				}
				if (id !== "gcra") continue;
				const n = s.find(".say").textContent.match(/[\d.]+\d|\d/g).map(Number), [ahead, most, free, fit, each] = n;
				if (Math.abs(ahead + free - most) > 1e-9 || Math.floor(free / each + 1e-9) !== fit) say(s.find(".say").textContent);
			}
		}
		return wrong;
	})()`); len(wrong) > 0 {
		t.Errorf("%d sentences are wrong: %s", len(wrong), strings.Join(wrong[:min(9, len(wrong))], "; "))
	}
}

// anchored lets the windows of scene 1 begin with a request. Then, too, almost twice the limit
// must get through, and a link must have the choice.
func anchored(t *testing.T, p *page, base string) {
	eval[any](p, `{ const e = document.querySelector("#edge [data-choice]"); e.value = "anchored-window"; e.dispatchEvent(new Event("change")); }`)
	if got, want := p.text("#edge [data-tell=lesson]"), "Look at the edge at 11 s: 9 requests pass before it, and 10 after it, because the new window counts from 0. So 10 s around the edge hold 19, 1.9 times the limit."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := peak(p.retold("edge")); got != 19 {
		t.Errorf("at most %d in 10 s, want 19", got)
	}
	eval[any](p, `{ const s = playground.scenes.edge; s.try(); s.pause(); s.add(1e6); s.add(10.5e6, 9); s.add(11.1e6, 9); s.go(12e6); }`)
	if got := p.text("#edge .task output"); !strings.HasPrefix(got, "Task: get 19 ") || !strings.HasSuffix(got, "So far: 18.") {
		t.Errorf("after 18 requests the task says %q", got)
	}
	eval[any](p, `{ const s = playground.scenes.edge; s.add(11.8e6); }`)
	if got, want := p.text("#edge .task.done output"), "19 passed within 10 s. The next scene gets the same requests."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.retold("edge")
	link := eval[string](p, `(document.querySelector("#edge .share").click(), location.href)`)
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	p.wait("globalThis.playground?.ready")
	if got := eval[string](p, `playground.scenes.edge.limits[0].algorithm + playground.scenes.edge.dots.length`); got != "anchored-window20" {
		t.Errorf("the link %s opens with %s", link, got)
	}
}

// days sets the limit and the time zone of a calendar.
func days(t *testing.T, p *page, base string) {
	for _, test := range []struct {
		quota, zone    string
		where, promise string
	}{
		{"5", "9", "UTC+9, as in Tokyo", "make 5 calls per calendar day. The day begins at midnight in your time zone (UTC+9, all year)."},
		{"7", "-3.5", "UTC−3:30", "make 7 calls "},
		{"1000", "5.5", "UTC+5:30, as in India", "make 1,000 calls per calendar day. The day begins at midnight in your time zone (UTC+5:30, all year)."},
		{"1000000", "-5", "UTC−5, as in New York in winter", "make 1,000,000 calls "},
		{"1", "13.9", "UTC+14", "make 1 call per"}, // 13.9 is no quarter of an hour
		{"999983", "0", "UTC, as in London in winter", "make 999,983 calls "},
	} {
		eval[any](p, fmt.Sprintf(`for (const [name, value] of [["quota", %q], ["1.zone", %q]]) {
			const e = document.querySelector("#windows [data-number='" + name + "']");
			e.value = value;
			e.dispatchEvent(new Event("input"));
			e.dispatchEvent(new Event("change"));
		}`, test.quota, test.zone))
		p.retold("windows")
		if got := p.text("#windows [data-tell=zone]"); got != test.where {
			t.Errorf("%s hours: got %q, want %q", test.zone, got, test.where)
		}
		if wide := eval[float64](p, `document.querySelector("#windows .rule").getBoundingClientRect().right - document.querySelector("#windows .words").getBoundingClientRect().right`); wide > 0.5 {
			t.Errorf("%s hours: the sentence is %.0f px too wide", test.zone, wide)
		}
		if got := p.text("#windows [data-tell=contract]"); !strings.Contains(got, test.promise) {
			t.Errorf("got %q, want %q", got, test.promise)
		}
		if got := eval[[]int](p, `playground.scenes.windows.limits.map((l) => Math.max(...playground.scenes.windows.dots.map((d) => l.quota - d.decisions[playground.scenes.windows.limits.indexOf(l)].remaining)))`); fmt.Sprint(got) != fmt.Sprintf("[%[1]s %[1]s %[1]s %[1]s]", test.quota) {
			t.Errorf("of %s requests a day, at most %v pass", test.quota, got)
		}
	}
	eval[any](p, `globalThis.copied = ""; navigator.clipboard.writeText = async (text) => { copied = text; }`)
	p.click("#windows [data-copy]")
	p.wait(`copied.startsWith("Each account may make 999,983 calls per calendar day.") && document.querySelector("#note").textContent === "Sentence copied."`)
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(base+"/#windows?quota=5000&1.zone=5.5&at=40"))
	p.wait("globalThis.playground?.ready")
	if got := eval[string](p, `JSON.stringify([playground.scenes.windows.limits[3].quota, playground.scenes.windows.limits[1].zone, playground.scenes.windows.dots[0].most])`); got != "[5000,5.5,1000]" {
		t.Errorf("the link opens with %s", got)
	}
	p.retold("windows")
}

// queue: a refusal says which limit of the queue it exceeds.
func queue(t *testing.T, p *page, _ string) {
	for _, test := range []struct {
		places, wait int
		want         string
	}{{2, 10, "All 2 places are taken."}, {10, 2, "It would wait 2.2 s, more than 2.0 s."}} {
		got := eval[[]string](p, fmt.Sprintf(`(() => {
			const s = playground.scenes.waiting;
			s.set("burst", %d);
			s.set("within", %d);
			s.go(1e9);
			return s.dots.filter((d) => !d.allowed).map((d) => s.describe(d));
		})()`, test.places, test.wait))
		p.retold("waiting")
		if len(got) == 0 || !strings.Contains(strings.Join(got, " "), test.want) {
			t.Errorf("%+v: got %q", test, got)
		}
		for _, text := range got {
			if strings.Contains(text, "places") != strings.Contains(test.want, "places") {
				t.Errorf("%+v: got %q", test, text)
			}
		}
	}
}

// chatKeeps: after ten minutes the chat still has the messages of the reader, and its limit has
// counted them.
func chatKeeps(t *testing.T, p *page, _ string) {
	got := eval[struct {
		Mine, Lines int
		You         string
		Said        []string
	}](p, `(() => {
		const s = playground.scenes.chat;
		for (let i = 0; i < 5; i++) s.find("form .primary").click();
		s.pause();
		s.until(s.now + 600e6);
		const said = [...s.room.querySelectorAll("li.anna, li.ben")].map((e) => e.textContent);
		return { mine: s.room.querySelectorAll("li.you").length, lines: s.room.children.length, you: s.users.querySelector("[data-user=you] span").textContent, said };
	})()`)
	if got.Mine != 4 || got.Lines > 100 || got.You != "may send 3; 2 refused" { // two refusals are one line
		t.Errorf("after ten minutes: %+v", got)
	}
	for _, text := range got.Said {
		if strings.Contains(text, "hi all") {
			t.Error("the chat begins again")
		}
	}
}
