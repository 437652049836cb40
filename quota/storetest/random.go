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
	costs := []int64{0, 1, 1, 1, 1, 2, 2, n / 2, n, n + 1, -1, -n, 1 + r.Int64N(n), math.MaxInt64, math.MinInt64}
	return costs[r.IntN(len(costs))]
}

// random: every algorithm, alone and together with others, makes the same decisions as the replay.
// Under some limits, units become available again within milliseconds, and under others only after
// the test.
func random(p *replay) {
	const units = 7
	var all []quota.Limit
	for _, period := range []time.Duration{999 * time.Microsecond, 20 * time.Millisecond, time.Hour} {
		for _, l := range limits(units, period) {
			all = append(all, l.Named(fmt.Sprint(period.Microseconds())))
		}
	}
	p.compareRandom(all, units)
}

// Limits tests whether a store makes the same decisions as the algorithms of the limits. If the
// store runs Lua code of the algorithms, this code is tested too. Limits makes random charges, and
// compares every field of every Decision with the result of Algorithm.Take. Pass at least three
// limits with different names: one with a period of about a millisecond, one with a period of about
// an hour, and one with a different algorithm.
func Limits(t testing.TB, store quota.Store, limits ...quota.Limit) {
	t.Helper()
	p := newReplay(t, store)
	p.lastUnit(limits)
	units := int64(1)
	for i := range limits {
		units = max(units, limits[i].Quota)
	}
	p.compareRandom(limits, units)
}

// lastUnit reserves units of each limit for a later instant, refunds the units and spends them
// again: first a single unit, and then all units of a new key. The first charge of each key has
// cost -1, so that the key has a unit even under an algorithm that gives new keys none.
func (p *replay) lastUnit(limits []quota.Limit) {
	p.Helper()
	wait := algorithms.GCRA(1, time.Minute).Named("wait")
	for _, l := range limits {
		for _, cost := range []int64{1, l.Capacity()} {
			p.run += "."
			p.takeOne("", wait, 1)
			p.takeOne("", l, -1)
			reserved := p.takeAll(time.Hour, p.charge("", l, cost), p.charge("", wait, 1))
			p.takeOne("", l, 0)
			p.takeOne("", l, 1)
			if reserved.Allowed() {
				p.cancel(reserved)
			}
			p.takeOne("", l, 0)
			p.takeOne("", l, cost)
			p.takeOne("", l, 0)
		}
	}
}

// compareRandom charges random keys under random limits, with costs around quota, and compares the
// decisions of the store with those of a replay.
func (p *replay) compareRandom(all []quota.Limit, units int64) {
	p.Helper()
	r := seeded(p)
	withins := []time.Duration{0, 0, 0, time.Microsecond, time.Millisecond, 20 * time.Millisecond, time.Hour, -1, math.MaxInt64}
	var tx quota.Transaction
	for range 20 {
		p.run += "." // new keys, because the old keys may be reserved for years
		within := withins[:len(withins)-r.IntN(len(withins)-1)]
		for range 40 {
			if tx.Allowed() && r.IntN(6) == 0 {
				p.cancel(&tx)
			}
			tx.Charges = p.anyCharges(tx.Charges[:0], r, all, units)
			tx.Mode, tx.Within, tx.Most, tx.Cancels = quota.ModeSpend, within[r.IntN(len(within))], 0, nil
			anyHeadroom(r, &tx, units)
			anyMode(r, &tx)
			p.take(&tx)
			pause(r)
		}
	}
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
	t.Mode, t.Within = quota.Mode(r.IntN(12)), 0
	if t.Mode == quota.ModeAtMost {
		t.Most = []int64{1, 2, 5, math.MaxInt64}[r.IntN(4)]
	}
	if t.Validate() != nil { // for instance because it refunds units
		t.Mode, t.Within, t.Most = before.Mode, before.Within, before.Most
	}
}

