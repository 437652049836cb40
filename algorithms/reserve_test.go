package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestReservations mixes charges that wait, charges that don't, and cancellations. The
// instants of the charges that were not cancelled exceed no limit. Without cancellations
// the instants come in the order of the charges.
func TestReservations(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	freed := map[string]int{}
	for range 6000 {
		k := newKey(randomLimit(r))
		name := k.limit.Algorithm.Name()
		cancels := r.IntN(3) > 0
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]weir.State, 1)
		var active history
		undos := weir.Transaction{}.Undo
		var log []string
		for range 30 {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit}}}
			if pending := active.after(now); cancels && len(pending) > 0 && r.IntN(3) == 0 {
				i := pending[r.IntN(len(pending))]
				gone := active[i]
				tx.Charges[0].Cost, tx.Charges[0].Spent = -gone.n, gone.at
				tx.Undo = undos[i : i+1 : i+1]
				if r.IntN(4) == 0 {
					tx.Undo = nil // cancel by arithmetic, without the kept state
				}
				before := states[0]
				tx.Decide(now, states)
				if fmt.Sprint(before) != fmt.Sprint(states[0]) {
					freed[name]++
				}
				active, undos = slices.Delete(active, i, i+1), slices.Delete(undos, i, i+1)
				log = append(log, fmt.Sprintf("%d: cancel %v", now, gone))
			} else {
				cost := 1 + r.Int64N(k.burst)
				if r.IntN(2) == 0 {
					cost = 1
				}
				tx.Charges[0].Cost, tx.Within = cost, time.Duration(r.Int64N(4*k.period))*time.Microsecond
				if r.IntN(5) == 0 {
					tx.Delay = time.Duration(r.Int64N(1 + int64(tx.Within)))
				}
				tx.Decide(now, states)
				if tx.Allowed() {
					at := now + tx.Wait.Microseconds()
					if tx.Wait < tx.Delay.Truncate(time.Microsecond) || tx.Wait > tx.Within {
						t.Fatalf("seed %d: %v waits %v, want %v to %v", seed, k.limit, tx.Wait, tx.Delay, tx.Within)
					}
					if n := len(active); !cancels && n > 0 && at < active[n-1].at {
						t.Fatalf("seed %d: %v: goes at %d, before an earlier charge, which goes at %d", seed, k.limit, at, active[n-1].at)
					}
					active, undos = append(active, spending{at, cost}), append(undos, append(tx.Undo, slices.Grow(undos[:0:0], 1)[:1]...)[0])
					log = append(log, fmt.Sprintf("%d: %d within %v: at %d", now, cost, tx.Within, at))
				}
			}
			if r.IntN(2) == 0 {
				now += []int64{1, r.Int64N(k.period/k.quota + 2), r.Int64N(k.period + 1)}[r.IntN(3)]
			}
		}
		slices.SortStableFunc(active, func(a, b spending) int { return int(a.at - b.at) })
		for i, s := range active {
			fits := k.fits(active[:i], k.quota, k.burst, k.period, s.at, s.n)
			switch {
			case name == "anchored-window": // a window keeps its beginning if its first unit is cancelled
				fits = active[:i+1].sum(s.at-k.period+1, s.at+1) <= 2*k.quota
			case name == "leaky-bucket" && !fits: // departs at the next whole microsecond
				fits = k.fits(active[:i], k.quota, k.burst, k.period, s.at+1, s.n)
			}
			if !fits {
				t.Fatalf("seed %d: %v: %v does not fit after %v\n%v", seed, k.limit, s, active[:i], log)
			}
		}
	}
	for name := range definitions {
		if freed[name] == 0 {
			t.Errorf("%s: no cancellation freed anything", name)
		}
	}
}

// after returns the indexes of the entries that are spent after now.
func (h history) after(now int64) (indexes []int) {
	for i, s := range h {
		if s.at > now {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// TestCancelFreesTheSlot: if the last reservation is cancelled, the next charge gets its
// instant. If one in the middle is cancelled, the next charge goes after all others.
func TestCancelFreesTheSlot(t *testing.T) {
	for _, limit := range []weir.Limit{
		algorithms.GCRA(1, time.Second), algorithms.TokenBucket(1, 1, time.Second), algorithms.LeakyBucket(9, 1, time.Second),
		algorithms.FixedWindow(1, time.Second), algorithms.AnchoredWindow(1, time.Second), algorithms.SlidingWindow(1, time.Second),
		algorithms.SlidingLog(1, time.Second), algorithms.Calendar(1, algorithms.Day, nil),
	} {
		states := make([]weir.State, 1)
		now := int64(1_700_000_000_000_000)
		reserve := func() int64 {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: limit, Cost: 1}}, Within: 1000 * time.Hour}
			if !tx.Decide(now, states) {
				t.Fatalf("%v: no slot: %+v", limit, tx.Decisions)
			}
			return tx.Decisions[0].At
		}
		cancel := func(at int64) {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: limit, Cost: -1, Spent: at}}}
			tx.Decide(now, states)
		}
		reserve()
		second, third := reserve(), reserve()
		cancel(third)
		if got := reserve(); got != third {
			t.Errorf("%v: the third gives up, and the next gets %v, want its %v", limit, got, third)
		}
		fourth := reserve()
		cancel(second)
		if got := reserve(); got <= fourth {
			t.Errorf("%v: the second gives up, and the next gets %v, want one after the fourth's %v", limit, got, fourth)
		}
		cancel(now + 1e15) // never reserved
	}
}

