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

// A debtor is the definition of a meter whose units are spent, forced, given back, cancelled and
// forgotten, under limits that change but have one period. Amounts are in ticks: a unit is
// worth period ticks, and as many ticks drain in a µs as the quota has units.
//
// What is owed is a level. It rises by what is spent, and drains at the rate of the limit that
// decides next. The debtor does not keep the level. It computes the level from all that was spent
// and has drained: from some unit on, more was spent than has drained.
type debtor struct {
	period  int64
	spent   []owed
	drained int64 // what has drained until last, whether it was owed or not
	last    int64 // when the newest unit is spent
	forced  int64 // how much of the level at last is beyond the burst because it was forced
}

// An owed has ticks that were spent when so much had drained.
type owed struct{ ticks, drained int64 }

// level returns what is owed at t, which is not before last.
func (b *debtor) level(l *quota.Limit, t int64) (level int64) {
	drained, since := b.drained+(t-b.last)*l.Quota, int64(0)
	for _, s := range slices.Backward(b.spent) {
		since += s.ticks
		level = max(level, since-(drained-s.drained))
	}
	return level
}

// counts returns what a limit counts of the level at t, and whether that is less than all. Of
// what was not forced, the limit counts no more than its room.
func (b *debtor) counts(l *quota.Limit, t int64) (counts int64, over bool) {
	all := b.level(l, b.last)
	most := l.Burst*b.period + b.forced
	if b.forced == 0 {
		most += min(all%b.period, l.Quota-1)
	}
	counts = min(all, most)
	return max(0, counts-(t-b.last)*l.Quota), counts < all
}

func (b *debtor) room(l *quota.Limit) int64 { return meterRoom(l.Quota, l.Burst, b.period) - 1 }

func (b *debtor) fits(l *quota.Limit, t, n int64) bool {
	if t < b.last || n > l.Burst {
		return false
	}
	counts, _ := b.counts(l, t)
	return counts+n*b.period <= b.room(l)
}

// move makes t the instant of the newest unit.
func (b *debtor) move(l *quota.Limit, t int64) {
	drained := (t - b.last) * l.Quota
	if len(b.spent) == 0 {
		drained = 0 // nothing is owed; the sum could overflow
	}
	b.last, b.drained, b.forced = t, b.drained+drained, max(0, b.forced-drained)
}

func (b *debtor) spend(l *quota.Limit, t, n int64) {
	b.move(l, t)
	b.spent = append(b.spent, owed{n * b.period, b.drained})
}

// force spends units that need not fit. No more is owed than drains in 2^50 µs, and no more than
// 2^50 units. What is beyond the burst differs from the level by whole units: it is rounded up.
func (b *debtor) force(l *quota.Limit, t, n int64) {
	most := min(1<<50*l.Quota/b.period, 1<<50)
	n = min(n, most-(b.level(l, t)+b.period-1)/b.period)
	if n <= 0 {
		return
	}
	counts, _ := b.counts(l, t)
	b.spend(l, t, n)
	if over := counts + n*b.period - l.Burst*b.period; counts+n*b.period > b.room(l) {
		rest := b.level(l, t) % b.period
		if over%b.period > rest {
			over += b.period
		}
		b.forced = max(b.forced, over-over%b.period+rest)
	}
}

// lower takes back the newest ticks.
func (b *debtor) lower(ticks int64) {
	b.forced = max(0, b.forced-ticks)
	for n := len(b.spent); ticks > 0 && n > 0; n = len(b.spent) {
		k := min(ticks, b.spent[n-1].ticks)
		if ticks -= k; k == b.spent[n-1].ticks {
			b.spent = b.spent[:n-1]
		} else {
			b.spent[n-1].ticks -= k
		}
	}
}

// giveBack gives back the newest n units. The instant of the newest unit stays.
func (b *debtor) giveBack(l *quota.Limit, now, n int64) {
	b.lower(min(n, 1<<61/b.period) * b.period)
	b.renew(l, now)
}