// cancel refunds the units that t has spent.
func (r *replay) cancel(t *quota.Transaction) {
	for i := range t.Charges {
		t.Charges[i].Cost, t.Charges[i].Spent = -max(0, t.Charges[i].Cost), t.Decisions[i].At
	}
	t.Mode, t.Within, t.Most, t.Cancels = quota.ModeSpend, 0, 0, slices.Clone(t.Undo)
	r.take(t)
}

// anyCharges appends up to six charges with different ids, under any of the limits.
func (r *replay) anyCharges(charges []quota.Charge, random *rand.Rand, limits []quota.Limit, units int64) []quota.Charge {
	used := map[id]bool{}
	for range 1 + random.IntN(6) {
		c := r.charge(fmt.Sprint(random.IntN(2)), limits[random.IntN(len(limits))], anyCost(random, units))
		c.Rule = []string{"storetest", "other"}[random.IntN(2)]
		if k := idOf(&c); !used[k] {
			used[k] = true
			charges = append(charges, c)
		}
	}
	return charges
}

// everyAlgorithm: each algorithm evaluates a sequence of charges that spends the quota of a new
// key, refunds units, and spends again.
func everyAlgorithm(p *replay) {
	for _, period := range []time.Duration{5 * time.Millisecond, time.Hour} {
		for _, l := range limits(3, period) {
			l = l.Named(fmt.Sprint(period.Microseconds()))
			for _, cost := range []int64{1, 1, 0, 2, 1, 1, 1, -1, 1, 1, 0, -9, 3, 1} {
				p.takeOne("", l, cost)
				if period < time.Second && cost == 2 {
					time.Sleep(2100 * time.Microsecond)
				}
			}
		}
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

// changed: if the quota or the period of a limit changes, the new numbers apply immediately, and
// units spent under the old numbers still count.
func changed(p *replay) {
	r := seeded(p)
	var tx quota.Transaction
	for range 10 {
		p.run += "."
		shortest := 48 * time.Hour
		for range 30 {
			units := 1 + r.Int64N(20)
			period := time.Duration(1+r.IntN(48)) * time.Hour
			shortest = min(shortest, period)
			tx.Charges = tx.Charges[:0]
			for _, l := range limits(units, period) {
				if name := l.Algorithm.Name(); name == "sliding-log" || name == "in-flight" {
					l.Period = shortest // the period never grows, because stores may drop units older than a period
				}
				if r.IntN(3) == 0 {
					tx.Charges = append(tx.Charges, p.charge("", l, anyCost(r, units)))
				}
			}
			tx.Within = []time.Duration{0, 0, time.Hour}[r.IntN(3)]
			p.take(&tx)
			pause(r)
		}
	}
}

// reset: after RetryAfter a refused charge fits, and after ResetAfter the key is equivalent
// to a new key.
func reset(p *replay) {
	// This excludes the calendar, which has no window of 10 ms, and InFlight, which has no
	// RetryAfter.
	for _, l := range limits(2, 10*time.Millisecond)[:7] {
		size := max(l.Burst, l.Quota)
		var d quota.Decision
		for range 100 { // several times, because a window may end between two calls
			tx := p.takeOne("", l, size)
			if d = tx.Decisions[0]; !d.Allowed {
				break
			}
		}
		if d.Allowed {
			p.Fatalf("%v: got the whole quota 100 times in a row, want a refusal", l)
		}
		// The clock of another machine may run a little slower.
		time.Sleep(d.RetryAfter + time.Millisecond)
		tx := p.takeOne("", l, size)
		if !tx.Decisions[0].Allowed {
			p.Errorf("%v: got a refusal after RetryAfter %v and a millisecond, want none", l, d.RetryAfter)
		}
		time.Sleep(tx.Decisions[0].ResetAfter + time.Millisecond)
		if got := p.takeOne("", l, 0).Decisions[0]; got != (quota.Decision{Allowed: true, FellBack: got.FellBack, Remaining: size, At: got.At}) {
			p.Errorf("%v after ResetAfter: got %+v, want %d remaining and nothing to wait for", l, got, size)
		}
	}
}
