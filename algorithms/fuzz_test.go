package algorithms_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

const latest = 1 << 52 // the year 2112

// FuzzTake makes an arbitrary sequence of charges under an arbitrary limit. It checks each
// decision by asking the algorithm again at the instants that the decision names.
func FuzzTake(f *testing.F) {
	berlin := mustLoad(f, "Europe/Berlin")
	op := func(step, cost byte, n int64) []byte {
		return binary.LittleEndian.AppendUint64([]byte{step, cost}, uint64(n))
	}
	for kind := range byte(9) {
		f.Add(kind, int64(3), int64(2), int64(time.Second), int64(1_700_000_000_000_000), slices.Concat(op(0, 2, 0), op(1, 1, 0), op(3, 3, 2), op(4, 4, 1)))
		f.Add(kind, int64(1_000_000), int64(0), int64(24*time.Hour), int64(1_700_000_000_000_001), slices.Concat(op(0, 0, 700_000), op(1, 1, 0), op(6, 0, math.MinInt64), op(0, 5, math.MaxInt64)))
		f.Add(kind, int64(1)<<50, int64(0), int64(time.Microsecond), int64(0), slices.Concat(op(0, 2, 0), op(0, 1, 0), op(1, 2, 0)))
		f.Add(kind, int64(1), int64(0), int64(1<<50*time.Microsecond), int64(1)<<51, slices.Concat(op(0, 1, 0), op(0, 7, 1<<60), op(2, 1, 0)))
		f.Add(kind, int64(19), int64(0), int64(1<<50*time.Microsecond), int64(1)<<51-53, slices.Concat(op(0, 1, 0), op(0, 7, math.MaxInt64-18)))
		f.Add(kind, int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), int64(-1), op(0, 1, 0))
		f.Add(kind, int64(7), int64(100), int64(time.Minute), int64(1_700_000_000_000_000), slices.Concat(op(0, 7, 30_000_000_000), op(0, 7, 30_000_000_000), op(6, 7, 60_000_000_000), op(0, 3, 1)))
	}
	f.Fuzz(func(t *testing.T, kind byte, units, burst, period, now int64, ops []byte) {
		l := quota.Limit{Quota: units, Burst: burst, Period: time.Duration(period)}
		switch kinds := withoutParameters(1, 1, time.Second); int(kind) % (len(kinds) + 2) {
		case len(kinds):
			l.Algorithm = algorithms.Calendar(1, algorithms.Day, berlin).Algorithm
		case len(kinds) + 1:
			l.Algorithm = algorithms.Calendar(1, algorithms.Month, nil).Algorithm
		default:
			l.Algorithm = kinds[int(kind)%len(kinds)].Algorithm
		}
		if err := l.Validate(); err != nil {
			hi, lo := bits.Mul64(uint64(max(units, burst)), uint64(period/1000))
			if units > 0 && burst >= 0 && period > 0 && period%1000 == 0 && hi == 0 && lo <= 1<<50 && (burst == 0 || units/burst < period/1000) {
				t.Fatalf("%v is refused: %v", l, err)
			}
			return
		}
		c := &checker{TB: t, limit: l, capacity: newKey(l).burst}
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}}
		states := make([]quota.State, 1)
		now &= latest - 1
		for n := 0; len(ops) >= 10 && n < 30; n++ {
			step, number := ops[0], int64(binary.LittleEndian.Uint64(ops[2:]))
			cost, within := fuzzedCost(ops[1], number, c.capacity)
			tx.Within = within
			ops = ops[10:]

			before := clone(states[0])
			tx.Charges[0].Cost = cost
			c.about = fmt.Sprintf("%v, state %+v, charge %d of %d at %d within %v", l, before, n, cost, now, tx.Within)
			allowed := tx.Decide(now, states)
			c.transaction(before, states[0], now, &tx, allowed)
			c.decision(before, now, cost)
			c.view(states[0], now)

			now = min(max(now+fuzzedStep(step, number, &l, &tx.Decisions[0]), 0), latest)
		}
	})
}

// fuzzedStep returns by how many µs the clock moves: forward to an instant that the
// decision names, forward by any time, or back.
func fuzzedStep(choice byte, number int64, l *quota.Limit, d *quota.Decision) int64 {
	switch choice % 8 {
	case 1:
		if d.RetryAfter != quota.Never {
			return d.RetryAfter.Microseconds()
		}
	case 2:
		return d.NextAfter.Microseconds() - 1
	case 3:
		return d.ResetAfter.Microseconds() - 1
	case 4:
		return number % (int64(l.Period)/1000 + 1)
	case 5:
		return 1
	case 6:
		return -(number & math.MaxInt64 % (int64(l.Period)/1000 + 1))
	case 7:
		return number % latest
	}
	return 0
}

