package figures_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A counting store counts its calls. It is the shared store behind Hybrid.
type counting struct {
	quota.Store
	calls int64
}

func (c *counting) Take(ctx context.Context, t *quota.Transaction) error {
	c.calls++
	return c.Store.Take(ctx, t)
}

// TestHybrid draws how many calls of the shared store a client causes if it ignores
// refusals, with Hybrid and without.
func TestHybrid(t *testing.T) {
	const seconds, rate = 60, 100
	type run struct{ calls, admitted int64 }
	attack := func(limit quota.Limit, decorate func(quota.Store) quota.Store) (r run) {
		synctest.Test(t, func(t *testing.T) {
			behind := &counting{Store: memstore.New(memstore.Options{})}
			store := decorate(behind)
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: limit, Cost: 1}}}
			for range seconds * rate {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Fatal(err)
				}
				if tx.Allowed() {
					r.admitted++
				}
				time.Sleep(time.Second / rate)
			}
			r.calls = behind.calls
		})
		return r
	}
	plain := func(s quota.Store) quota.Store { return s }
	hybrid := func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) }
	log, gcra := algorithms.SlidingLog(10, 10*time.Second), algorithms.GCRA(10, 10*time.Second)
	without, with := attack(log, plain), attack(log, hybrid)
	evenly, evenlyWithout := attack(gcra, hybrid), attack(gcra, plain)
	if with.admitted != without.admitted || evenly.admitted != evenlyWithout.admitted {
		t.Errorf("got %d and %d admitted with Hybrid, want %d and %d as without", with.admitted, evenly.admitted, without.admitted, evenlyWithout.admitted)
	}

	d := draw(244, "Calls of the shared store in a minute",
		fmt.Sprintf("A client sends 100 requests a second for a minute, against 10 per 10 seconds. Without Hybrid the shared store is called %d times, "+
			"with Hybrid %d times under GCRA and %d times under a sliding log.", without.calls, evenly.calls, with.calls))
	d.text(16, 52, "soft", "One client sends 100 requests a second, against 10 per 10 s.")
	for i, bar := range []struct {
		name, class string
		run         run
	}{{"with Hybrid, under a sliding log", "less", with}, {"with Hybrid, under GCRA", "less", evenly}, {"without Hybrid", "more", without}} {
		y, long := 80+44*float64(i), max(2, 300*float64(bar.run.calls)/float64(without.calls))
		d.text(16, y, "name", bar.name)
		d.rect(bar.class, 16, y+8, long, 14)
		d.text(16+long+8, y+20, "name", thousands(bar.run.calls))
	}
	d.text(16, 212, "soft", "Less is better.")
	d.text(16, 230, "soft", "The decisions are the same with Hybrid and without.")
	text := d.end()
	wellFormed(t, text)
	current(t, "hybrid.svg", text)
}
