package algorithms_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// everyAlgorithm returns one limit of each algorithm, except that it returns two limits of
// Calendar and none of InFlight.
func everyAlgorithm(units, burst int64, period time.Duration) []quota.Limit {
	return append(withoutParameters(units, burst, period),
		algorithms.Calendar(units, algorithms.Day, nil),
		algorithms.Calendar(units, algorithms.Month, time.FixedZone("", 3600)))
}

// The function after returns the state after a charge, the decision on a cost of 0 before the
// charge, and the decision on the charge.
func after(s quota.State, l quota.Limit, now, cost int64) (quota.State, quota.Decision, quota.Decision) {
	_, look := l.Algorithm.Take(s, &l, now, 0)
	next, d := l.Algorithm.Take(s, &l, now, cost)
	return next, look, d
}

// TestChangedQuota: after a change of the quota, units that were spent remain spent and the
// new quota holds at once, for every algorithm.
func TestChangedQuota(t *testing.T) {
	const now = 1_700_000_000_000_000
	tests := []struct{ before, spent, now, remaining int64 }{
		{10, 4, 10, 6},
		{10, 4, 20, 16}, // the quota is raised
		{10, 10, 11, 1},
		{10, 4, 5, 1}, // the quota is lowered
		{10, 4, 4, 0},
		{10, 9, 3, 0}, // the spent units exceed the new quota
		{1_000_000, 600_000, 2_000_000, 1_400_000}, // the ticks of a unit change too
		{1_000_000, 600_000, 700_000, 100_000},
	}
	for _, test := range tests {
		limits := everyAlgorithm(test.before, test.before, 24*time.Hour)
		for i, changed := range everyAlgorithm(test.now, test.now, 24*time.Hour) {
			s, _, d := after(quota.State{}, limits[i], now, test.spent)
			if !d.Allowed {
				t.Fatalf("%v refuses %d units", limits[i], test.spent)
			}
			_, look, d := after(s, changed, now, test.remaining+1)
			if look.Remaining != test.remaining || d.Allowed {
				t.Errorf("%v with %d spent, then %v: got %d remaining, one more allowed: %v; want %d, false",
					limits[i], test.spent, changed, look.Remaining, d.Allowed, test.remaining)
			}
			if _, _, d = after(s, changed, now, test.remaining); !d.Allowed {
				t.Errorf("%v with %d spent, then %v: refuses %d units, though as many remain", limits[i], test.spent, changed, test.remaining)
			}
		}
	}
}

// TestChangedBurst: after a change of burst and quota, a meter keeps its debt and drains it
// at the new rate. If the debt is above the new burst, the next request waits only as
// long as if the debt were equal to the new burst.
func TestChangedBurst(t *testing.T) {
	const now = 1_700_000_000_000_000
	tests := []struct {
		before, spent, now int64
		quota              int64 // units per second after the change; before it, 10
		remaining          int64
		next               time.Duration
	}{
		{20, 5, 30, 10, 25, 100 * time.Millisecond},
		{20, 5, 8, 10, 3, 100 * time.Millisecond},
		{20, 20, 8, 10, 0, 100 * time.Millisecond},
		{20, 20, 25, 10, 5, 100 * time.Millisecond},
		{20, 5, 20, 2, 15, 500 * time.Millisecond},
		{20, 5, 20, 50, 15, 20 * time.Millisecond},
		{20, 20, 4, 1, 0, time.Second},
	}
	for _, test := range tests {
		for i := range 3 {
			l := withoutParameters(10, test.before, time.Second)[i]
			changed := withoutParameters(test.quota, test.now, time.Second)[i]
			s, _, _ := after(quota.State{}, l, now, test.spent)
			_, look, _ := after(s, changed, now, 1)
			if look.Remaining != test.remaining || look.NextAfter != test.next {
				t.Errorf("%v with %d spent, then %v: got %d remaining, one more after %v, want %d, %v",
					l, test.spent, changed, look.Remaining, look.NextAfter, test.remaining, test.next)
			}
		}
	}
}

// TestChangesStaySound changes the limit of a key at random while a greedy client charges
// the key. From each change on, the key admits no more at once than a new key does, and
// no more in any span of the period than the worst case of the new limit. ResetAfter is
// at most twice the longest period, or twice the time in which the new limit drains the
// largest burst, whichever is longer.
func TestChangesStaySound(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 6))
	for range 1500 {
		for i := range withoutParameters(1, 1, time.Second) {
			c := changing{r: r, now: 1_700_000_000_000_000 + r.Int64N(1e9), states: make([]quota.State, 1)}
			for range 5 {
				l := randomOfKind(r, i)
				h, err := c.use(l, 12)
				if err != nil {
					t.Fatalf("seed %d: %v: %v", seed, l, err)
				}
				if got, claim := h.most(l.Period.Microseconds()), worst[l.Algorithm.Name()](l); got > claim {
					t.Fatalf("seed %d: %v: got %d units in a span of the period since the change, want at most %d", seed, l, got, claim)
				}
			}
		}
	}
}

