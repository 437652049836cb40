package algorithms_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// TestReservations mixes charges that wait, charges that do not wait, and cancellations. The
// charges that were not cancelled exceed no limit at their instants. Without cancellations
// the instants come in the order of the charges.
func TestReservations(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	freed := map[string]int{}
	for range 6000 {
		b := newBooking(t, r, seed)
		for range 30 {
			if pending := b.active.after(b.now); b.cancels && len(pending) > 0 && r.IntN(3) == 0 {
				if b.cancel(pending[r.IntN(len(pending))]) {
					freed[b.limit.Algorithm.Name()]++
				}
			} else {
				b.charge()
			}
			if r.IntN(2) == 0 {
				b.now += []int64{1, r.Int64N(b.period/b.quota + 2), r.Int64N(b.period + 1)}[r.IntN(3)]
			}
		}
		b.check()
	}
	for name := range definitions {
		if freed[name] == 0 {
			t.Errorf("%s: no cancellation freed anything", name)
		}
	}
}

// A booking is a key with charges that are reserved for later instants.
type booking struct {
	*testing.T
	*key
	r       *rand.Rand
	seed    uint64
	cancels bool // whether some charges are cancelled
	now     int64
	states  []quota.State
	active  history             // the charges that were not cancelled
	turns   []quota.Transaction // the transactions of these charges
	log     []string
}

func newBooking(t *testing.T, r *rand.Rand, seed uint64) *booking {
	return &booking{T: t, key: newKey(randomLimit(r)), r: r, seed: seed, cancels: r.IntN(3) > 0,
		now: 1_700_000_000_000_000 + r.Int64N(1e12), states: make([]quota.State, 1)}
}

// cancel cancels the i-th charge, and reports whether the state changes.
func (b *booking) cancel(i int) (freed bool) {
	gone := b.active[i]
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: b.limit, Cost: -gone.n, Spent: gone.at}}, Cancels: b.turns[i].Undo}
	if b.r.IntN(4) == 0 {
		tx.Cancels = nil // the algorithm must cancel without the earlier state
	}
	before := fmt.Sprint(b.states[0])
	tx.Decide(b.now, b.states)
	b.active, b.turns = slices.Delete(b.active, i, i+1), slices.Delete(b.turns, i, i+1)
	b.log = append(b.log, fmt.Sprintf("%d: cancel %v", b.now, gone))
	return before != fmt.Sprint(b.states[0])
}

// later is an algorithm that allows charges from the instant Burst on, in µs since 1970. It
// has no states.
type later struct{}

func (later) Name() string { return "later" }

func (later) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	wait := time.Duration(max(0, l.Burst-now)) * time.Microsecond
	if cost <= 0 {
		wait = 0
	}
	return s, quota.Decision{Allowed: wait == 0, RetryAfter: wait}
}

// decideLater decides the one charge of t. The charge must wait for delay, because another
// charge of the same transaction does.
func decideLater(t *quota.Transaction, now int64, delay time.Duration, states []quota.State) bool {
	if delay == 0 {
		return t.Decide(now, states)
	}
	t.Charges = append(t.Charges, quota.Charge{Limit: quota.Limit{Algorithm: later{}, Burst: now + delay.Microseconds()}, Cost: 1})
	both := []quota.State{states[0], {}}
	spent := t.Decide(now, both)
	states[0], t.Charges, t.Decisions, t.Undo = both[0], t.Charges[:1], t.Decisions[:1], t.Undo[:min(1, len(t.Undo))]
	return spent
}

