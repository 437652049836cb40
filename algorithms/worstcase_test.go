package algorithms_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// The functions below return the most units that each algorithm admits in any span
// (t − P, t], with L = Quota, B = Burst, and P the period in µs. Such a span has P instants.
// The tests reach these numbers and find no more. The reasons:
//
// A meter may owe nothing when the span begins, so B units fit at once. In each of the
// P − 1 µs that are left, L/P units drain. A unit also fits if it becomes free in the last µs,
// but not at its end: L/P − 1/P units more, or 1 − 1/P if L > P. The sum is B + L − 1 if
// L ≤ P, and less otherwise.
//
// A fixed window may be filled at its last instant, and the next window at its first: 2L.
//
// An anchored window may also be filled at its last instant, and the next window at its
// first. But the first window began a period before the next one, with a unit that lies
// outside of the span: 2L − 1. If that unit is given back while later units count, the
// window stays where it is, because the state does not tell when the second unit was
// spent. No unit then needs to lie outside of the span: 2L. More is not possible, because
// each window admits L, and no span of a period touches three windows.
//
// If all L units of a sliding window are spent at its last instant, they count as
// L(P−g)/P when g µs of the next window have passed, and ⌊Lg/P⌋ more fit. If a span
// includes both instants, g is at most P − 2: L + ⌊L(P−2)/P⌋, which is 2L − 1 if L ≤ P/2.
// A client that spends only p < L units in the first window loses L − p units there, and
// gains fewer in the second window: (L − p)(P − g)/P.
//
// A log admits L by definition.

func meterWorst(l quota.Limit) int64 {
	p, b := l.Period.Microseconds(), l.Burst
	if b == 0 {
		b = l.Quota
	}
	return b + (l.Quota*(p-1)+min(l.Quota, p)-1)/p
}

func fixedWorst(l quota.Limit) int64 {
	if l.Period == time.Microsecond { // such a window has one instant
		return l.Quota
	}
	return 2 * l.Quota
}

func anchoredWorst(l quota.Limit) int64 {
	if l.Period == time.Microsecond {
		return l.Quota
	}
	return 2*l.Quota - 1
}

func slidingWorst(l quota.Limit) int64 {
	p := l.Period.Microseconds()
	return l.Quota + l.Quota*max(0, p-2)/p
}

func logWorst(l quota.Limit) int64 { return l.Quota }

// worst has a function for each algorithm, by its name, that returns the most units in a
// span of the period. For calendars see TestWorstCaseCalendar.
var worst = map[string]func(quota.Limit) int64{
	"gcra":            meterWorst,
	"token-bucket":    meterWorst,
	"leaky-bucket":    meterWorst, // if callers do not wait
	"fixed-window":    fixedWorst,
	"anchored-window": anchoredWorst,
	"sliding-window":  slidingWorst,
	"sliding-log":     logWorst,
}

// all returns a limit of each algorithm except Calendar and InFlight. A periodSwitcher knows some
// of them by their index.
func withoutParameters(units, burst int64, period time.Duration) []quota.Limit {
	return []quota.Limit{
		algorithms.GCRA(units, period).WithBurst(burst),
		algorithms.TokenBucket(burst, units, period),
		algorithms.LeakyBucket(burst, units, period),
		algorithms.FixedWindow(units, period),
		algorithms.AnchoredWindow(units, period),
		algorithms.SlidingWindow(units, period),
		algorithms.SlidingLog(units, period),
	}
}

// most returns the most units in any span (t − period, t] of the history.
func (h history) most(period int64) (most int64) {
	var sum int64
	first := 0
	for _, s := range h {
		for sum += s.n; h[first].at <= s.at-period; first++ {
			sum -= h[first].n
		}
		most = max(most, sum)
	}
	return most
}

// An attack is a list of charges, in the order of their instants.
type attack []spending

// everything, as the cost of a charge in an attack, stands for all units that remain.
const everything = -1

// run returns the charges of the attack that are admitted.
func (a attack) run(l quota.Limit, within time.Duration) (h history) {
	states := make([]quota.State, 1)
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}, Within: within}
	for _, s := range a {
		tx.Charges[0].Cost = s.n
		if s.n == everything {
			tx.Charges[0].Cost = 0
			tx.Decide(s.at, states)
			tx.Charges[0].Cost = tx.Decisions[0].Remaining
		}
		if tx.Decide(s.at, states) {
			h = append(h, spending{s.at + tx.Wait.Microseconds(), tx.Charges[0].Cost})
		}
	}
	return h
}