// randomOfKind returns a limit under the i-th algorithm.
func randomOfKind(r *rand.Rand, i int) quota.Limit {
	period := time.Duration(1+r.Int64N(100)) * time.Microsecond
	if r.IntN(3) == 0 {
		period = time.Duration(1+r.Int64N(100)) * time.Second
	}
	units := 1 + r.Int64N(20)
	if r.IntN(8) == 0 {
		units, period = 1_000_000*(1+r.Int64N(3)), 24*time.Hour
	}
	return withoutParameters(units, 1+r.Int64N(2*units), period)[i]
}

// A changing is a key whose limit changes.
type changing struct {
	r       *rand.Rand
	now     int64
	states  []quota.State
	largest int64         // the largest capacity of the key's limits: a debt of that size may be left
	longest time.Duration // the longest period of the key's limits
}

// use charges the key under l, often for all that remains, and checks the decision on a cost
// of 0 before each charge. It returns the charges that were spent.
func (c *changing) use(l quota.Limit, steps int) (h history, err error) {
	k := newKey(l)
	c.largest, c.longest = max(c.largest, k.burst), max(c.longest, l.Period)
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}}
	for range steps {
		tx.Charges[0].Cost = 0
		tx.Decide(c.now, make([]quota.State, 1))
		fresh := tx.Decisions[0]
		tx.Decide(c.now, c.states)
		d := tx.Decisions[0]
		if d.Remaining > fresh.Remaining || d.Remaining < 0 || d.NextAfter < 0 || d.ResetAfter < 0 || d.NextAfter > d.ResetAfter {
			return nil, fmt.Errorf("the state %+v gives the impossible decision %+v", c.states[0], d)
		}
		if worst := 2 * max(c.longest, time.Duration(max(1, (c.largest+k.quota-1)/k.quota))*l.Period); d.ResetAfter > worst {
			return nil, fmt.Errorf("the state %+v has ResetAfter %v, want at most %v", c.states[0], d.ResetAfter, worst)
		}
		if tx.Charges[0].Cost = d.Remaining; d.Remaining > 0 && c.r.IntN(3) > 0 {
			if !tx.Decide(c.now, c.states) {
				return nil, fmt.Errorf("a charge of Remaining is refused: %+v", tx.Decisions[0])
			}
			h = append(h, spending{c.now, d.Remaining})
		}
		c.now += []int64{0, 1, d.NextAfter.Microseconds(), k.period - 1, c.r.Int64N(k.period + 1)}[c.r.IntN(5)]
	}
	return h, nil
}

// absurd returns a number that only a broken store can hold.
func absurd(r *rand.Rand, now int64) int64 {
	edges := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1, quota.MaxTicks, -quota.MaxTicks,
		quota.MaxTicks + 1, 1 << 53, 1<<53 + 1, 1 << 62, now, now + 1, now - 1, 7}
	if n := r.IntN(len(edges) + 3); n < len(edges) {
		return edges[n]
	}
	return int64(r.Uint64()) >> r.IntN(64)
}

// TestAbsurdStates: no algorithm panics or hangs, whatever state a store returns.
func TestAbsurdStates(t *testing.T) {
	berlin := mustLoad(t, "Europe/Berlin")
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 7))
	const now = 1_700_000_000_000_000
	limits := slices.Concat(everyAlgorithm(10, 3, time.Minute), everyAlgorithm(1, 1, time.Microsecond),
		everyAlgorithm(1<<20, 1<<20, 1<<30*time.Microsecond), everyAlgorithm(1, 1<<50, time.Microsecond), everyAlgorithm(1, 1, 1<<50*time.Microsecond),
		[]quota.Limit{algorithms.Calendar(3, algorithms.Day, berlin), algorithms.Calendar(3, algorithms.Week, berlin)})
	for _, l := range limits {
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		capacity := newKey(l).burst
		for range 3000 {
			states := []quota.State{{At: absurd(r, now), A: absurd(r, now), B: absurd(r, now)}}
			for range r.IntN(4) {
				states[0].Log = append(states[0].Log, quota.LogEntry{At: absurd(r, now), Sum: absurd(r, now)})
			}
			s := states[0]
			s.Log = slices.Clone(s.Log)
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("seed %d: %v: panic %v for the state %+v", seed, l, p, s)
					}
				}()
				tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}}
				for range 4 {
					tx.Charges[0].Cost = []int64{0, 1, -1, capacity, math.MaxInt64, math.MinInt64, absurd(r, now)}[r.IntN(7)]
					tx.Within = time.Duration(absurd(r, now))
					tx.Decide(now, states)
				}
			}()
		}
	}
}
