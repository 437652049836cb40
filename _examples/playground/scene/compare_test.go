package scene

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/seed83679106/weir/quota"
)

// attack has 10 requests before an edge of a window of 10 s, and 10 after it.
func attack() (times []int64) {
	for i := range int64(20) {
		times = append(times, 9_050_000+i*100_000)
	}
	return times
}

func compare(t *testing.T, trial Trial) Outcome {
	t.Helper()
	question, _ := json.Marshal(trial)
	text := Compare(question)
	var outcome struct {
		Outcome
		Error string
	}
	if err := json.Unmarshal(text, &outcome); err != nil || outcome.Error != "" {
		t.Fatalf("%s: %v %s", question, err, outcome.Error)
	}
	return outcome.Outcome
}

// TestCompare decides the requests of a trial again, one by one, and compares the counts:
// for single requests, and for several at once.
func TestCompare(t *testing.T) {
	for _, trial := range []Trial{
		{Quota: 10, Period: 10, Times: attack()},
		{Quota: 10, Period: 10, Burst: 3, Times: attack()},
		{Quota: 100, Period: 10, Times: attack(), Each: 10},
		{Quota: 5000, Period: 3600, Times: attack(), Each: 700},
		{Quota: 5000, Period: 86400, Times: attack(), Each: 700},
	} {
		for i, got := range compare(t, trial).Verdicts {
			set := settings{Quota: trial.Quota, Period: trial.Period, Burst: trial.Burst}
			k, state, admitted := &kinds[i], []quota.State{{}}, []int64{}
			if k.name == "calendar" && trial.Period != 86400 {
				if got.Error == "" {
					t.Errorf("%+v: the calendar counts %d s", trial, trial.Period)
				}
				continue
			}
			if k.queue {
				set = set.queued()
				if set.Burst == 1 {
					if got.Error == "" {
						t.Errorf("%+v: a queue in which nobody waits", trial)
					}
					continue
				}
			}
			refused := int64(0)
			for _, at := range trial.Times {
				for range max(1, trial.Each) {
					tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limitOf(&set), Cost: 1}}, Within: k.within(&set)}
					tx.Decide(epoch+at, state)
					if tx.Allowed() {
						admitted = append(admitted, at+tx.Wait.Microseconds())
					} else {
						refused++
					}
				}
			}
			most := int64(0)
			for i := range admitted {
				n := int64(0)
				for _, at := range admitted[:i+1] {
					if at > admitted[i]-trial.Period*second {
						n++
					}
				}
				most = max(most, n)
			}
			if k.queue && trial.Each > 1 {
				most = min(got.Most, trial.Quota) // units that wait together leave one by one
			}
			if got.Admitted != int64(len(admitted)) || got.Refused != refused || got.Most != most || got.Error != "" {
				t.Errorf("%+v: got %+v, want %d admitted, %d refused, %d at most", trial, got, len(admitted), refused, most)
			}
		}
	}
}

// TestCompareNumbers checks the numbers that the story is about.
func TestCompareNumbers(t *testing.T) {
	most, worst := map[string]int64{}, map[string]int64{}
	for _, v := range compare(t, Trial{Quota: 10, Period: 10, Times: attack()}).Verdicts {
		most[v.Algorithm], worst[v.Algorithm] = v.Most, v.Worst
		if v.Breaks {
			t.Errorf("%s breaks an answer that was not given", v.Algorithm)
		}
	}
	if most["fixed-window"] != 20 || most["sliding-log"] != 10 || most["anchored-window"] != 10 || worst["anchored-window"] != 19 {
		t.Errorf("seen %v, can be %v", most, worst)
	}
	for _, v := range compare(t, Trial{Quota: 5000, Period: 3600, Times: attack(), Each: 500}).Verdicts {
		if v.Algorithm == "leaky-bucket" && (v.Wait > patience.Microseconds() || v.Wait < patience.Microseconds()*9/10) {
			t.Errorf("the longest wait in the queue is %d µs, want nearly %v", v.Wait, patience)
		}
	}
	var reply Reply
	for _, wrong := range []string{"", `{"quota":0,"period":1}`, `{"quota":1,"period":2592001}`, `{"quota":2000000,"period":1}`} {
		if err := json.Unmarshal(Compare([]byte(wrong)), &reply); err != nil || reply.Error == "" {
			t.Errorf("%s: %+v, %v", wrong, reply, err)
		}
	}
}

// TestBins sends more requests than there is room for in a picture. Few decisions must be
// made, and the counts must be those of the requests one by one.
func TestBins(t *testing.T) {
	for _, link := range []string{"quota=5000&period=3600&pattern=bursts", "quota=1000000&period=2592000&pattern=boundary", "quota=1000000&period=2592000&pattern=steady&rate=0.6"} {
		set, err := parseLink(link)
		if err != nil {
			t.Fatal(err)
		}
		s := &Scene{ctx: t.Context(), set: set}
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 40 {
			if err := s.advance(s.now + set.Period*second/20); err != nil {
				t.Fatal(err)
			}
		}
		decisions, sent := 0, int64(0)
		for _, r := range s.rows {
			decisions += len(r.hits)
			if r.passed+r.refused != s.rows[0].passed+s.rows[0].refused {
				t.Errorf("%s: %s has decided %d, want as many as the others", link, r.kind.name, r.passed+r.refused)
			}
			sent = r.passed + r.refused
		}
		if decisions > 7*2*410 || sent < set.Quota {
			t.Errorf("%s: %d decisions about %d requests", link, decisions, sent)
		}
		for _, r := range s.rows {
			if bound := 2 * set.Quota; r.peak > bound || r.kind.name == "sliding-log" && r.peak > set.Quota || r.peak < set.Quota/2 {
				t.Errorf("%s: %s let %d pass in a period", link, r.kind.name, r.peak)
			}
		}
		t.Logf("%s: %d requests in %v", link, sent, time.Since(begin))
	}
}

// TestRecount changes the limit and the traffic. The counts must begin anew.
func TestRecount(t *testing.T) {
	for _, change := range []string{"quota=7&paused=yes", "pattern=steady&paused=yes", "rate=9&paused=yes"} {
		set, _ := parseLink("paused=yes")
		s := &Scene{ctx: t.Context(), set: set}
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
		if err := s.advance(s.now + 20*second); err != nil {
			t.Fatal(err)
		}
		if s.rows[0].passed == 0 {
			t.Fatal("nothing passed")
		}
		set, _ = parseLink(change)
		if err := s.change(set); err != nil {
			t.Fatal(err)
		}
		if r := s.rows[0]; r.passed != 0 || r.refused != 0 || r.peak != 0 {
			t.Errorf("after %s: %d passed, %d refused, peak %d", change, r.passed, r.refused, r.peak)
		}
	}
}
