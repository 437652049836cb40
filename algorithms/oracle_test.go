package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// The oracle decides from the definitions of the algorithms, over the whole history of
// what was spent. It compares fractions exactly: both sides of a comparison are
// multiplied by the denominators, and the limits under test are small enough for that.

type spending struct{ at, n int64 }

type history []spending // in the order of their instants

func (h history) sum(from, to int64) (n int64) { // units in [from, to)
	for _, s := range h {
		if from <= s.at && s.at < to {
			n += s.n
		}
	}
	return n
}

// giveBack removes the newest n units.
func (h history) giveBack(n int64) history {
	h = append(history(nil), h...)
	for n > 0 && len(h) > 0 {
		last := &h[len(h)-1]
		k := min(n, last.n)
		n -= k
		if last.n -= k; last.n == 0 {
			h = h[:len(h)-1]
		}
	}
	return h
}

// A definition reports whether n more units fit at the instant t. No entry of h is later.
type definition func(h history, units, burst, period, t, n int64) bool

var definitions = map[string]definition{
	"fixed-window": func(h history, units, _, period, t, n int64) bool {
		start := t / period * period
		return h.sum(start, start+period)+n <= units
	},
	"calendar": func(h history, units, _, period, t, n int64) bool { // days of UTC
		start := t / period * period
		return h.sum(start, start+period)+n <= units
	},
	"anchored-window": func(h history, units, _, period, t, n int64) bool {
		var start, spent int64
		for _, s := range h {
			if spent == 0 || s.at >= start+period {
				start, spent = s.at, 0
			}
			spent += s.n
		}
		return spent == 0 || t >= start+period && n <= units || spent+n <= units
	},
	"sliding-window": func(h history, units, _, period, t, n int64) bool {
		start := t / period * period
		covered := start + period - t // how many µs of the previous window still count
		return h.sum(start-period, start)*covered+(h.sum(start, start+period)+n)*period <= units*period
	},
	"sliding-log": func(h history, units, _, period, t, n int64) bool {
		return h.sum(t-period+1, t+1)+n <= units // (t − period, t]
	},
	"gcra":         meterFits,
	"token-bucket": meterFits,
	"leaky-bucket": meterFits,
}

// meterFits is the definition of a meter: from any instant until t, no more units are
// spent than the burst plus the units that drain in that time. A unit that drains in the
// microsecond that begins at t counts as well, if no other unit does.
func meterFits(h history, units, burst, period, t, n int64) bool {
	return n <= burst && level(h, units, period, t)+n*period < meterRoom(units, burst, period)
}

// level returns what has not drained of h at t, where a unit is worth period and quota drains in
// a µs: from some instant on, more was spent than has drained.
func level(h history, units, period, t int64) (level int64) {
	var since int64
	for i := len(h) - 1; i >= 0; i-- {
		since += h[i].n
		level = max(level, since*period-(t-h[i].at)*units)
	}
	return level
}

func meterRoom(units, burst, period int64) int64 { return burst*period + min(units, period) }

// A key is what the oracle knows of a key: all that was spent, and the last instant at
// which units were spent. Nothing may be spent before that instant.
type key struct {
	limit                quota.Limit
	headroom             int64 // of the charge that is decided
	fits                 definition
	quota, burst, period int64
	spent                history
	last                 int64
}

func newKey(l quota.Limit) *key {
	k := &key{limit: l, fits: definitions[l.Algorithm.Name()], quota: l.Quota, burst: l.Burst, period: l.Period.Microseconds()}
	switch l.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		if l.Burst == 0 {
			k.burst = l.Quota
		}
	default:
		k.burst = l.Quota
	}
	return k
}

// fit reports whether n more units of the class fit at t, together with the headroom.
func (k *key) fit(t, n int64) bool { return k.fitAll(t, n+k.headroom) }

func (k *key) fitAll(t, n int64) bool {
	if full := meterRoom(k.quota, k.burst, k.period) - 1; k.overdue() {
		// The meter decides as if it had just become full when the newest unit was spent.
		held := k.burst*k.period + min(level(k.spent, k.quota, k.period, k.last)%k.period, k.quota-1)
		return t >= k.last && n <= k.burst && max(0, held-(t-k.last)*k.quota)+n*k.period <= full
	}
	return t >= k.last && k.fits(k.spent, k.quota, k.burst, k.period, t, n)
}

// fitsFrom reports whether n units fit at t, but not a microsecond earlier.
func (k *key) fitsFrom(t, n int64) bool { return k.fit(t, n) && !k.fit(t-1, n) }

