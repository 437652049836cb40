package weir_test

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestShadow: a rule in shadow decides as an enforced rule would, but refuses no request
// and writes no header fields. It charges no request that another rule refuses.
func TestShadow(t *testing.T) {
	var events []weir.Event
	for _, enforce := range []weir.Enforcement{{}, weir.Percent(0)} {
		events = events[:0]
		l := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules: []weir.Rule{
				{Name: "old", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)}},
				{Name: "new", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, time.Hour)}, Enforce: enforce},
			},
			Observe: func(e weir.Event) {
				copied := *e.Transaction
				copied.Decisions = append([]quota.Decision(nil), copied.Decisions...)
				e.Transaction = &copied
				events = append(events, e)
			},
		})
		h := l.Handler(served)
		var statuses []int
		for range 7 {
			res := do(h, ask("/", "192.0.2.1:4"))
			statuses = append(statuses, res.StatusCode)
			if want := map[weir.Enforcement]string{{}: "2", weir.Percent(0): "5"}[enforce]; res.Header.Get("X-RateLimit-Limit") != want {
				t.Errorf("enforced for %v: got X-RateLimit-Limit %q, want %s", enforce, res.Header.Get("X-RateLimit-Limit"), want)
			}
		}
		want := map[weir.Enforcement]string{{}: "[200 200 429 429 429 429 429]", weir.Percent(0): "[200 200 200 200 200 429 429]"}[enforce]
		if got := fmt.Sprint(statuses); got != want {
			t.Errorf("enforced for %v: got %s, want %s", enforce, got, want)
		}
		var seen []bool
		for _, e := range events {
			if e.Shadow {
				seen = append(seen, e.Transaction.Allowed())
			}
		}
		if want := map[weir.Enforcement]string{{}: "[]", weir.Percent(0): "[true true false false false]"}[enforce]; fmt.Sprint(seen) != want {
			t.Errorf("enforced for %v: got decisions %v in shadow, want %s", enforce, seen, want)
		}
	}
}

// TestShadowWaits: if all rules are in shadow, Observe gets the waits that MaxWait would
// cause, but no request is delayed or counted in MaxWaiting.
func TestShadowWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		start := time.Now()
		h := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules:   []weir.Rule{{Name: "new", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}, Enforce: weir.Percent(0)}},
			MaxWait: 3 * time.Second, MaxWaiting: 1,
			Observe: func(e weir.Event) {
				seen = append(seen, fmt.Sprint(e.Shadow, e.Transaction.Allowed(), e.Transaction.Wait))
			},
		}).Handler(served)
		for range 5 {
			if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 200 {
				t.Errorf("got %d, want 200", res.StatusCode)
			}
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("requests were delayed by %v", d)
		}
		// An enforced rule would delay the requests by these waits.
		if want := "[true true 0s true true 1s true true 2s true true 3s true false 0s]"; fmt.Sprint(seen) != want {
			t.Errorf("got %v, want %s", seen, want)
		}
	})
}

// TestRamp: a rule is enforced for the percentage of keys that Enforce says. The keys are the same
// in every Limiter, and a key stays enforced as the percentage rises.
func TestRamp(t *testing.T) {
	const keys = 10_000
	enforced := func(percent float64) map[int]bool {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Hour)}, Enforce: weir.Percent(percent),
				Cost: func(*http.Request) int64 { return 2 }}},
		}).Handler(served)
		is := map[int]bool{}
		for k := range keys {
			if do(h, ask("/", "192.0.2.1:4", "Key", fmt.Sprint("user", k))).StatusCode == 429 {
				is[k] = true
			}
		}
		return is
	}
	var before map[int]bool
	for _, percent := range []float64{0, 10, 25, 50, 99, 100} {
		now, share := enforced(percent), percent/100
		want := keys * share
		if diff := math.Abs(float64(len(now)) - want); diff > 5*math.Sqrt(keys*share*(1-share)) {
			t.Errorf("%v%%: got %d keys of %d enforced, want about %v", percent, len(now), keys, want)
		}
		for k := range before {
			if !now[k] {
				t.Fatalf("%v%%: key %d was enforced before and is not now", percent, k)
			}
		}
		before = now
	}
}
