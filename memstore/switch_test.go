package memstore_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestSwitchedTiers: if a client switches between two tiers of one name, it gets no more units
// than the larger tier alone admits in the worst case.
func TestSwitchedTiers(t *testing.T) {
	for _, tiers := range [][2]quota.Limit{
		{algorithms.GCRA(60, time.Minute), algorithms.GCRA(600, time.Minute)},
		{algorithms.TokenBucket(60, 60, time.Minute), algorithms.TokenBucket(600, 600, time.Minute)},
		{algorithms.SlidingWindow(60, time.Minute), algorithms.SlidingWindow(600, time.Minute)},
		{algorithms.SlidingLog(60, time.Minute), algorithms.SlidingLog(600, time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			got := 0
			unit := func(l quota.Limit) bool {
				allowed := take(t, store, charge("k", l, 1)).Allowed()
				if allowed {
					got++
				}
				return allowed
			}
			// Whenever the smaller tier admits a unit, spend all that the larger tier has
			// left.
			for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
				if unit(tiers[0]) {
					for unit(tiers[1]) {
					}
				}
			}
			if got > 1199 {
				t.Errorf("%v and %v: got %d in a minute, want 1199 at most", tiers[0], tiers[1], got)
			}
		})
	}
}

// TestSwitchedPeriods: a store decides as Transaction.Decide does, even if the period of a
// limit changes between charges. To do so, the store must remember the Until of each state.
func TestSwitchedPeriods(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 12))
	for kind := range switchedLimits(1, 1) {
		synctest.Test(t, func(t *testing.T) {
			for range 200 {
				p := switchedPair{r: r, seed: seed, store: memstore.New(memstore.Options{MaxKeys: 8}), state: make([]quota.State, 1)}
				for range 40 {
					p.step(t, kind)
				}
			}
		})
	}
}

func switchedLimits(units int64, period time.Duration) []quota.Limit {
	return []quota.Limit{
		algorithms.FixedWindow(units, period), algorithms.AnchoredWindow(units, period), algorithms.SlidingWindow(units, period),
		algorithms.SlidingLog(units, period), algorithms.GCRA(units, period), algorithms.LeakyBucket(units, units, period),
	}
}

// A switchedPair is a store with one key, and the state that the arithmetic gives that key.
type switchedPair struct {
	r     *rand.Rand
	seed  uint64
	store *memstore.Store
	state []quota.State
	end   int64 // when the state ends, in µs since 1970
}

// step decides a charge under a random limit, in the store and by the arithmetic. Then it lets
// time pass.
func (p *switchedPair) step(t *testing.T, kind int) {
	t.Helper()
	r := p.r
	periods := []time.Duration{time.Second, 3 * time.Second, time.Minute, 90 * time.Second, time.Hour}
	l := switchedLimits(1+r.Int64N(10), periods[r.IntN(len(periods))])[kind].Named("l")
	got := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: l, Cost: []int64{0, 1, 1, 1 + r.Int64N(l.Quota), -1}[r.IntN(5)]}}}
	if r.IntN(4) == 0 {
		got.Within = time.Duration(r.Int64N(int64(2 * l.Period)))
	}
	want := quota.Transaction{Charges: got.Charges, Within: got.Within}
	if err := p.store.Take(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMicro()
	if now >= p.end {
		p.state[0] = quota.State{} // a store may forget a state that has ended
	}
	before := fmt.Sprintf("%+v", p.state[0])
	if want.Decide(now, p.state) && got.Charges[0].Cost != 0 {
		p.end = now + want.Decisions[0].ResetAfter.Microseconds()
	}
	if got.Decisions[0] != want.Decisions[0] || got.Wait != want.Wait {
		t.Fatalf("seed %d: %v at %d of %s, cost %d within %v:\ngot  %+v\nwant %+v", p.seed, l, now, before, got.Charges[0].Cost, got.Within, got.Decisions[0], want.Decisions[0])
	}
	time.Sleep([]time.Duration{0, time.Microsecond, got.Decisions[0].NextAfter, time.Duration(r.Int64N(int64(l.Period))).Truncate(time.Microsecond), l.Period, got.Decisions[0].ResetAfter}[r.IntN(6)])
}