// renew forgets the key if nothing is owed.
func (b *debtor) renew(l *quota.Limit, now int64) {
	if b.level(l, b.last) > 0 {
		return
	}
	b.spent, b.drained, b.forced = nil, 0, 0
	if b.last <= now {
		b.last = 0
	}
}

// cancel gives back n units that were spent at an instant, without those that may have drained
// before the newest unit was spent. If the limit counts less than all, it takes back older units
// only as far as units were forced.
func (b *debtor) cancel(l *quota.Limit, now, at, n int64) {
	if at > b.last || len(b.spent) == 0 && at < now {
		return
	}
	drained, level := (b.last-at)*l.Quota, b.level(l, b.last)
	if _, over := b.counts(l, b.last); over {
		if at < b.last {
			n = min(n-(drained+b.period-1)/b.period, b.forced/b.period)
		}
		b.lower(max(0, n) * b.period)
		b.renew(l, now)
		return
	}
	back := n * b.period
	if alone := at == b.last && at >= now || level+drained < back+b.period; !alone {
		back -= drained
	}
	if back <= 0 {
		return
	}
	spare := max(0, back-b.level(l, b.last))
	b.lower(back)
	if spare > 0 {
		b.last = max(now, b.last-spare/l.Quota)
	}
	b.renew(l, now)
}

// check compares a decision with the definition. The charge was not spent if it was refused.
func (b *debtor) check(l *quota.Limit, now, cost int64, d *quota.Decision) error {
	retry, t := now+d.RetryAfter.Microseconds(), max(now, b.last)
	fits := func(at, n int64) bool { return b.fits(l, at, n) || at > t+quota.MaxTicks } // nothing is kept for longer
	switch {
	case d.Allowed || d.RetryAfter == quota.Never && cost > l.Burst:
	case cost > l.Burst || !fits(retry, cost) || fits(retry-1, cost):
		return fmt.Errorf("fits after RetryAfter: %v, one µs earlier: %v", fits(retry, cost), fits(retry-1, cost))
	}
	counts, _ := b.counts(l, t)
	left, next := max(0, b.room(l)-counts)/b.period, now+d.NextAfter.Microseconds()
	if now < b.last {
		left = 0
	}
	whole := t - now + min(quota.MaxTicks+1, (b.level(l, t)+l.Quota-1)/l.Quota)
	switch {
	case d.Remaining != left:
		return fmt.Errorf("want %d remaining", left)
	case left == l.Burst && d.NextAfter != 0, left < l.Burst && (!fits(next, left+1) || fits(next-1, left+1)):
		return fmt.Errorf("one more fits after NextAfter: %v, one µs earlier: %v", fits(next, left+1), fits(next-1, left+1))
	case d.ResetAfter.Microseconds() != whole:
		return fmt.Errorf("want ResetAfter %d µs", whole)
	}
	return nil
}

// debtLimits returns limits of one algorithm and period.
func debtLimits(r *rand.Rand) (limits []quota.Limit) {
	kind, period := r.IntN(3), []int64{1 + r.Int64N(50), 1 + r.Int64N(1000), 1_000_000, 60_000_000, 3_600_000_000}[r.IntN(5)]
	for range 1 + r.IntN(3) {
		units := []int64{1, 1 + r.Int64N(12), 1 + r.Int64N(1000)}[r.IntN(3)]
		burst := (units-1)/period + []int64{1, 1 + r.Int64N(10), units, 1 + r.Int64N(2000)}[r.IntN(4)]
		limits = append(limits, withoutParameters(units, burst, time.Duration(period)*time.Microsecond)[kind])
	}
	return limits
}

// A debtTest makes random transactions and compares each with a debtor.
type debtTest struct {
	*rand.Rand
	debtor
	limits []quota.Limit
	states []quota.State
	now    int64
	paid   []payment
	log    []string
}