// overdue reports whether a meter owed more than its limit now holds, at the instant at
// which its newest unit was spent.
func (k *key) overdue() bool {
	return k.meter() && level(k.spent, k.quota, k.period, k.last) >= meterRoom(k.quota, k.burst, k.period)
}

func (k *key) meter() bool {
	switch k.limit.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		return true
	}
	return false
}

// whole reports whether nothing that was spent counts at t any more.
func (k *key) whole(t int64) bool {
	if k.meter() {
		return t >= k.last && level(k.spent, k.quota, k.period, t) == 0
	}
	return k.fitAll(t, k.burst)
}

// change gives the limit another burst, or another quota if it has no burst. Both are at
// most 5,000,000, so that the products of the definitions fit into 63 bits.
func (k *key) change(r *rand.Rand) {
	n := 1 + r.Int64N(min(2*k.burst, 5_000_000))
	if k.limit.Burst > 0 {
		k.limit.Burst, k.burst = n, n
	} else {
		k.limit.Quota, k.quota, k.burst = n, n, n
	}
}

// check compares a decision with the definition, and records the charge in the history.
func (k *key) check(now, cost, within int64, t *quota.Transaction) error {
	if err := k.checkCharge(now, cost, within, t); err != nil {
		return err
	}
	if err := checkAt(now, t); err != nil {
		return err
	}
	return k.checkView(now, &t.Decisions[0])
}

// checkAt compares At of a decision with its definition: units that wait are spent at the end
// of the wait, and other units now.
func checkAt(now int64, t *quota.Transaction) error {
	if got, want := t.Decisions[0].At, now+t.Wait.Microseconds(); got != want {
		return fmt.Errorf("At is %d, want %d after a wait of %v", got, want, t.Wait)
	}
	return nil
}

// checkCharge compares Allowed, RetryAfter and the wait with the definition, and records the
// charge in the history.
func (k *key) checkCharge(now, cost, within int64, t *quota.Transaction) error {
	d := &t.Decisions[0]
	wait := t.Wait.Microseconds()
	switch {
	case cost <= 0:
		if !d.Allowed || d.RetryAfter != 0 || wait != 0 {
			return fmt.Errorf("a cost of 0 or less is refused")
		}
		if cost < 0 {
			k.giveBack(now, -cost)
		}
	case cost > k.burst-k.headroom:
		if d.Allowed || d.RetryAfter != quota.Never {
			return fmt.Errorf("allowed, or RetryAfter is not Never, for a cost above the capacity %d", k.burst)
		}
	case wait > 0:
		if !d.Allowed || wait > within {
			return fmt.Errorf("waits %d µs", wait)
		}
		if !k.fitsFrom(now+wait, cost) {
			return fmt.Errorf("waits %d µs; fits then: %v, one µs earlier: %v", wait, k.fit(now+wait, cost), k.fit(now+wait-1, cost))
		}
		k.spend(now+wait, cost)
	case d.Allowed:
		if d.RetryAfter != 0 || !k.fit(now, cost) {
			return fmt.Errorf("allowed, though it does not fit")
		}
		k.spend(now, cost)
	default:
		return k.checkRetry(now, cost, within, d.RetryAfter.Microseconds())
	}
	return nil
}

// checkRetry compares the RetryAfter of a refused charge, in µs, with the definition.
func (k *key) checkRetry(now, cost, within, retry int64) error {
	if retry <= within || k.fit(now, cost) {
		return fmt.Errorf("refused, though it fits")
	}
	if !k.fitsFrom(now+retry, cost) {
		return fmt.Errorf("RetryAfter %d µs; fits then: %v, one µs earlier: %v", retry, k.fit(now+retry, cost), k.fit(now+retry-1, cost))
	}
	return nil
}

func (k *key) spend(at, n int64) {
	k.spent = append(k.spent, spending{at, n})
	k.last = at
}

// giveBack removes the newest n units. If no unit counts afterwards, the key becomes a new key.
func (k *key) giveBack(now, n int64) {
	k.spent = k.spent.giveBack(n)
	if !k.meter() { // the debt of a meter falls as of the instant of the newest unit
		k.last = max(k.last, now)
	}
	if now >= k.last && !k.overdue() && k.whole(k.last) {
		k.spent, k.last = nil, 0
	}
}