// TestWorstCaseReached attacks each algorithm in the way that admits most, and gets
// exactly the number of units that the map worst gives.
func TestWorstCaseReached(t *testing.T) {
	const minute, start = 60_000_000, 1_700_000_000_000_000 / 60_000_000 * 60_000_000
	meter := func(units int64) (a attack) { // spends everything, and then each unit as soon as it is free
		a = attack{{start, everything}}
		for i := int64(1); i <= units; i++ {
			a = append(a, spending{start + (i*minute+units-1)/units, 1})
		}
		return a
	}
	edge := attack{{start + minute - 1, everything}, {start + minute, everything}}
	anchor := attack{{start + 7, 1}, {start + 7 + minute - 1, everything}, {start + 7 + minute, everything}}
	slide := attack{{start + minute - 1, everything}, {start + 2*minute - 2, everything}}

	tests := []struct {
		limit  quota.Limit
		attack attack
		want   int64
	}{
		{algorithms.GCRA(10, time.Minute), meter(10), 19},
		{algorithms.GCRA(10, time.Minute).WithBurst(1), meter(10), 10},
		{algorithms.GCRA(7, time.Minute).WithBurst(100), meter(7), 106},
		{algorithms.GCRA(1, time.Minute), meter(1), 1},
		{algorithms.TokenBucket(20, 10, time.Minute), meter(10), 29},
		{algorithms.LeakyBucket(20, 10, time.Minute), meter(10), 29},
		{algorithms.FixedWindow(10, time.Minute), edge, 20},
		{algorithms.FixedWindow(1, time.Minute), edge, 2},
		{algorithms.AnchoredWindow(10, time.Minute), anchor, 19},
		{algorithms.AnchoredWindow(1, time.Minute), anchor, 1},
		{algorithms.SlidingWindow(10, time.Minute), slide, 19},
		{algorithms.SlidingWindow(1, time.Minute), slide, 1},
		{algorithms.SlidingWindow(1000, time.Minute), slide, 1999},
		{algorithms.SlidingLog(10, time.Minute), edge, 10},
	}
	for _, test := range tests {
		got := test.attack.run(test.limit, 0).most(minute)
		if claim := worst[test.limit.Algorithm.Name()](test.limit); got != test.want || got != claim {
			t.Errorf("%v: got %d units in a span, want %d; the map worst gives %d", test.limit, got, test.want, claim)
		}
	}
}

// TestWorstCaseAnchoredRefund: an anchored window whose first unit is given back admits
// 2·quota in a span of its period, but no more, whatever is given back.
func TestWorstCaseAnchoredRefund(t *testing.T) {
	const start, minute = 1_700_000_000_000_000, 60_000_000
	l := algorithms.AnchoredWindow(10, time.Minute)
	states := make([]quota.State, 1)
	var h history
	take := func(now, cost, spent int64) {
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: cost, Spent: spent}}}
		if !tx.Decide(now, states) {
			t.Fatalf("%d at %+d µs is refused", cost, now-start)
		}
		if cost > 0 {
			h = append(h, spending{now, cost})
		}
	}
	take(start, 1, 0)
	take(start+minute-1, 9, 0)
	take(start+minute-1, -1, start)
	take(start+minute-1, 1, 0)
	take(start+minute, 10, 0)
	if got := h[1:].most(minute); got != 20 { // without the unit that was given back
		t.Errorf("%v: got %d in a span of the period after the first unit was given back, want 20", l, got)
	}

	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 9))
	for range 3000 {
		l := algorithms.AnchoredWindow(1+r.Int64N(5), time.Duration(1+r.Int64N(30))*time.Microsecond)
		states, h := make([]quota.State, 1), history(nil)
		now := int64(start)
		for range 60 {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1 + r.Int64N(l.Quota)}}}
			i := r.IntN(len(h) + 1)
			if i < len(h) && r.IntN(3) == 0 && h[i].n > 0 {
				tx.Charges[0].Cost, tx.Charges[0].Spent = -h[i].n, h[i].at
				h[i].n = 0
			}
			if tx.Decide(now, states) && tx.Charges[0].Cost > 0 {
				h = append(h, spending{now, tx.Charges[0].Cost})
			}
			if got := h.most(l.Period.Microseconds()); got > 2*l.Quota {
				t.Fatalf("seed %d: %v: got %d units in one period that were not given back, want %d at most", seed, l, got, 2*l.Quota)
			}
			now += r.Int64N(l.Period.Microseconds()/2 + 1)
		}
	}
}

