package figures_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// counting is the shared store. It counts calls.
type counting struct {
	weir.Store
	calls int64
}

func (c *counting) Take(ctx context.Context, t *weir.Transaction) error {
	c.calls++
	return c.Store.Take(ctx, t)
}

// TestHybrid draws how many calls of the shared store a client causes that ignores refusals,
// with Hybrid and without.
func TestHybrid(t *testing.T) {
	const seconds, rate = 60, 100
	type run struct {
		calls    []int64 // until the end of each second
		admitted int
	}
	attack := func(limit weir.Limit, decorate func(weir.Store) weir.Store) (r run) {
		synctest.Test(t, func(t *testing.T) {
			behind := &counting{Store: memstore.New(memstore.Options{})}
			store := decorate(behind)
			tx := weir.Transaction{Charges: []weir.Charge{{Rule: "api", Key: "k", Limit: limit, Cost: 1}}}
			for i := range seconds * rate {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Fatal(err)
				}
				if tx.Allowed() {
					r.admitted++
				}
				time.Sleep(time.Second / rate)
				if (i+1)%rate == 0 {
					r.calls = append(r.calls, behind.calls)
				}
			}
		})
		return r
	}
	plain := func(s weir.Store) weir.Store { return s }
	hybrid := func(s weir.Store) weir.Store { return weir.Hybrid(s, 0) }
	log, gcra := algorithms.SlidingLog(10, 10*time.Second), algorithms.GCRA(10, 10*time.Second)
	without, with := attack(log, plain), attack(log, hybrid)
	evenly, evenlyWithout := attack(gcra, hybrid), attack(gcra, plain)
	if with.admitted != without.admitted || evenly.admitted != evenlyWithout.admitted {
		t.Errorf("got %d and %d admitted with Hybrid, want %d and %d as without", with.admitted, evenly.admitted, without.admitted, evenlyWithout.admitted)
	}

	const (
		left, right, top, ground = 64.0, 560.0, 84.0, 324.0
		most                     = seconds * rate
	)
	final := func(r run) int64 { return r.calls[seconds-1] }
	d := draw(364, "Calls of the shared store while a client ignores its limit",
		fmt.Sprintf("A client asks 100 times a second for a minute, against 10 per 10 seconds. Without Hybrid the shared store is called %d times, "+
			"with Hybrid %d times under a sliding log and %d times under GCRA.", final(without), final(with), final(evenly)))
	d.text(16, 52, "soft", "One client asks 100 times a second, against 10 per 10 s. The decisions are the same with Hybrid and without.")
	for n := int64(0); n <= most; n += 2000 {
		y := ground - (ground-top)*float64(n)/most
		d.line("grid", left, y, right, y)
		d.text(left-8, y+4, "soft end", thousands(n))
	}
	x := func(s int) float64 { return left + (right-left)*float64(s)/seconds }
	for s := 0; s <= seconds; s += 10 {
		d.text(x(s), ground+20, "soft mid", fmt.Sprintf("%d s", s))
	}
	plot := func(class string, r run) {
		points := []point{{left, ground}}
		for s, n := range r.calls {
			points = append(points, point{x(s + 1), ground - (ground-top)*float64(n)/most})
		}
		d.printf(`<path class="%s" d="%s"/>`, class, curve(points))
	}
	plot("nocurve", without)
	plot("curve", with)
	plot("curve", evenly)
	label := func(y float64, class, name string, r run) {
		d.text(right+14, y, "name "+class, thousands(final(r))+" calls")
		d.text(right+14, y+17, "soft", name)
	}
	label(top+4, "notext", "without Hybrid", without)
	label(ground-44, "curvetext", "with Hybrid, under GCRA", evenly)
	label(ground-6, "curvetext", "with Hybrid, under a sliding log", with)
	text := d.end()
	wellFormed(t, text)
	current(t, "hybrid.svg", text)
}