// charge makes a charge that may wait, or must wait, and checks its instant.
func (b *booking) charge() {
	b.Helper()
	r, cost := b.r, int64(1)
	if r.IntN(2) == 0 {
		cost += r.Int64N(b.burst)
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: b.limit, Cost: cost}}, Within: time.Duration(r.Int64N(4*b.period)) * time.Microsecond}
	delay := time.Duration(0)
	if r.IntN(5) == 0 {
		delay = time.Duration(r.Int64N(1 + int64(tx.Within))).Truncate(time.Microsecond)
	}
	if !decideLater(&tx, b.now, delay, b.states) {
		return
	}
	at := b.now + tx.Wait.Microseconds()
	if tx.Wait < delay || tx.Wait > tx.Within {
		b.Fatalf("seed %d: %v waits %v, want %v to %v", b.seed, b.limit, tx.Wait, delay, tx.Within)
	}
	if n := len(b.active); !b.cancels && n > 0 && at < b.active[n-1].at {
		b.Fatalf("seed %d: %v: a charge goes at %d, before an earlier charge, which goes at %d", b.seed, b.limit, at, b.active[n-1].at)
	}
	b.active, b.turns = append(b.active, spending{at, cost}), append(b.turns, tx)
	b.log = append(b.log, fmt.Sprintf("%d: %d within %v: at %d", b.now, cost, tx.Within, at))
}

// check fails the test unless, by the definition, the charges that were not cancelled fit
// at their instants.
func (b *booking) check() {
	b.Helper()
	slices.SortStableFunc(b.active, func(a, b spending) int { return cmp.Compare(a.at, b.at) })
	for i, s := range b.active {
		fits := b.fits(b.active[:i], b.quota, b.burst, b.period, s.at, s.n)
		switch name := b.limit.Algorithm.Name(); {
		case name == "anchored-window": // a window keeps its beginning if its first unit is cancelled
			fits = b.active[:i+1].sum(s.at-b.period+1, s.at+1) <= 2*b.quota
		}
		if !fits {
			b.Fatalf("seed %d: %v: %v does not fit after %v\n%v", b.seed, b.limit, s, b.active[:i], b.log)
		}
	}
}

// The method after returns the indexes of the entries that are later than now.
func (h history) after(now int64) (indexes []int) {
	for i, s := range h {
		if s.at > now {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// TestCancelFreesTheSlot: if the last reservation is cancelled, the next charge gets the
// instant of that reservation. If a reservation in the middle is cancelled, the next charge
// goes after all others.
func TestCancelFreesTheSlot(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(1, time.Second), algorithms.TokenBucket(1, 1, time.Second), algorithms.LeakyBucket(9, 1, time.Second),
		algorithms.FixedWindow(1, time.Second), algorithms.AnchoredWindow(1, time.Second), algorithms.SlidingWindow(1, time.Second),
		algorithms.SlidingLog(1, time.Second), algorithms.Calendar(1, algorithms.Day, nil),
	} {
		states := make([]quota.State, 1)
		now := int64(1_700_000_000_000_000)
		reserve := func() int64 {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: limit, Cost: 1}}, Within: 1000 * time.Hour}
			if !tx.Decide(now, states) {
				t.Fatalf("%v: a charge that may wait is refused: %+v", limit, tx.Decisions)
			}
			return tx.Decisions[0].At
		}
		cancel := func(at int64) {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: limit, Cost: -1, Spent: at}}}
			tx.Decide(now, states)
		}
		reserve()
		second, third := reserve(), reserve()
		cancel(third)
		if got := reserve(); got != third {
			t.Errorf("%v: the third reservation is cancelled, and the next charge goes at %v, want %v", limit, got, third)
		}
		fourth := reserve()
		cancel(second)
		if got := reserve(); got <= fourth {
			t.Errorf("%v: the second reservation is cancelled, and the next charge goes at %v, want it after %v", limit, got, fourth)
		}
		cancel(now + 1e15) // nothing is reserved for this instant
	}
}