// TestSlidingWindowSpreads: unlike a fixed window, a sliding window needs a whole period to
// admit twice the quota. It admits at most 1.5·quota in half a period, and 1.1·quota in a
// tenth of a period.
func TestSlidingWindowSpreads(t *testing.T) {
	const minute = 60_000_000
	limit := algorithms.SlidingWindow(100, time.Minute)
	for _, test := range []struct{ percent, want int64 }{{0, 100}, {1, 101}, {10, 110}, {50, 150}, {99, 199}} {
		span := minute / 100 * test.percent
		a := attack{{100*minute - 1, everything}, {100*minute + span, everything}}
		if got := a.run(limit, 0).most(span + 2); got != test.want {
			t.Errorf("%v: got %d in %d%% of the period, want %d", limit, got, test.percent, test.want)
		}
	}
}

// A best is a state, and the most units that a span can admit on the way to that state.
type best struct {
	state quota.State
	units int64
}

// mostAdmitted returns the most units that any schedule of charges gets in a span of the
// period. It searches all schedules of up to three periods, from a new key on. For each
// state that can be reached, it keeps the most units that the span has admitted so far.
func mostAdmitted(l quota.Limit) (most int64) {
	period := l.Period.Microseconds()
	start := 8 * period // a window begins here
	before := map[string]best{"": {}}
	for first := start; first < start+2*period; first++ {
		if first >= start+period {
			in := before
			for now := first; now < first+period; now++ {
				in = reachable(l, in, now)
			}
			for _, b := range in {
				most = max(most, b.units)
			}
		}
		before = reachable(l, before, first)
		for k, b := range before {
			before[k] = best{state: b.state}
		}
	}
	return most
}

// reachable returns the states after one charge of any cost that fits.
func reachable(l quota.Limit, from map[string]best, now int64) map[string]best {
	to := make(map[string]best, 2*len(from))
	for _, b := range from {
		for n := range max(l.Quota, l.Burst) + 1 {
			s, d := l.Algorithm.Take(clone(b.state), &l, now, n)
			if !d.Allowed {
				break // more units do not fit either
			}
			k := stateKey(s)
			if old, ok := to[k]; !ok || old.units < b.units+n {
				to[k] = best{s, b.units + n}
			}
		}
	}
	return to
}

// stateKey returns a text that is equal for states that behave alike.
func stateKey(s quota.State) string {
	k := binary.AppendVarint(nil, s.At)
	if s.Log == nil {
		k = binary.AppendVarint(binary.AppendVarint(k, s.A), s.B)
	}
	for _, m := range s.Log {
		k = binary.AppendVarint(binary.AppendVarint(k, m.At), m.Sum-s.A)
	}
	return string(k)
}

// TestWorstCaseExhaustive compares the result of an exhaustive search with the map worst,
// for small limits. Some of these limits allow more than one unit per µs.
func TestWorstCaseExhaustive(t *testing.T) {
	sizes := []struct{ quota, burst, period int64 }{
		{1, 1, 1}, {3, 3, 1}, {3, 4, 1}, {1, 1, 2}, {2, 3, 2}, {3, 3, 2}, {1, 2, 3}, {2, 1, 3}, {4, 4, 3}, {2, 2, 4}, {3, 5, 4},
		{1, 3, 5}, {3, 2, 5}, {5, 3, 5}, {6, 2, 5}, {2, 2, 7}, {3, 3, 7}, {4, 2, 8}, {2, 3, 9},
	}
	for _, size := range sizes {
		for _, l := range withoutParameters(size.quota, size.burst, time.Duration(size.period)*time.Microsecond) {
			if got, want := mostAdmitted(l), worst[l.Algorithm.Name()](l); got != want {
				t.Errorf("%v: a schedule admits %d units in a span, want %d", l, got, want)
			}
		}
	}
	for _, size := range []struct{ quota, period int64 }{{6, 12}, {5, 9}, {3, 24}} {
		l := algorithms.SlidingWindow(size.quota, time.Duration(size.period)*time.Microsecond)
		if got, want := mostAdmitted(l), slidingWorst(l); got != want {
			t.Errorf("%v: a schedule admits %d units in a span, want %d", l, got, want)
		}
	}
}