// checkView compares Remaining, NextAfter and ResetAfter with the definition.
func (k *key) checkView(now int64, d *quota.Decision) error {
	left, next, reset := d.Remaining, d.NextAfter.Microseconds(), d.ResetAfter.Microseconds()
	most := max(0, k.burst-k.headroom) // for the class
	switch {
	case now < k.last && left != 0:
		return fmt.Errorf("Remaining %d before the instant of the newest unit, want 0", left)
	case now >= k.last && (left > 0 && !k.fit(now, left) || left < most && k.fit(now, left+1)):
		return fmt.Errorf("Remaining is %d; so many units fit: %v, one more fits: %v", left, k.fit(now, left), k.fit(now, left+1))
	case most == 0: // no wait helps
	case left == most && now >= k.last && k.whole(now) && next != 0:
		return fmt.Errorf("NextAfter %d µs of a key that has spent nothing, want 0", next)
	case left != most && !k.fitsFrom(now+next, left+1):
		return fmt.Errorf("NextAfter %d µs, Remaining %d; one more fits then: %v, one µs earlier: %v", next, left, k.fit(now+next, left+1), k.fit(now+next-1, left+1))
	case !k.overdue() && (!k.whole(now+reset) || reset > 0 && k.whole(now+reset-1)), !k.fitAll(now+reset, k.burst):
		return fmt.Errorf("ResetAfter %d µs; nothing counts then: %v, one µs earlier: %v", reset, k.whole(now+reset), k.whole(now+reset-1))
	}
	return nil
}

// randomLimit returns a usual limit, or one with extreme numbers.
func randomLimit(r *rand.Rand) quota.Limit {
	rates := []struct {
		quota  int64
		period time.Duration
	}{
		{3, time.Second}, {7, time.Minute}, {300_000, time.Second}, {1_000_000, 24 * time.Hour},
		{1, time.Second}, {1, time.Microsecond}, {5, 3 * time.Microsecond}, {10, time.Minute},
		{1 + r.Int64N(100), time.Duration(1+r.Int64N(1000)) * time.Microsecond},
		{1 + r.Int64N(50), time.Duration(1+r.Int64N(60)) * time.Second},
	}
	rate := rates[r.IntN(len(rates))]
	each := (rate.quota-1)/rate.period.Microseconds() + 1 // a µs
	bursts := []int64{rate.quota, each, max(each, rate.quota/3), rate.quota + 1, 3 * rate.quota}
	burst := bursts[r.IntN(len(bursts))]
	switch r.IntN(8) {
	case 0:
		return algorithms.FixedWindow(rate.quota, rate.period)
	case 1:
		return algorithms.AnchoredWindow(rate.quota, rate.period)
	case 2:
		return algorithms.SlidingWindow(rate.quota, rate.period)
	case 3:
		return algorithms.SlidingLog(rate.quota, rate.period)
	case 4:
		return algorithms.TokenBucket(burst, rate.quota, rate.period)
	case 5:
		return algorithms.LeakyBucket(burst, rate.quota, rate.period)
	case 6:
		return algorithms.Calendar(rate.quota, algorithms.Day, nil)
	}
	return algorithms.GCRA(rate.quota, rate.period).WithBurst(burst)
}

func randomCost(r *rand.Rand, k *key) int64 {
	switch r.IntN(12) {
	case 0:
		return 0
	case 1:
		return -1 - r.Int64N(k.burst)
	case 2:
		return k.burst
	case 3:
		return k.burst + 1
	case 4, 5, 6:
		return 1 + r.Int64N(k.burst)
	case 7:
		return 1 + r.Int64N(max(1, k.burst/3))
	}
	return 1
}

// randomStep returns by how many µs the clock moves: a little, a lot, back, or to the
// instants that the decision names.
func randomStep(r *rand.Rand, k *key, d *quota.Decision) int64 {
	unit := k.period/k.quota + 1
	steps := []int64{0, 0, 1, r.Int64N(unit + 1), unit, r.Int64N(k.period + 1), k.period, 3 * k.period,
		-r.Int64N(k.period + 1), -1, d.NextAfter.Microseconds(), d.ResetAfter.Microseconds(), d.ResetAfter.Microseconds() - 1}
	if d.RetryAfter != quota.Never {
		retry := d.RetryAfter.Microseconds()
		steps = append(steps, retry, retry, retry-1)
	}
	return steps[r.IntN(len(steps))]
}

