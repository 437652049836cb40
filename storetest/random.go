package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// limits returns one of every algorithm.
func limits(quota int64, period time.Duration) []weir.Limit {
	return []weir.Limit{
		algorithms.GCRA(quota, period),
		algorithms.TokenBucket(quota+2, quota, period),
		algorithms.LeakyBucket(quota+1, quota, period),
		algorithms.FixedWindow(quota, period),
		algorithms.AnchoredWindow(quota, period),
		algorithms.SlidingWindow(quota, period),
		algorithms.SlidingLog(quota, period),
		algorithms.Calendar(quota, algorithms.Day, time.FixedZone("", 5*3600+45*60)),
	}
}

// pause sleeps now and then, for a while that is no round number of anything.
func pause(r *rand.Rand) {
	if r.IntN(8) == 0 {
		time.Sleep(time.Duration(1+r.IntN(3_000)) * time.Microsecond)
	}
}

// anyCost returns costs around what a limit of quota n has room for.
func anyCost(r *rand.Rand, n int64) int64 {
	costs := []int64{0, 1, 1, 1, 1, 2, 2, n / 2, n, n + 1, -1, -n, 1 + r.Int64N(n), math.MaxInt64, math.MinInt64}
	return costs[r.IntN(len(costs))]
}

// random: every algorithm, alone and with others, decides as the replay does.
// Some limits are as good as new after milliseconds, others not in this test.
func random(t testing.TB, store weir.Store) {
	const quota = 7
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	var all []weir.Limit
	for _, period := range []time.Duration{999 * time.Microsecond, 20 * time.Millisecond, time.Hour} {
		for _, l := range limits(quota, period) {
			all = append(all, l.Named(fmt.Sprint(period.Microseconds())))
		}
	}
	withins := []time.Duration{0, 0, 0, time.Microsecond, time.Millisecond, 20 * time.Millisecond, time.Hour, -1, math.MaxInt64}

	p := newReplay(t, store)
	var tx weir.Transaction
	for range 20 {
		p.run = fmt.Sprint(p.run, ".") // what is reserved for years is of no more use
		within := withins[:len(withins)-r.IntN(len(withins)-1)]
		for range 40 {
			if tx.Allowed() && r.IntN(6) == 0 { // the last one gives up
				for i := range tx.Charges {
					tx.Charges[i].Cost, tx.Charges[i].Spent = -max(0, tx.Charges[i].Cost), tx.Decisions[i].At
				}
				tx.Within, tx.Delay = 0, 0
				p.take(&tx)
			}
			tx.Charges, tx.Delay = tx.Charges[:0], 0
			tx.Within = within[r.IntN(len(within))]
			if tx.Within > 0 && tx.Within <= time.Hour && r.IntN(4) == 0 {
				tx.Delay = tx.Within / time.Duration(1+r.IntN(3))
			}
			used := map[id]bool{}
			for range 1 + r.IntN(6) {
				c := p.charge(fmt.Sprint(r.IntN(2)), all[r.IntN(len(all))], anyCost(r, quota))
				c.Rule = []string{"storetest", "other"}[r.IntN(2)]
				if k := idOf(&c); !used[k] {
					used[k] = true
					tx.Charges = append(tx.Charges, c)
				}
			}
			tx.Forget = r.IntN(20) == 0
			p.take(&tx)
			tx.Forget = false
			pause(r)
		}
	}
}

// everyAlgorithm: each on its own, from new to used up and back.
func everyAlgorithm(t testing.TB, store weir.Store) {
	p := newReplay(t, store)
	for _, period := range []time.Duration{5 * time.Millisecond, time.Hour} {
		for _, l := range limits(3, period) {
			l = l.Named(fmt.Sprint(period.Microseconds()))
			for _, cost := range []int64{1, 1, 0, 2, 1, 1, 1, -1, 1, 1, 0, -9, 3, 1} {
				p.one("", l, cost)
				if period < time.Second && cost == 2 {
					time.Sleep(2100 * time.Microsecond)
				}
			}
		}
	}
}

// bounds: the largest numbers a limit may have are counted exactly, and no cost
// does harm.
func bounds(t testing.TB, store weir.Store) {
	const most = weir.MaxTicks
	long := most * time.Microsecond
	limits := []weir.Limit{
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
	}
	costs := []int64{1, most - 1, most, most + 1, 1 << 52, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64,
		0, 1<<25 - 1, 1 << 25, -1, 7, -(1<<53 + 1), math.MinInt64 + 1, 999_999, 2, math.MinInt64, 1}
	p := newReplay(t, store)
	for i, l := range limits {
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		l.Name = fmt.Sprint(i)
		for _, within := range []time.Duration{0, time.Hour} {
			for _, cost := range costs {
				p.all(within, p.charge(fmt.Sprint(within), l, cost))
			}
		}
	}
}

// changed: a limit whose numbers change while its states live holds at once.
func changed(t testing.TB, store weir.Store) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	p := newReplay(t, store)
	var tx weir.Transaction
	for range 10 {
		p.run = fmt.Sprint(p.run, ".")
		shortest := 48 * time.Hour
		for range 30 {
			quota := 1 + r.Int64N(20)
			period := time.Duration(1+r.IntN(48)) * time.Hour
			shortest = min(shortest, period)
			tx.Charges = tx.Charges[:0]
			for _, l := range limits(quota, period) {
				if l.Algorithm.Name() == "sliding-log" {
					l.Period = shortest // how soon a log forgets what is past a period is up to the store
				}
				if r.IntN(3) == 0 {
					tx.Charges = append(tx.Charges, p.charge("", l, anyCost(r, quota)))
				}
			}
			tx.Within = []time.Duration{0, 0, time.Hour}[r.IntN(3)]
			p.take(&tx)
			pause(r)
		}
	}
}

// reset: after RetryAfter the charge fits, and after ResetAfter the key is as
// good as new.
func reset(t testing.TB, store weir.Store) {
	p := newReplay(t, store)
	for _, l := range limits(2, 10*time.Millisecond)[:7] { // a calendar has no such days
		size := max(l.Burst, l.Quota)
		var d weir.Decision
		for range 100 { // windows may end any time, and a slow store needs some
			tx := p.one("", l, size)
			if d = tx.Decisions[0]; !d.Allowed {
				break
			}
		}
		if d.Allowed {
			t.Fatalf("%v: got 100 times all of it in a row, want fewer", l)
		}
		// The clock of another machine may be a little slower.
		time.Sleep(d.RetryAfter + time.Millisecond)
		tx := p.one("", l, size)
		if !tx.Decisions[0].Allowed {
			t.Errorf("%v: got a refusal after RetryAfter %v and a millisecond, want none", l, d.RetryAfter)
		}
		time.Sleep(tx.Decisions[0].ResetAfter + time.Millisecond)
		if got := p.one("", l, 0).Decisions[0]; got != (weir.Decision{Allowed: true, Remaining: size, At: got.At}) {
			t.Errorf("%v after ResetAfter: got %+v, want %d remaining and nothing to wait for", l, got, size)
		}
	}
}