// greedy often charges all that remains, at the instants that decisions name and at
// others. It also turns the clock back, and half of its charges may wait for up to the
// argument within. It returns the charges that were admitted.
func greedy(r *rand.Rand, l quota.Limit, within time.Duration, steps int) (h history) {
	k := newKey(l)
	now := 1_700_000_000_000_000 + r.Int64N(k.period)
	states := make([]quota.State, 1)
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}}
	for range steps {
		tx.Charges[0].Cost, tx.Within = 0, 0
		tx.Decide(now, states)
		cost := tx.Decisions[0].Remaining
		if cost == 0 || r.IntN(3) == 0 {
			cost = 1 + r.Int64N(k.burst)
		}
		tx.Charges[0].Cost = cost
		if r.IntN(2) == 0 {
			tx.Within = within
		}
		if tx.Decide(now, states) {
			h = append(h, spending{now + tx.Wait.Microseconds(), cost})
		}
		switch d := tx.Decisions[0]; r.IntN(8) {
		case 0, 1, 2:
			now += d.RetryAfter.Microseconds()
		case 3:
			now += d.NextAfter.Microseconds()
		case 4:
			now += k.period - 1 - now%k.period // to the last instant of a window
		case 5:
			now += r.Int64N(k.period)
		case 6:
			now -= r.Int64N(k.period)
		default:
			now++
		}
	}
	return h
}

// TestWorstCaseRandom: the function greedy gets no more units in a span of the period
// than the map worst gives.
func TestWorstCaseRandom(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for range 3000 {
		units, burst := 1+r.Int64N(8), 1+r.Int64N(12)
		period := 1 + r.Int64N(50)
		if r.IntN(3) == 0 {
			period = 1_000_000
		}
		burst += (units - 1) / period // a smaller burst could not keep the rate
		within := time.Duration(r.Int64N(3*period)) * time.Microsecond
		for _, l := range withoutParameters(units, burst, time.Duration(period)*time.Microsecond) {
			if l.Algorithm.Name() == "leaky-bucket" {
				within = 0 // TestWorstCaseQueue tests the queue
			}
			if got, claim := greedy(r, l, within, 40).most(period), worst[l.Algorithm.Name()](l); got > claim {
				t.Fatalf("seed %d: %v within %v: got %d units in a span, want %d at most", seed, l, within, got, claim)
			}
		}
	}
}

// TestWorstCaseQueue: if the callers of a leaky bucket wait, single units leave at
// intervals of period/leak, so a span of the period has at most leak single units,
// whatever the capacity. The n units of one charge leave together and delay the charges
// behind them by n·period/leak. The units before the last charge of a span are therefore
// fewer than leak, and the span has at most leak − 1 + n units, with n up to the
// capacity. The bound also holds if some callers wait and others do not, because it is the bound
// of a meter.
func TestWorstCaseQueue(t *testing.T) {
	const second = 1_000_000
	const start = 1_700_000_000 * second
	var flood attack
	for i := range int64(400) {
		flood = append(flood, spending{start + i*second/40, 1})
	}
	for _, test := range []struct{ capacity, leak, want int64 }{{1, 1, 1}, {20, 3, 3}, {3, 7, 7}, {100, 7, 7}} {
		l := algorithms.LeakyBucket(test.capacity, test.leak, time.Second)
		if got := flood.run(l, time.Hour).most(second); got != test.want {
			t.Errorf("%v: a queue of single units lets %d leave in a span of the period, want %d", l, got, test.want)
		}
	}
	// leak − 1 units, then the whole capacity as soon as the bucket is empty
	drip := attack{{start, 1}, {start, 1}, {start, 1}, {start, 1}, {start, 1}, {start, 1}, {start + 6*second/7 + 1, 20}}
	l := algorithms.LeakyBucket(20, 7, time.Second)
	if got := drip.run(l, time.Hour).most(second); got != 20+7-1 {
		t.Errorf("%v: a queue of large charges lets %d leave in a span of the period, want %d", l, got, 20+7-1)
	}

	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 4))
	for range 3000 {
		leak, period := 1+r.Int64N(8), 1+r.Int64N(50)
		capacity := (leak-1)/period + 1 + r.Int64N(12)
		l := algorithms.LeakyBucket(capacity, leak, time.Duration(period)*time.Microsecond)
		within := time.Duration(1+r.Int64N(5*period)) * time.Microsecond
		if got := greedy(r, l, within, 40).most(period); got > capacity+leak-1 {
			t.Fatalf("seed %d: %v within %v: got %d units in a span, want %d at most", seed, l, within, got, capacity+leak-1)
		}
		var single attack
		now := 1_000 * period
		for range 60 {
			single = append(single, spending{now, 1})
			now += r.Int64N(period/leak + 2)
		}
		if got := single.run(l, within).most(period); got > leak {
			t.Fatalf("seed %d: %v within %v: got %d single units in a span, want %d at most", seed, l, within, got, leak)
		}
	}
}