// A payment is a charge that was spent, and the debtor before it.
type payment struct {
	quota.Transaction
	before debtor
}

// TestDebts compares meters with their definition, through random sequences of charges, forced
// charges, reservations, refunds of the newest units and of those of one instant, cancellations,
// resets, changes of quota and burst, and steps of the clock.
func TestDebts(t *testing.T) {
	decisions := rounds.N(50_000, 500_000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 16))
	const length = 40
	for range decisions / length {
		b := &debtTest{Rand: r, limits: debtLimits(r), states: make([]quota.State, 1), now: 1_700_000_000_000_000 + r.Int64N(1e12)}
		b.period = b.limits[0].Period.Microseconds()
		for range length {
			if err := b.step(); err != nil {
				t.Fatalf("seed %d: %v\n%v", seed, err, rounds.Last(b.log))
			}
		}
	}
}

// step makes a transaction, compares its decision, and moves the clock.
func (b *debtTest) step() error {
	tx, undone := b.transaction()
	c, before, state := &tx.Charges[0], b.debtor, b.states[0]
	before.spent = slices.Clone(before.spent)
	within, undo := tx.Within, tx.Cancels
	tx.Decide(b.now, b.states)
	d := &tx.Decisions[0]
	b.log = append(b.log, fmt.Sprintf("%d: %v cost %d of %d, within %v, mode %d: %+v, wait %v\n%+v -> %+v\n",
		b.now, c.Limit, c.Cost, c.Spent, within, tx.Mode, *d, tx.Wait, state, b.states[0]))
	switch {
	case undone == nil:
		if err := b.follow(&tx); err != nil {
			return err
		}
	case len(undo) > 0 && state.At == undo[0].After.At && state.A == undo[0].After.A && state.B == undo[0].After.B:
		b.debtor = undone.before
	default:
		b.cancel(&c.Limit, b.now, c.Spent, -c.Cost)
	}
	if err := b.check(&c.Limit, b.now, c.Cost, d); err != nil {
		return err
	}
	if c.Cost > 0 && d.Allowed && tx.Mode != quota.ModeForget && c.Cost < 1<<50 {
		b.paid = append(b.paid, payment{tx, before})
	}
	unit := b.period/c.Limit.Quota + 1
	steps := []int64{0, 0, 1, b.Int64N(unit + 1), b.Int64N(3*b.period + 1), d.NextAfter.Microseconds(), d.ResetAfter.Microseconds(), d.ResetAfter.Microseconds() - 1,
		d.ResetAfter.Microseconds() / 2, -b.Int64N(b.period + 1)}
	if d.RetryAfter != quota.Never {
		steps = append(steps, d.RetryAfter.Microseconds(), d.RetryAfter.Microseconds()-1)
	}
	if step := steps[b.IntN(len(steps))]; b.now+step < 1<<52 {
		b.now += step
	}
	return nil
}

// transaction returns a random transaction. If it gives back a payment, undone is that payment.
func (b *debtTest) transaction() (tx quota.Transaction, undone *payment) {
	l := b.limits[b.IntN(len(b.limits))]
	tx.Charges = []quota.Charge{{Limit: l, Cost: []int64{1, 1 + b.Int64N(l.Burst), l.Burst, l.Burst + 1}[b.IntN(4)]}}
	switch c := &tx.Charges[0]; b.IntN(10) {
	case 0, 1:
		tx.Mode = quota.ModeForce
		if b.IntN(2) == 0 {
			c.Cost = []int64{1 + b.Int64N(3*l.Burst), 1 + b.Int64N(5000), 1 + b.Int64N(5000), math.MaxInt64}[b.IntN(4)]
		}
	case 2:
		c.Cost = []int64{0, -c.Cost, -1 - b.Int64N(5000), math.MinInt64}[b.IntN(4)]
	case 3:
		if b.IntN(8) == 0 {
			tx.Mode = quota.ModeForget
		}
	case 4, 5:
		if n := len(b.paid); n > 0 {
			i := b.IntN(n)
			was := b.paid[i]
			b.paid = slices.Delete(b.paid, i, i+1)
			c.Cost, c.Spent = -was.Charges[0].Cost, was.Decisions[0].At
			if b.IntN(3) > 0 {
				tx.Cancels = slices.Clone(was.Undo)
			}
			return tx, &was
		}
	case 6, 7:
		if l.Algorithm.Name() != "leaky-bucket" { // TestQueueOracle tests its queue
			tx.Within = time.Duration(b.Int64N(3*b.period)) * time.Microsecond
		}
	}
	return tx, nil
}

