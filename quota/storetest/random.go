package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// limits returns a limit of every algorithm.
func limits(units int64, period time.Duration) []quota.Limit {
	return []quota.Limit{
		algorithms.GCRA(units, period),
		algorithms.TokenBucket(units+2, units, period),
		algorithms.LeakyBucket(units+1, units, period),
		algorithms.FixedWindow(units, period),
		algorithms.AnchoredWindow(units, period),
		algorithms.SlidingWindow(units, period),
		algorithms.SlidingLog(units, period),
		algorithms.Calendar(units, algorithms.Day, time.FixedZone("", 5*3600+45*60)),
		algorithms.InFlight(units, period),
	}
}

// seeded returns a source of random numbers. If the test fails, it logs the seed.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// pause sleeps for up to 3 ms, on average in every eighth call.
func pause(r *rand.Rand) {
	if r.IntN(8) == 0 {
		time.Sleep(time.Duration(1+r.IntN(3_000)) * time.Microsecond)
	}
}

// anyCost returns a random cost for a quota of n: often a small one, sometimes one near n, and
// sometimes the largest or the smallest integer.
func anyCost(r *rand.Rand, n int64) int64 {
	costs := []int64{0, 0, 1, 1, 1, 1, 2, 2, n / 2, n, n + 1, -1, -n, 1 + r.Int64N(n), math.MaxInt64, math.MinInt64}
	return costs[r.IntN(len(costs))]
}

// single: on random charges, every algorithm makes the same decisions as the replay. Under some
// limits, units become available again within milliseconds, and under others only after the test.
// Each transaction has a single charge. A store may treat such transactions differently.
func single(p *replay) { p.compareRandom(randomLimits(), randomUnits, 1) }

// random is like single, but each transaction has up to six charges.
func random(p *replay) { p.compareRandom(randomLimits(), randomUnits, 6) }

const randomUnits = 7

func randomLimits() (all []quota.Limit) {
	for _, period := range []time.Duration{999 * time.Microsecond, 20 * time.Millisecond, time.Hour} {
		for _, l := range limits(randomUnits, period) {
			all = append(all, l.Named(fmt.Sprint(period.Microseconds())))
		}
	}
	return all
}

// Limits tests whether a store makes the same decisions as the algorithms of the limits. If the
// store runs Lua code of the algorithms, this code is tested too. Limits makes random charges, and
// compares every field of every Decision with the result of Algorithm.Take. Pass at least three
// limits with different names: one with a period of about a millisecond, one with a period of about
// an hour, and one with a different algorithm.
func Limits(t testing.TB, store quota.Store, limits ...quota.Limit) {
	t.Helper()
	p := newReplay(t, store)
	units := int64(1)
	for i := range limits {
		units = max(units, limits[i].Quota)
	}
	p.compareRandom(limits, units, 1)
	p.compareRandom(limits, units, 6)
}

// compareRandom makes transactions with up to the given number of charges, of random keys under random
// limits and with costs around units, and compares the decisions of the store with those of a replay.
// Some transactions refund units that were spent earlier. Some are repeated, because a store may make
// the same decision again without a look at the state.
func (p *replay) compareRandom(all []quota.Limit, units int64, charges int) {
	p.Helper()
	r, all := seeded(p), slices.Clone(all)
	withins := []time.Duration{0, 0, 0, time.Microsecond, time.Millisecond, 20 * time.Millisecond, time.Hour, -1, math.MaxInt64}
	var tx quota.Transaction
	for range 30 {
		p.run += "." // new keys, because the old keys may be reserved for years
		within := withins[:len(withins)-r.IntN(len(withins)-1)]
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		few := all[:min(len(all), 6)]
		var refunds []quota.Charge // of what was spent in this round
		for range 40 {
			switch n := r.IntN(6); {
			case n == 0 && tx.Allowed():
				p.cancel(&tx)
			case n == 1 && len(refunds) > 0:
				p.takeAll(0, anyUnlike(r, charges, func() quota.Charge { return refunds[r.IntN(len(refunds))] })...)
			}
			tx.Charges = anyUnlike(r, charges, func() quota.Charge { return p.anyCharge(r, few, units) })
			tx.Mode, tx.Within, tx.Most, tx.Cancels = quota.ModeSpend, within[r.IntN(len(within))], 0, nil
			anyHeadroom(r, &tx, units)
			anyMode(r, &tx)
			times := 1
			if r.IntN(10) == 0 {
				times = 10
			}
			for range times {
				p.take(&tx)
			}
			for i, c := range tx.Charges {
				if c.Cost, c.Spent, c.Headroom = -max(0, c.Cost), tx.Decisions[i].At, 0; tx.Allowed() && tx.Mode != quota.ModePeek {
					refunds = append(refunds, c)
				}
			}
			pause(r)
		}
	}
}

