package e2e

import (
	"encoding/json"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"reflect"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/playground/scene"
)

// serveStatic serves the static page and returns where it is.
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

// TestQuestions asks the library in the page what it asks the library here: the
// answers are the same, byte by byte.
func TestQuestions(t *testing.T) {
	p := open(t, serveStatic(t)+"/try.html")
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range ten {
		name := l.Algorithm.Name()
		now, states := int64(1_800_000_000_000_000), make([]weir.State, 2)
		var questions, want []string
		for range 300 {
			now += rng.Int64N(1_500_000)
			question, _ := json.Marshal(scene.Question{
				Now: now, Within: rng.Int64N(2) * rng.Int64N(4_000_000), States: states,
				Charges: []scene.Charge{
					{Algorithm: name, Quota: 10, Period: 10_000_000, Burst: 10, Key: "a", Cost: rng.Int64N(4)},
					{Algorithm: name, Quota: 7, Period: 3_000_000, Burst: 9, Key: "b", Cost: rng.Int64N(5) - 1},
				},
			})
			text := scene.Decide(question)
			var reply scene.Reply
			if err := json.Unmarshal(text, &reply); err != nil || reply.Error != "" {
				t.Fatalf("%s: %s: %v %s", name, question, err, reply.Error)
			}
			states = reply.States
			questions, want = append(questions, string(question)), append(want, string(text))
		}
		text, _ := json.Marshal(questions)
		got := eval[[]string](p, string(text)+".map((question) => weir.decide(question))")
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%s: asked %s\nthe page says %s\nwant          %s", name, questions[i], got[i], want[i])
			}
		}
	}
}

// TestAlike runs a scene in the page and the same scene here: they show the same.
func TestAlike(t *testing.T) {
	base := serveStatic(t)
	for _, pattern := range []string{"steady", "bursts", "boundary", "spammer"} {
		link := "paused=yes&quota=7&burst=9&algorithms=" + all + "&pattern=" + pattern
		p := open(t, base+"/try.html#"+link)
		p.steps(20)

		values, _ := url.ParseQuery(link)
		s, err := scene.New(t.Context(), "here", values, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.Do(url.Values{"do": {"step"}})
		}
		for _, event := range s.Events() {
			if event.Name != "frame" {
				continue
			}
			text, _ := json.Marshal(event.Data)
			var frame struct{ Rows []struct{ Hits [][7]int64 } }
			if err := json.Unmarshal(text, &frame); err != nil {
				t.Fatal(err)
			}
			for i, row := range frame.Rows {
				name := ten[i].Algorithm.Name()
				got := eval[[][7]int64](p, `playground.dots("`+name+`").map((d) => [d.t, d.user, d.ok ? 1 : 0, d.remaining, d.retry, d.reset, d.wait])`)
				if len(got) < 14 || !reflect.DeepEqual(got, row.Hits) {
					t.Errorf("%s, %s: the page shows\n%v, want\n%v", pattern, name, got, row.Hits)
				}
			}
		}
	}
}
