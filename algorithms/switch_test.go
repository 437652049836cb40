package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// A switcher charges one key under limits of one name whose numbers differ. Tiers do that,
// and so do processes with an old and a new configuration.
type switcher struct {
	limits []quota.Limit
	now    int64
	state  []quota.State
	spent  history
}

func newSwitcher(limits ...quota.Limit) *switcher {
	return &switcher{limits: limits, now: 1_700_000_000_000_000, state: make([]quota.State, 1)}
}

func (s *switcher) decide(state quota.State, l quota.Limit, now, cost int64) quota.Decision {
	state.Log = slices.Clone(state.Log)
	_, d := l.Algorithm.Take(state, &l, now, cost)
	return d
}

// charge charges cost units under the i-th limit. First it checks the decisions of that
// limit: exactly Remaining units fit, and a charge that does not fit now fits after
// RetryAfter and not a microsecond earlier.
func (s *switcher) charge(i int, cost int64) error {
	l, st := s.limits[i], s.state[0]
	look := s.decide(st, l, s.now, 0)
	fits := func(after, n int64) bool { return s.decide(st, l, s.now+after, n).Allowed }
	next := look.NextAfter.Microseconds()
	switch left, most := look.Remaining, newKey(l).burst; {
	case left < 0 || left > most:
		return fmt.Errorf("%v: Remaining is %d, which is below 0 or above the capacity", l, left)
	case left > 0 && !fits(0, left) || fits(0, left+1):
		return fmt.Errorf("%v: Remaining is %d; so many units fit: %v, one more fits: %v", l, left, left > 0 && fits(0, left), fits(0, left+1))
	case left < most && (!fits(next, left+1) || fits(next-1, left+1)):
		return fmt.Errorf("%v: one more unit does not fit after NextAfter, %d µs, or fits a microsecond earlier", l, next)
	}
	d := s.decide(st, l, s.now, cost)
	if retry := d.RetryAfter.Microseconds(); !d.Allowed && d.RetryAfter != quota.Never && (!fits(retry, cost) || fits(retry-1, cost)) {
		return fmt.Errorf("%v: RetryAfter %d µs; fits then: %v, one µs earlier: %v", l, retry, fits(retry, cost), fits(retry-1, cost))
	}
	if !d.Allowed {
		return nil
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: cost}}}
	if !tx.Decide(s.now, s.state) {
		return fmt.Errorf("%v: a charge that fits is refused", l)
	}
	if cost > 0 {
		s.spent = append(s.spent, spending{s.now, cost})
		if got, want := s.decide(s.state[0], l, s.now, 0).Remaining, look.Remaining-cost; got > want {
			return fmt.Errorf("%v: Remaining is %d, and was %d before a charge of %d", l, got, look.Remaining, cost)
		}
	} else {
		s.spent = s.spent.giveBack(-cost)
	}
	return nil
}

// TestSwitchedTiers charges a client under two tiers of one name, as the client chooses.
// Both tiers together admit no more than the worst case of the larger tier.
func TestSwitchedTiers(t *testing.T) {
	const minute = 60_000_000
	for i, large := range withoutParameters(600, 600, time.Minute) {
		small := withoutParameters(60, 60, time.Minute)[i]
		s := newSwitcher(large, small)
		for range 12_000 { // charge a unit of the smaller tier, then all that the larger one has left
			for k := 1; k >= 0; k-- {
				left := s.decide(s.state[0], s.limits[k], s.now, 0).Remaining
				if left == 0 {
					break
				}
				if k == 1 {
					left = 1
				}
				if err := s.charge(k, left); err != nil {
					t.Fatal(err)
				}
			}
			s.now += 7001
		}
		if got, claim := s.spent.most(minute), worst[large.Algorithm.Name()](large); got > claim {
			t.Errorf("%v and %v: got %d in a minute, want %d at most", large, small, got, claim)
		}
	}
}

// TestSwitchedTiersTogether: a meter of a smaller tier counts the debt of a larger tier up
// to its own capacity. The meter admits what has drained since its last charge, and its whole
// capacity once the rest of the debt has drained.
func TestSwitchedTiersTogether(t *testing.T) {
	const second = 1_000_000
	for i, large := range withoutParameters(600, 600, time.Minute)[:3] {
		small := withoutParameters(60, 60, time.Minute)[i]
		s := newSwitcher(large, small)
		if err := s.charge(0, 600); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ after, cost, left int64 }{
			{0, 0, 0}, {30 * second, 0, 30}, {0, 30, 0}, {second, 0, 1}, {0, 1, 0}, {30 * second, 0, 30},
			{0, -5, 30}, {0, 30, 0}, {60 * second, 0, 60}, {600 * second, 1, 59}, {0, 58, 1}, {0, 1, 0},
		} {
			s.now += step.after
			if err := s.charge(1, step.cost); err != nil {
				t.Fatal(err)
			}
			if got := s.decide(s.state[0], small, s.now, 0).Remaining; got != step.left {
				t.Errorf("%v after %v: got %d remaining at %+d µs, want %d", small, large, got, s.now-1_700_000_000_000_000, step.left)
			}
		}
	}
}

// randomTiers returns limits of one algorithm and one period.
func randomTiers(r *rand.Rand, kind int) (limits []quota.Limit) {
	p := []time.Duration{time.Second, time.Minute, time.Duration(1+r.Int64N(1000)) * time.Microsecond, 12 * time.Second, 24 * time.Hour}[r.IntN(5)]
	for range 2 + r.IntN(3) {
		units := []int64{1, 1 + r.Int64N(10), 1 + r.Int64N(1000), 600, 1_000_000}[r.IntN(5)]
		burst := []int64{units, 1, 1 + r.Int64N(3*units)}[r.IntN(3)]
		limits = append(limits, withoutParameters(units, burst, p)[kind])
	}
	return limits
}

// step charges a random limit, often for all that remains, and moves the clock.
func (s *switcher) step(r *rand.Rand) error {
	i := r.IntN(len(s.limits))
	l := s.limits[i]
	d := s.decide(s.state[0], l, s.now, 0)
	cost := []int64{d.Remaining, d.Remaining, 1, 1 + r.Int64N(newKey(l).burst), max(1, d.Remaining/2)}[r.IntN(5)]
	if cost > 0 {
		if err := s.charge(i, cost); err != nil {
			return err
		}
	}
	d = s.decide(s.state[0], l, s.now, 1)
	steps := []int64{0, 0, 1, r.Int64N(l.Period.Microseconds() + 1), l.Period.Microseconds(), l.Period.Microseconds() - 1,
		d.RetryAfter.Microseconds(), d.NextAfter.Microseconds(), d.ResetAfter.Microseconds() / 2}
	s.now += steps[r.IntN(len(steps))]
	return nil
}

// TestSwitchedMeters: if a key is charged under several meters of one name and period, the key
// admits in a period at most the largest Burst plus the largest Quota, minus 1.
func TestSwitchedMeters(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	for range 4000 {
		limits := randomTiers(r, r.IntN(3))
		s := newSwitcher(limits...)
		for range 60 {
			if err := s.step(r); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, limits, err)
			}
		}
		var burst, fast int64
		for _, l := range limits {
			burst, fast = max(burst, newKey(l).burst), max(fast, l.Quota)
		}
		if got, claim := s.spent.most(limits[0].Period.Microseconds()), burst+fast-1; got > claim {
			t.Fatalf("seed %d: %v: got %d in a period, want %d at most", seed, limits, got, claim)
		}
	}
}