// anyUnlike calls pick up to n times, and returns those of the charges that have different ids.
func anyUnlike(r *rand.Rand, n int, pick func() quota.Charge) (charges []quota.Charge) {
	used := map[id]bool{}
	for range 1 + r.IntN(n) {
		c := pick()
		if k := idOf(&c); !used[k] {
			used[k] = true
			charges = append(charges, c)
		}
	}
	return charges
}

// anyCharge returns a charge of a random key under one of the limits.
func (p *replay) anyCharge(r *rand.Rand, all []quota.Limit, units int64) quota.Charge {
	c := p.charge(fmt.Sprint(r.IntN(2)), all[r.IntN(len(all))], anyCost(r, units))
	c.Rule = []string{"storetest", "other"}[r.IntN(2)]
	return c
}

// cancel refunds the units that t has spent.
func (r *replay) cancel(t *quota.Transaction) {
	for i := range t.Charges {
		t.Charges[i].Cost, t.Charges[i].Spent = -max(0, t.Charges[i].Cost), t.Decisions[i].At
	}
	t.Mode, t.Within, t.Most, t.Cancels = quota.ModeSpend, 0, 0, slices.Clone(t.Undo)
	r.take(t)
}

// anyHeadroom sometimes gives charges of t a headroom.
func anyHeadroom(r *rand.Rand, t *quota.Transaction, units int64) {
	if t.Within > 0 || r.IntN(2) == 0 {
		return
	}
	for i := range t.Charges {
		if r.IntN(2) == 0 {
			t.Charges[i].Headroom = r.Int64N(units + 2)
		}
	}
}

// anyMode sometimes gives t a Mode other than ModeSpend.
func anyMode(r *rand.Rand, t *quota.Transaction) {
	before := *t
	t.Mode, t.Within = quota.Mode(r.IntN(8)), 0
	if t.Mode == quota.ModeAtMost {
		t.Most = []int64{1, 2, 5, math.MaxInt64}[r.IntN(4)]
	}
	if t.Validate() != nil { // for instance because it refunds units
		t.Mode, t.Within, t.Most = before.Mode, before.Within, before.Most
	}
}

// bounds: limits with the largest numbers are counted exactly, and no cost
// overflows.
func bounds(p *replay) {
	const most = quota.MaxTicks
	long := most * time.Microsecond
	limits := []quota.Limit{
		algorithms.GCRA(1, long),
		algorithms.GCRA(most, time.Microsecond),
		algorithms.GCRA(1<<20, 1<<30*time.Microsecond),
		algorithms.GCRA(1_000_000, 24*time.Hour),
		algorithms.GCRA(300_000, time.Second),
		algorithms.GCRA(3, time.Second).WithBurst(most / 1_000_000),
		algorithms.TokenBucket(most/1_000_000, 999_999, time.Second),
		algorithms.LeakyBucket(1<<25, 1<<25, 1<<25*time.Microsecond),
		algorithms.FixedWindow(most, long),
		algorithms.AnchoredWindow(most, long),
		algorithms.SlidingWindow(most, long),
		algorithms.SlidingWindow(most-1, time.Hour),
		algorithms.SlidingLog(most, long),
		algorithms.InFlight(most, long),
	}
	costs := []int64{1, most - 1, most, most + 1, 1 << 52, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64,
		0, 1<<25 - 1, 1 << 25, -1, 7, -(1<<53 + 1), math.MinInt64 + 1, 999_999, 2, math.MinInt64, 1}
	for i, l := range limits {
		if err := l.Validate(); err != nil {
			p.Fatal(err)
		}
		l.Name = fmt.Sprint(i)
		for _, within := range []time.Duration{0, time.Hour} {
			for _, cost := range costs {
				p.takeAll(within, p.charge(fmt.Sprint(within), l, cost))
			}
		}
	}
}

// changed: if the quota of a limit changes, the new number applies immediately, and units spent under
// the old one still count.
func changed(p *replay) {
	r := seeded(p)
	for range 10 {
		p.run += "."
		for range 30 {
			units := 1 + r.Int64N(20)
			all := limits(units, 48*time.Hour)
			charges := anyUnlike(r, 6, func() quota.Charge {
				c := p.anyCharge(r, all, units)
				c.Key = p.run // a store may decide keys of several servers at several instants
				return c
			})
			p.takeAll([]time.Duration{0, 0, time.Hour}[r.IntN(3)], charges...)
			pause(r)
		}
	}
}
