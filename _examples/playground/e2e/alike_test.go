package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/_examples/playground/scene"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// serveStatic serves the static page and returns its URL.
func serveStatic(t *testing.T) string {
	t.Helper()
	handler, err := static()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

// A list is a quota.State as the page keeps it.
type list []int64

func listOf(s quota.State) list {
	l := list{s.At, s.A, s.B, s.C}
	for _, e := range s.Log {
		l = append(l, e.At, e.Sum)
	}
	return l
}

// A question is a scene.Question as the page asks it, and an answer is what it gets.
type (
	question struct {
		Now     int64          `json:"now"`
		Within  int64          `json:"within"`
		Most    int64          `json:"most"`
		Charges []scene.Charge `json:"charges"`
		States  []list         `json:"states"`
	}
	answer struct {
		Error         string
		Allowed       bool
		Wait, Granted int64
		Decisions     []scene.Decision
		States        []list
	}
)

// TestQuestions asks the library in the page and the library in this process the same
// questions. The answers must be equal.
func TestQuestions(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html")
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range ten {
		name := l.Algorithm.Name()
		now, states := int64(1_800_000_000_000_000), make([]quota.State, 2)
		var questions []question
		var want []answer
		for range 300 {
			now += rng.Int64N(1_500_000)
			q := scene.Question{
				Now: now, Within: rng.Int64N(2) * rng.Int64N(4_000_000), Most: rng.Int64N(2) * rng.Int64N(4), States: states,
				Charges: []scene.Charge{
					{Algorithm: name, Quota: 10, Period: 10_000_000, Burst: 10, Key: "a", Cost: rng.Int64N(4)},
					{Algorithm: name, Quota: 7, Period: 3_000_000, Burst: 9, Key: "b", Cost: rng.Int64N(5) - 1},
				},
			}
			if q.Most > 0 { // then no cost is negative, and no request waits
				q.Within, q.Charges[1].Cost = 0, max(1, q.Charges[1].Cost)
			}
			questions = append(questions, question{q.Now, q.Within, q.Most, q.Charges, []list{listOf(states[0]), listOf(states[1])}})
			reply := scene.Decide(&q)
			if reply.Error != "" {
				t.Fatalf("%s: %+v: %s", name, q, reply.Error)
			}
			states = reply.States
			want = append(want, answer{"", reply.Allowed, reply.Wait, reply.Granted, reply.Decisions, []list{listOf(states[0]), listOf(states[1])}})
		}
		text, _ := json.Marshal(questions)
		got := eval[[]answer](p, string(text)+".map((question) => weir.decide(question))")
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("%s: asked %+v\nthe page says %+v\nwant          %+v", name, questions[i], got[i], want[i])
			}
		}
	}
}

// TestAlike runs the same scene in the page and in this process. Both must have the same
// requests and decisions.
func TestAlike(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes")
	for _, pattern := range []string{"steady", "bursts", "boundary", "spammer"} {
		link := "paused=yes&quota=7&burst=9&algorithms=" + all + "&pattern=" + pattern
		p.show(link)
		p.steps(1)

		values, _ := url.ParseQuery(link)
		s, err := scene.New(t.Context(), "here", values, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows := hits(t, s)
		s.Do(url.Values{"do": {"step"}})
		for i, hits := range hits(t, s) {
			want := slices.Concat(rows[i], hits)
			name := ten[i].Algorithm.Name()
			got := eval[[][7]int64](p, `playground.dots("`+name+`").map((d) => [d.t, d.user, d.ok ? 1 : 0, d.remaining, d.retry, d.reset, d.wait])`)
			if len(got) < 14 || !slices.Equal(got, want) {
				t.Errorf("%s, %s: the page shows\n%v, want\n%v", pattern, name, got, want)
			}
		}
	}
}

// hits returns the requests in the frames of s.Events, by row.
func hits(t *testing.T, s *scene.Scene) (rows [][][7]int64) {
	t.Helper()
	for _, event := range s.Events() {
		if event.Name != "frame" {
			continue
		}
		text, _ := json.Marshal(event.Data)
		var frame struct{ Rows []struct{ Hits [][7]int64 } }
		if err := json.Unmarshal(text, &frame); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, make([][][7]int64, len(frame.Rows)-len(rows))...)
		for i, row := range frame.Rows {
			rows[i] = append(rows[i], row.Hits...)
		}
	}
	return rows
}

// TestShared sends requests to the replicas of the page and decides them again in this
// process. A replica that asks the store must decide the same. A replica that answers
// without the store must refuse nothing that would pass.
func TestShared(t *testing.T) {
	t.Parallel()
	p := open(t, serveStatic(t)+"/try.html#paused=yes")
	for _, hybrid := range []bool{true, false} {
		calls := eval[[]scene.Call](p, fmt.Sprintf(`(async () => {
			weir.share(3, %v ? "hybrid" : "shared");
			const charge = JSON.stringify({ algorithm: "sliding-log", quota: 5, period: 1e6, key: "visitor", cost: 1 }), calls = [];
			for (let i = 0; i < 150; i++) { // ten at a time, more than the limit, however slow the machine is
				calls.push(JSON.parse(weir.take(i %% 3, charge)));
				if (i %% 10 === 9) await new Promise((next) => setTimeout(next, 150));
			}
			return calls;
		})()`, hybrid))
		limit, state := algorithms.SlidingLog(5, time.Second), []quota.State{{}}
		asked, passed := 0, 0
		for i, c := range calls {
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "any", Limit: limit, Cost: 1}}}
			tx.Decide(c.At, state)
			d := tx.Decisions[0]
			want := scene.Decision{Allowed: d.Allowed, Remaining: d.Remaining, RetryAfter: d.RetryAfter.Microseconds(), NextAfter: d.NextAfter.Microseconds(), ResetAfter: d.ResetAfter.Microseconds()}
			switch {
			case c.Asked && c.Decision != want, !c.Asked && (c.Allowed || d.Allowed || c.RetryAfter < want.RetryAfter):
				t.Fatalf("hybrid %v, call %d: got %+v, want %+v", hybrid, i, c, want)
			case c.Asked:
				asked++
			}
			if c.Allowed {
				passed++
			}
		}
		if passed < 10 || hybrid == (asked == len(calls)) {
			t.Errorf("hybrid %v: of %d calls %d asked and %d passed", hybrid, len(calls), asked, passed)
		}
	}
}