// TestWorstCaseCalendar: a span that is no longer than a window admits twice the quota.
// The Period of the limit may be longer than a window: 24 hours contain a day of 23 hours
// and parts of both neighbouring days, and 30 days contain a February. Such a span admits
// three times the quota, but no more, because no two successive windows are short.
func TestWorstCaseCalendar(t *testing.T) {
	berlin := mustLoad(t, "Europe/Berlin")
	lisbon := mustLoad(t, "Europe/Lisbon")
	tests := []struct {
		unit     algorithms.Unit
		location *time.Location
		window   time.Time // when a window begins
		end      time.Time // when it ends
		want     int64
	}{
		{algorithms.Day, nil, time.Date(2026, 5, 5, 0, 0, 0, 0, time.UTC), time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC), 20},
		{algorithms.Day, berlin, time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), time.Date(2026, 3, 30, 0, 0, 0, 0, berlin), 30},
		{algorithms.Day, berlin, time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), time.Date(2026, 10, 26, 0, 0, 0, 0, berlin), 20},
		{algorithms.Week, lisbon, time.Date(2026, 3, 23, 0, 0, 0, 0, lisbon), time.Date(2026, 3, 30, 0, 0, 0, 0, lisbon), 30},
		{algorithms.Month, nil, time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), 30},
		{algorithms.Month, nil, time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), 20},
	}
	for _, test := range tests {
		l := algorithms.Calendar(10, test.unit, test.location)
		start, end := test.window.UnixMicro(), test.end.UnixMicro()
		a := attack{{start - 1, everything}, {start, everything}, {end, everything}}
		if got := a.run(l, 0).most(l.Period.Microseconds()); got != test.want {
			t.Errorf("%v in %v around %v: got %d in %v, want %d", l, test.location, test.window, got, l.Period, test.want)
		}
	}

	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	for range 300 {
		l := algorithms.Calendar(1+r.Int64N(5), algorithms.Unit(1+r.IntN(3)), berlin)
		if got := greedy(r, l, l.Period, 40).most(l.Period.Microseconds()); got > 3*l.Quota {
			t.Fatalf("seed %d: %v: got %d units in %v, want %d at most", seed, l, got, l.Period, 3*l.Quota)
		}
		l = algorithms.Calendar(1+r.Int64N(5), algorithms.Unit(1+r.IntN(2)), nil)
		if got := greedy(r, l, l.Period, 40).most(l.Period.Microseconds()); got > 2*l.Quota {
			t.Fatalf("seed %d: %v: got %d units in %v, want %d at most", seed, l, got, l.Period, 2*l.Quota)
		}
	}
}

func mustLoad(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(fmt.Errorf("zone %s: %w", name, err))
	}
	return loc
}

// TestSlidingWindowBusy: a client that takes each unit as soon as it can gets about one unit a period
// less than the quota, and half a unit if the quota is 1, as the comment of SlidingWindow says.
func TestSlidingWindowBusy(t *testing.T) {
	const periods = 1000
	for n, want := range map[int64]float64{1: 0.5, 2: 1, 10: 9, 100: 99, 1000: 999} {
		l, now, spent := algorithms.SlidingWindow(n, time.Minute), int64(1_700_000_000_000_000), 0
		states := make([]quota.State, 1)
		for end := now + periods*l.Period.Microseconds(); now < end; {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}}}
			if tx.Decide(now, states) {
				spent++
			}
			now += tx.Decisions[0].RetryAfter.Microseconds()
		}
		if got := float64(spent) / periods; got < want || got > want*1.01+0.01 {
			t.Errorf("%d units: got %.3f a period, want %v", n, got, want)
		}
	}
}