// TestOracle compares decisions with the definitions of the algorithms. Some charges may
// wait, some have a headroom, and in some histories the quota or the burst changes. The test finds a bound or a
// rounding that is off by one unit or one microsecond.
func TestOracle(t *testing.T) {
	decisions := rounds.N(100_000, 1_000_000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	kinds := map[string]int{}
	const length = 40
	for range decisions / length {
		k := newKey(randomLimit(r))
		name := k.limit.Algorithm.Name()
		if err := k.limit.Validate(); err != nil {
			t.Fatal(err)
		}
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]quota.State, 1)
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limit}}}
		changing, classes := r.IntN(3) == 0, r.IntN(2) == 0
		waiting := r.IntN(2) == 0 && name != "leaky-bucket" // TestQueueOracle tests the queue of the leaky bucket
		for i := range length {
			if changing && r.IntN(6) == 0 {
				k.change(r)
				tx.Charges[0].Limit = k.limit
			}
			cost, within := randomCost(r, k), int64(0)
			if waiting && r.IntN(2) == 0 {
				within = r.Int64N(3 * k.period)
			}
			if k.headroom = 0; classes && within == 0 {
				k.headroom = []int64{0, 1, k.burst / 3, r.Int64N(k.burst + 2)}[r.IntN(4)]
			}
			tx.Charges[0].Cost, tx.Charges[0].Headroom = cost, k.headroom
			tx.Within = time.Duration(within) * time.Microsecond
			tx.Decide(now, states)
			if err := k.check(now, cost, within, &tx); err != nil {
				t.Fatalf("seed %d: %v, decision %d at %d of cost %d within %d µs, headroom %d: %v\ngot %+v, wait %v\nspent %v",
					seed, k.limit, i, now, cost, within, k.headroom, err, tx.Decisions[0], tx.Wait, rounds.Last(k.spent))
			}
			now += randomStep(r, k, &tx.Decisions[0])
			kinds[name]++
		}
	}
	if len(kinds) != len(definitions) {
		t.Errorf("decided %v; want all of %d algorithms", kinds, len(definitions))
	}
}

// TestQueueOracle compares the leaky bucket as a queue with its definition: a charge of n
// units delays the next one by n·period/quota, a charge departs in the whole microsecond of its
// turn, and the bucket never holds more than its capacity.
func TestQueueOracle(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 20_000 {
		units, period := 1+r.Int64N(20), 1+r.Int64N(1000)
		if r.IntN(4) == 0 {
			units, period = 3, 1_000_000
		}
		capacity := units/period + 1 + r.Int64N(3*units)
		limit := algorithms.LeakyBucket(capacity, units, time.Duration(period)*time.Microsecond)
		now := int64(1_700_000_000_000_000)
		q := queue{quota: units, period: period, capacity: capacity}
		states := make([]quota.State, 1)
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: limit}}}
		for i := range 40 {
			cost := 1 + r.Int64N(capacity)
			if r.IntN(2) == 0 {
				cost = 1
			}
			within := r.Int64N(2 * period)
			if within == 0 {
				within = 1
			}
			tx.Charges[0].Cost, tx.Within = cost, time.Duration(within)*time.Microsecond
			tx.Decide(now, states)

			if err := q.check(now, cost, within, &tx); err != nil {
				t.Fatalf("seed %d: %v, charge %d of cost %d within %d µs: %v", seed, limit, i, cost, within, err)
			}
			if r.IntN(3) > 0 {
				now += r.Int64N(period/units + 2)
			}
		}
	}
}

// A queue is the definition of a leaky bucket whose callers wait.
type queue struct {
	quota, period, capacity int64
	free                    int64 // when all units in the bucket have leaked, in µs times quota
}

// admits returns how many µs after now a charge departs. ok says that the bucket has room
// for the charge, and that its wait is at most within.
func (q *queue) admits(now, cost, within int64) (wait int64, ok bool) {
	level := max(0, q.free-now*q.quota) // in units times period
	wait = level / q.quota
	return wait, level+cost*q.period < meterRoom(q.quota, q.capacity, q.period) && wait <= within
}

// check compares a decision with the definition, and records the charge.
func (q *queue) check(now, cost, within int64, tx *quota.Transaction) error {
	wait, want := q.admits(now, cost, within)
	got := tx.Allowed()
	if got != want || got && tx.Wait.Microseconds() != wait {
		return fmt.Errorf("got %v after %v, want %v after %d µs", got, tx.Wait, want, wait)
	}
	if err := checkAt(now, tx); err != nil {
		return err
	}
	if got {
		q.free = max(q.free, now*q.quota) + cost*q.period
		return nil
	}
	retry := tx.RetryAfter().Microseconds()
	_, then := q.admits(now+retry, cost, within)
	_, earlier := q.admits(now+retry-1, cost, within)
	if !then || earlier {
		return fmt.Errorf("RetryAfter %d µs; admitted then: %v, one µs earlier: %v", retry, then, earlier)
	}
	return nil
}