// fuzzedCost returns a cost, which is often near the capacity, and how long the charge
// may wait.
func fuzzedCost(choice byte, number, capacity int64) (cost int64, within time.Duration) {
	switch choice % 8 {
	case 1:
		return 1, 0
	case 2:
		return capacity, 0
	case 3:
		return 1 + number&math.MaxInt64%capacity, 0
	case 4:
		return -(1 + number&math.MaxInt64%capacity), 0
	case 5:
		return capacity + 1, 0
	case 6:
		return 1, time.Duration(number)
	case 7:
		return 1 + number&math.MaxInt64%capacity, time.Duration(number)
	}
	return number, 0
}

// A checker checks the decisions of an algorithm by asking the algorithm again.
type checker struct {
	testing.TB
	limit    quota.Limit
	capacity int64
	about    string
}

func clone(s quota.State) quota.State {
	s.Log = slices.Clone(s.Log)
	return s
}

// take returns the decision on a charge at an instant. It does not change s.
func (c *checker) take(s quota.State, at, cost int64) quota.Decision {
	_, d := c.limit.Algorithm.Take(clone(s), &c.limit, at, cost)
	return d
}

func (c *checker) failf(format string, args ...any) {
	c.Helper()
	c.Fatalf("%s: %s", c.about, fmt.Sprintf(format, args...))
}

// transaction checks the result of Decide: the state, Allowed and Wait.
func (c *checker) transaction(before, next quota.State, now int64, t *quota.Transaction, allowed bool) {
	c.Helper()
	switch {
	case !allowed && !reflect.DeepEqual(before, next):
		c.failf("refused, but the state changed to %+v", next)
	case allowed != t.Allowed():
		c.failf("Decide returned %v, but the decision is %+v", allowed, t.Decisions[0])
	case t.Wait < 0 || t.Wait > max(t.Within, 0) || t.Wait > 0 && !allowed:
		c.failf("allowed %v, waits %v", allowed, t.Wait)
	case t.Wait > 0 && next.At != now+t.Wait.Microseconds():
		c.failf("waits %v, and the state is %+v", t.Wait, next)
	}
	for _, n := range append([]int64{next.At, next.A, next.B, next.C}, sums(next)...) {
		if n > 1<<53 || n < 0 {
			c.failf("the state is %+v", next)
		}
	}
	if c.limit.Algorithm.Name() == "leaky-bucket" || t.Wait == 0 {
		return
	}
	wait, cost := t.Wait.Microseconds(), t.Charges[0].Cost
	if !c.take(before, now+wait, cost).Allowed || c.take(before, now+wait-1, cost).Allowed {
		c.failf("waits %v, but the charge does not fit then, or fits a microsecond earlier", t.Wait)
	}
}

func sums(s quota.State) (sums []int64) {
	for _, m := range s.Log {
		sums = append(sums, m.Sum)
	}
	return sums
}

// decision checks RetryAfter of a charge that does not wait.
func (c *checker) decision(s quota.State, now, cost int64) {
	c.Helper()
	d := c.take(s, now, cost)
	retry := d.RetryAfter.Microseconds()
	switch {
	case d.Allowed != (d.RetryAfter == 0):
		c.failf("got %+v", d)
	case cost <= 0 && !d.Allowed:
		c.failf("a cost of 0 or less is refused: %+v", d)
	case (d.RetryAfter == quota.Never) != (cost > c.capacity):
		c.failf("the capacity is %d: got %+v", c.capacity, d)
	case d.Allowed || d.RetryAfter == quota.Never:
	case d.RetryAfter < 0:
		c.failf("refused, and RetryAfter is below 0: %+v", d)
	case d.RetryAfter > d.ResetAfter:
		c.failf("refused, and ResetAfter is below RetryAfter: %+v", d)
	case !c.take(s, now+retry, cost).Allowed:
		c.failf("does not fit after %v", d.RetryAfter)
	case c.take(s, now+retry-1, cost).Allowed:
		c.failf("fits before %v", d.RetryAfter)
	}
}