// TestCancelRestores: if reservations are cancelled in reverse order, each cancellation
// restores the key as it was before the reservation, under every algorithm.
func TestCancelRestores(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 5))
	restored := map[string]int{}
	for range 4000 {
		k := newKey(randomLimit(r))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]weir.State, 1)
		for range r.IntN(12) { // some history
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}, Within: time.Duration(r.IntN(2)*r.IntN(int(k.period))) * time.Microsecond}
			tx.Decide(now, states)
			now += []int64{0, 1, r.Int64N(k.period/k.quota + 2), r.Int64N(k.period + 1)}[r.IntN(4)]
		}
		var line []weir.Transaction
		var before []weir.State
		for range 1 + r.IntN(6) {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}, Within: time.Duration(8*k.period) * time.Microsecond}
			tx.Delay = tx.Within / 16 * time.Duration(r.IntN(3))
			s := states[0]
			switch {
			case !tx.Decide(now, states):
			case tx.Wait == 0:
				line, before = nil, nil // nothing waits
			default:
				line, before = append(line, tx), append(before, s)
			}
			now += r.Int64N(3)
		}
		for i := len(line) - 1; i >= 0; i-- {
			back := weir.Transaction{Charges: line[i].Charges, Undo: line[i].Undo}
			back.Charges[0].Cost, back.Charges[0].Spent = -back.Charges[0].Cost, line[i].Decisions[0].At
			now += r.Int64N(3)
			back.Decide(now, states)
			for cost := range 2 + min(k.burst, 20) {
				_, got := k.limit.Algorithm.Take(states[0], &k.limit, now, cost)
				_, want := k.limit.Algorithm.Take(before[i], &k.limit, now, cost)
				if got != want {
					t.Fatalf("seed %d: %v: after Cancel of number %d of %d a cost of %d gets\n%+v, before it\n%+v\nof %+v and %+v", seed, k.limit, i, len(line), cost, got, want, states[0], before[i])
				}
			}
			restored[k.limit.Algorithm.Name()]++
		}
	}
	for name := range definitions {
		if restored[name] == 0 {
			t.Errorf("%s: nothing was restored", name)
		}
	}
}

// TestCancelHoldsUpNobody: after reservations were cancelled, in any order, a new charge
// waits no longer than if none had been cancelled.
func TestCancelHoldsUpNobody(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 6))
	asked := 0
	for range 5000 {
		k := newKey(randomLimit(r))
		name := k.limit.Algorithm.Name()
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]weir.State, 1)
		for range r.IntN(8) {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}}
			tx.Decide(now, states)
			now += []int64{0, 1, r.Int64N(k.period/k.quota + 2), r.Int64N(k.period + 1)}[r.IntN(4)]
		}
		var line []weir.Transaction
		var log []string
		for range 1 + r.IntN(6) {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}, Within: time.Duration(8*k.period) * time.Microsecond}
			if r.IntN(3) == 0 {
				tx.Delay = tx.Within / 16 * time.Duration(r.IntN(3))
			}
			if tx.Decide(now, states) && tx.Wait > 0 {
				line = append(line, tx)
				log = append(log, fmt.Sprintf("%d: %d at %d: %+v", now, tx.Charges[0].Cost, tx.Decisions[0].At, states[0]))
			}
			now += r.Int64N(3)
		}
		kept := states[0]
		r.Shuffle(len(line), func(i, j int) { line[i], line[j] = line[j], line[i] })
		for i := range line {
			if r.IntN(4) == 0 {
				continue
			}
			back := weir.Transaction{Charges: []weir.Charge{line[i].Charges[0]}, Undo: line[i].Undo}
			back.Charges[0].Cost, back.Charges[0].Spent = -back.Charges[0].Cost, line[i].Decisions[0].At
			before := states[0]
			back.Decide(now, states)
			log = append(log, fmt.Sprintf("%d: cancel %d at %d: %+v -> %+v", now, back.Charges[0].Cost, back.Charges[0].Spent, before, states[0]))
			now += []int64{0, 1, r.Int64N(k.period + 1)}[r.IntN(3)]
			for _, cost := range []int64{1, 1 + r.Int64N(k.burst), k.burst} {
				for _, within := range []time.Duration{0, 1000 * 1000 * time.Hour} {
					admitted := false // RetryAfter of a queue says when it admits, not when the charge goes
					wait := func(s weir.State) time.Duration {
						tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: cost}}, Within: within}
						if tx.Decide(now, []weir.State{s}) {
							admitted = true
							return tx.Wait
						}
						admitted = false
						return tx.RetryAfter()
					}
					asked++
					if got, want := wait(states[0]), wait(kept); got > want && (admitted || within == 0 || name != "leaky-bucket") {
						t.Fatalf("seed %d: %v: after Cancel a cost of %d waits %v within %v, without it %v\n%v\n%+v\nkept %+v", seed, k.limit, cost, got, within, want, log, states[0], kept)
					}
				}
			}
		}
	}
	if asked == 0 {
		t.Error("no reservation was cancelled: the test compared nothing")
	}
}