// follow checks what a transaction has spent, and tells the debtor.
func (b *debtTest) follow(tx *quota.Transaction) error {
	c, d, at := &tx.Charges[0], &tx.Decisions[0], b.now+tx.Wait.Microseconds()
	l := &c.Limit
	switch {
	case tx.Mode == quota.ModeForget:
		b.debtor = debtor{period: b.period}
	case tx.Mode == quota.ModeForce:
		at = max(b.now, b.last)
		b.force(l, at, c.Cost)
	case c.Cost < 0:
		b.giveBack(l, b.now, -max(c.Cost, -math.MaxInt64))
	case c.Cost > 0 && d.Allowed:
		if tx.Wait > tx.Within || !b.fits(l, at, c.Cost) || tx.Wait > 0 && b.fits(l, at-1, c.Cost) {
			return fmt.Errorf("spent; fits then: %v, one µs earlier: %v", b.fits(l, at, c.Cost), b.fits(l, at-1, c.Cost))
		}
		b.spend(l, at, c.Cost)
	case c.Cost > 0 && b.fits(l, b.now, c.Cost):
		return fmt.Errorf("refused, though it fits")
	}
	if d.At != at {
		return fmt.Errorf("At is %d, want %d", d.At, at)
	}
	return nil
}

// TestLoweredDrains: a key whose limit was lowered has its burst back once the debt has drained at the
// new rate, however often it is charged meanwhile. Same period; the last two pairs differ in scale.
func TestLoweredDrains(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		before, after quota.Limit
		spent         int64
	}{
		{algorithms.GCRA(1000, time.Minute), algorithms.GCRA(10, time.Minute), 1000},
		{algorithms.GCRA(60, time.Minute).WithBurst(300), algorithms.GCRA(60, time.Minute), 300},
		{algorithms.GCRA(100_000, day), algorithms.GCRA(1000, day), 3000},
		{algorithms.GCRA(1_000_000_000, day), algorithms.GCRA(7, day), 30},
	} {
		for _, forced := range []bool{false, true} {
			now, states := int64(1_700_000_000_000_000), make([]quota.State, 1)
			do := func(l quota.Limit, n int64, mode quota.Mode) quota.Decision {
				tx := quota.Transaction{Mode: mode, Charges: []quota.Charge{{Rule: "r", Limit: l, Cost: n}}}
				tx.Decide(now, states)
				return tx.Decisions[0]
			}
			mode := quota.ModeSpend
			if forced {
				mode = quota.ModeForce
			}
			do(tt.before, tt.spent, mode)
			unit := tt.after.Period.Microseconds() / tt.after.Quota
			left := float64(tt.spent)
			n := 0
			for ; left > 1; n++ {
				now += unit * 19 / 10
				do(tt.after, 1, mode)
				left -= 0.9
			}
			d := do(tt.after, 0, quota.ModePeek)
			if d.Remaining < tt.after.Capacity()-2 {
				t.Errorf("%v, then %v, forced %v: after %d charges Remaining %d of %d, ResetAfter %v", tt.before, tt.after, forced, n, d.Remaining, tt.after.Capacity(), d.ResetAfter)
			}
		}
	}
}