// view checks the decision on a cost of 0: Remaining, NextAfter and ResetAfter.
func (c *checker) view(s quota.State, now int64) {
	c.Helper()
	d := c.take(s, now, 0)
	left, next, reset := d.Remaining, d.NextAfter.Microseconds(), d.ResetAfter.Microseconds()
	switch {
	case left < 0 || left > c.capacity || next < 0 || reset < next:
		c.failf("the key is %+v", d)
	case left > 0 && !c.take(s, now, left).Allowed:
		c.failf("the key is %+v, but %d units do not fit", d, left)
	case c.take(s, now, left+1).Allowed:
		c.failf("the key is %+v, but one more unit fits", d)
	case (left == c.capacity) != (next == 0):
		c.failf("the key is %+v, with a capacity of %d", d, c.capacity)
	case next > 0 && (!c.take(s, now+next, left+1).Allowed || c.take(s, now+next-1, left+1).Allowed):
		c.failf("the key is %+v, but one more unit does not fit at NextAfter, or fits a microsecond earlier", d)
	case reset > 1 && c.take(s, now+reset-2, c.capacity).Allowed: // under a meter, it fits in the µs before
		c.failf("the key is %+v, but the whole capacity fits before ResetAfter", d)
	}
	for _, cost := range []int64{0, 1, c.capacity, c.capacity + 1, -1} {
		for _, later := range []int64{0, 1, 1_000_000} {
			got, want := c.take(s, now+reset+later, cost), c.take(quota.State{}, now+reset+later, cost)
			if got != want {
				c.failf("%d µs after its reset the key is %+v, want %+v, as if new", later, got, want)
			}
		}
	}
}

// TestValidate: Validate accepts limits that can be counted exactly, up to the largest. For
// other limits, its error names a number that is out of range.
func TestValidate(t *testing.T) {
	const micro, tooMuch = time.Microsecond, "exceeds 2^50"
	meters := func(units, burst int64, period time.Duration) []quota.Limit {
		return withoutParameters(units, burst, period)[:3]
	}
	windows := func(units int64, period time.Duration) []quota.Limit { return withoutParameters(units, 1, period)[3:] }
	tests := []struct {
		limits []quota.Limit
		want   []string // texts in the error; nil if Validate accepts the limits
	}{
		{withoutParameters(1_000_000, 1_000_000, 24*time.Hour), nil},
		{withoutParameters(1_000_000, 1, 24*time.Hour), nil},
		{withoutParameters(300_000, 300_000, time.Second), nil},
		{withoutParameters(1, 1, micro), nil},
		{withoutParameters(1<<50, 1<<50, micro), nil},
		{withoutParameters(1, 1, 1<<50*micro), nil},
		{withoutParameters(1<<25, 1<<25, 1<<25*micro), nil},
		{withoutParameters(1<<20, 1<<30, 1<<20*micro), nil},
		{meters(1<<25+1, 2, 1<<25*micro), nil},
		{meters(3, 1<<25+1, 1<<25*micro), nil},
		{meters(1<<50, 1, 1<<50*micro), nil},
		{meters(1, 2, 1<<50*micro), []string{"burst 2 exceeds 2^50 or what becomes free"}},
		{meters(1<<50+1, 1<<50+1, micro), []string{"quota 1125899906842625", tooMuch}},
		{meters(1, 1<<50+1, micro), []string{"burst 1125899906842625", tooMuch}},
		{meters(3, 3, micro), nil},
		{meters(3, 2, micro), []string{"quota 3", "a burst of 2, which is less"}},
		{meters(1, 1, (1<<50+1)*micro), []string{"period is", "want at most 2^50 µs"}},
		{meters(math.MaxInt64, math.MaxInt64, time.Hour), []string{"quota 9223372036854775807", tooMuch}},
		{windows(1<<50, 1<<50*micro), nil},
		{windows(1<<50+1, micro), []string{"quota 1125899906842625", tooMuch}},
		{windows(1, (1<<50+1)*micro), []string{"period is", "want at most 2^50 µs"}},
		{everyAlgorithm(0, 1, time.Second), []string{"quota is 0; want at least 1"}},
		{everyAlgorithm(math.MinInt64, 1, time.Second), []string{"quota is -9223372036854775808; want at least 1"}},
		{withoutParameters(1, -1, time.Second)[:3], []string{"burst is -1; want at least 0"}},
		{withoutParameters(1, 1, 0), []string{"period is 0s; want at least 1µs"}},
		{withoutParameters(1, 1, -time.Second), []string{"period is -1s; want at least 1µs"}},
		{withoutParameters(1, 1, 1500), []string{"period is 1.5µs; want whole microseconds"}},
		{[]quota.Limit{algorithms.Calendar(1, 0, nil), algorithms.Calendar(1, algorithms.Month+1, nil)}, []string{"the unit of calendar is Unit("}},
		{[]quota.Limit{algorithms.Calendar(1<<50+1, algorithms.Day, nil)}, []string{"quota 1125899906842625", tooMuch}},
	}
	for _, test := range tests {
		for _, l := range test.limits {
			err := l.Validate()
			if test.want == nil && err != nil {
				t.Errorf("%v: got the error %v, want none", l, err)
			}
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: got the error %v, want %q in it", l, err, want)
				}
			}
		}
	}
}