// TestCancelRestores: if reservations are cancelled in reverse order, each cancellation
// restores the key as it was before the reservation, under every algorithm.
func TestCancelRestores(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	restored := map[string]int{}
	for range 4000 {
		k := newKey(randomLimit(r))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]quota.State, 1)
		for range r.IntN(12) { // some history
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}, Within: time.Duration(r.IntN(2)*r.IntN(int(k.period))) * time.Microsecond}
			tx.Decide(now, states)
			now += []int64{0, 1, r.Int64N(k.period/k.quota + 2), r.Int64N(k.period + 1)}[r.IntN(4)]
		}
		var line []quota.Transaction
		var before []quota.State
		for range 1 + r.IntN(6) {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}, Within: time.Duration(8*k.period) * time.Microsecond}
			s := states[0]
			switch {
			case !decideLater(&tx, now, tx.Within/16*time.Duration(r.IntN(3)), states):
			case tx.Wait == 0:
				line, before = nil, nil // nothing waits
			default:
				line, before = append(line, tx), append(before, s)
			}
			now += r.Int64N(3)
		}
		for i := len(line) - 1; i >= 0; i-- {
			back := quota.Transaction{Charges: line[i].Charges, Cancels: line[i].Undo}
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
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 6))
	asked := 0
	for range 5000 {
		b := newBooking(t, r, seed)
		for range r.IntN(8) {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: b.limit, Cost: 1 + r.Int64N(b.burst)}}}
			tx.Decide(b.now, b.states)
			b.now += []int64{0, 1, r.Int64N(b.period/b.quota + 2), r.Int64N(b.period + 1)}[r.IntN(4)]
		}
		line := b.line()
		kept := b.states[0]
		r.Shuffle(len(line), func(i, j int) { line[i], line[j] = line[j], line[i] })
		for i := range line {
			if r.IntN(4) == 0 {
				continue
			}
			b.giveBack(&line[i])
			b.now += []int64{0, 1, r.Int64N(b.period + 1)}[r.IntN(3)]
			for _, cost := range []int64{1, 1 + r.Int64N(b.burst), b.burst} {
				for _, within := range []time.Duration{0, 1000 * 1000 * time.Hour} {
					asked++
					b.checkNoLonger(kept, cost, within)
				}
			}
		}
	}
	if asked == 0 {
		t.Error("no reservation was cancelled: the test compared nothing")
	}
}

// line returns up to six charges that wait.
func (b *booking) line() (line []quota.Transaction) {
	r := b.r
	for range 1 + r.IntN(6) {
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: b.limit, Cost: 1 + r.Int64N(b.burst)}}, Within: time.Duration(8*b.period) * time.Microsecond}
		delay := time.Duration(0)
		if r.IntN(3) == 0 {
			delay = tx.Within / 16 * time.Duration(r.IntN(3))
		}
		if decideLater(&tx, b.now, delay, b.states) && tx.Wait > 0 {
			line = append(line, tx)
			b.log = append(b.log, fmt.Sprintf("%d: %d at %d: %+v", b.now, tx.Charges[0].Cost, tx.Decisions[0].At, b.states[0]))
		}
		b.now += r.Int64N(3)
	}
	return line
}

// giveBack cancels a reserved charge.
func (b *booking) giveBack(tx *quota.Transaction) {
	back := quota.Transaction{Charges: []quota.Charge{tx.Charges[0]}, Cancels: tx.Undo}
	back.Charges[0].Cost, back.Charges[0].Spent = -back.Charges[0].Cost, tx.Decisions[0].At
	before := b.states[0]
	back.Decide(b.now, b.states)
	b.log = append(b.log, fmt.Sprintf("%d: cancel %d at %d: %+v -> %+v", b.now, back.Charges[0].Cost, back.Charges[0].Spent, before, b.states[0]))
}

// checkNoLonger fails the test if a charge waits longer than it would if nothing had been
// cancelled. The argument kept is the state without cancellations.
func (b *booking) checkNoLonger(kept quota.State, cost int64, within time.Duration) {
	b.Helper()
	wait := func(s quota.State) (d time.Duration, admitted bool) {
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: b.limit, Cost: cost}}, Within: within}
		if tx.Decide(b.now, []quota.State{s}) {
			return tx.Wait, true
		}
		return tx.RetryAfter(), false
	}
	got, _ := wait(b.states[0])
	want, admitted := wait(kept)
	// RetryAfter of a queue says when the queue admits a charge, not when the charge
	// departs.
	alike := admitted || within == 0 || b.limit.Algorithm.Name() != "leaky-bucket"
	if got > want && alike {
		b.Fatalf("seed %d: %v: after Cancel a cost of %d waits %v within %v, without it %v\n%v\n%+v\nkept %+v", b.seed, b.limit, cost, got, within, want, b.log, b.states[0], kept)
	}
}
