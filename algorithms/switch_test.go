package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
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
	for i, large := range all(600, 600, time.Minute) {
		small := all(60, 60, time.Minute)[i]
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
	for i, large := range all(600, 600, time.Minute)[:3] {
		small := all(60, 60, time.Minute)[i]
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

// randomTiers returns limits of one algorithm. If alike is true, all have the same period.
func randomTiers(r *rand.Rand, kind int, alike bool) (limits []quota.Limit) {
	period := func() time.Duration {
		return []time.Duration{time.Second, time.Minute, time.Duration(1+r.Int64N(1000)) * time.Microsecond, 12 * time.Second, 24 * time.Hour}[r.IntN(5)]
	}
	same := period()
	for range 2 + r.IntN(3) {
		p := same
		if !alike {
			p = period()
		}
		units := []int64{1, 1 + r.Int64N(10), 1 + r.Int64N(1000), 600, 1_000_000}[r.IntN(5)]
		burst := []int64{units, 1, 1 + r.Int64N(3*units)}[r.IntN(3)]
		limits = append(limits, all(units, burst, p)[kind])
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

// TestSwitchedMeters: if a key is charged under several meters of one name, the key
// admits in any span at most the largest burst plus what the largest rate drains in the
// span. If all limits have one period, that is the largest Burst plus the largest Quota,
// minus 1, in a period.
func TestSwitchedMeters(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 8))
	for n := range 4000 {
		limits := randomTiers(r, r.IntN(3), n%2 == 0)
		s := newSwitcher(limits...)
		for range 60 {
			if err := s.step(r); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, limits, err)
			}
		}
		var burst int64
		fast := limits[0]
		for _, l := range limits {
			burst = max(burst, newKey(l).burst)
			if l.Quota*fast.Period.Microseconds() > fast.Quota*l.Period.Microseconds() {
				fast = l
			}
		}
		for _, l := range limits {
			w := l.Period.Microseconds()
			claim := burst + (w*fast.Quota-1)/fast.Period.Microseconds()
			if got := s.spent.most(w); got > claim {
				t.Fatalf("seed %d: %v: got %d in %v, want %d at most", seed, limits, got, l.Period, claim)
			}
		}
	}
}

// TestSwitchedWindows charges a key under fixed windows of one name that differ in
// length. From its first charge in a window until the window ends, a limit counts the
// units that are spent under all limits: it admits nothing more when these units reach
// its quota.
func TestSwitchedWindows(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 10))
	for range 3000 {
		period := 10 + r.Int64N(100)
		var limits []quota.Limit
		for range 2 + r.IntN(2) {
			units := 1 + r.Int64N(20)
			limits = append(limits, algorithms.FixedWindow(units, time.Duration(period)*time.Microsecond))
			period *= 2 + r.Int64N(5) // each window lies in one window of the next limit
		}
		s := newSwitcher(limits...)
		used := make([]int64, len(limits)) // for each limit: the number of the window of its last charge
		since := make([]int, len(limits))  // for each limit: the index in s.spent of its first charge in that window
		for range 100 {
			before := len(s.spent)
			i := r.IntN(len(limits))
			l := limits[i]
			if err := s.chargeSome(r, i); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, limits, err)
			}
			if window := s.now / l.Period.Microseconds(); len(s.spent) > before && used[i] != window {
				used[i], since[i] = window, before
			}
			if sum := s.spent[since[i]:].sum(0, s.now+1); len(s.spent) > before && sum > l.Quota {
				t.Fatalf("seed %d: %v: %v admits a charge, though %d units have been spent since its first charge in this window", seed, limits, l, sum)
			}
			s.now += r.Int64N(limits[r.IntN(len(limits))].Period.Microseconds()/2 + 1)
		}
	}
}

// chargeSome charges some of the units that the i-th limit has left, if any.
func (s *switcher) chargeSome(r *rand.Rand, i int) error {
	left := s.decide(s.state[0], s.limits[i], s.now, 0).Remaining
	if left == 0 {
		return nil
	}
	return s.charge(i, 1+r.Int64N(left))
}

// switchedPeriods returns limits of one algorithm whose periods differ. The periods of
// sliding windows differ by a factor of 2 or more: see mixed.go.
func switchedPeriods(r *rand.Rand, kind int) (limits []quota.Limit) {
	period := 10 + r.Int64N(60)
	for range 2 + r.IntN(2) {
		limits = append(limits, all(1+r.Int64N(12), 1, time.Duration(period)*time.Microsecond)[kind])
		if kind == 5 || r.IntN(2) == 0 {
			period *= 2 + r.Int64N(5)
		} else {
			period += 1 + r.Int64N(3*period)
		}
	}
	r.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	return limits
}

// TestSwitchedPeriods charges a client under limits of one name whose periods differ, as
// the client chooses. From a charge under a limit until that charge no longer counts, the
// limit counts all units that are spent under any of the limits. No limit by itself
// admits more than its worst case. No limit blocks a key for longer than its own period,
// or two of its periods if it is a sliding window.
func TestSwitchedPeriods(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 11))
	for n := range rounds.N(1500, 6000) {
		kind := 4 + n%3
		s := &periodSwitcher{switcher: newSwitcher(switchedPeriods(r, kind)...), kind: kind}
		s.now += r.Int64N(1e9)
		s.uses = make([]use, len(s.limits))
		s.greedy = r.IntN(3) > 0
		for range 80 {
			if err := s.step(r); err != nil {
				t.Fatalf("seed %d: %v: %v", seed, s.limits, err)
			}
		}
		for i, l := range s.limits {
			if got, claim := s.uses[i].own.most(l.Period.Microseconds()), worst[l.Algorithm.Name()](l); got > claim {
				t.Fatalf("seed %d: %v: %v by itself admitted %d in its period, want %d at most", seed, s.limits, l, got, claim)
			}
		}
	}
}

// A use has the charges of one limit.
type use struct {
	since int     // the oldest charge that may count, as an index of the spendings of all limits
	until int64   // when the last charge no longer counts
	own   history // all charges of the limit
}

// A periodSwitcher charges limits of one kind whose periods differ. Kind 4 is anchored
// windows, kind 5 is sliding windows, and kind 6 is sliding logs.
type periodSwitcher struct {
	*switcher
	kind   int
	greedy bool
	uses   []use // of each limit
}

// step charges a random limit, often for all that remains, and moves the clock.
func (s *periodSwitcher) step(r *rand.Rand) error {
	i := r.IntN(len(s.limits))
	l := s.limits[i]
	period := l.Period.Microseconds()
	cost := s.decide(s.state[0], l, s.now, 0).Remaining
	if !s.greedy || r.IntN(4) == 0 {
		cost = 1 + r.Int64N(l.Quota)
	}
	most := period
	if s.kind == 5 {
		most *= 2
	}
	if block := s.decide(s.state[0], l, s.now, max(1, cost)).RetryAfter.Microseconds(); block > most {
		return fmt.Errorf("%v refuses a key for %d µs, which is too long", l, block)
	}
	before := len(s.spent)
	if cost > 0 {
		if err := s.charge(i, cost); err != nil {
			return fmt.Errorf("%+v: %v", s.state[0], err)
		}
	}
	if len(s.spent) > before {
		if err := s.record(i, before); err != nil {
			return err
		}
	}
	longest := int64(0)
	for _, l := range s.limits {
		longest = max(longest, l.Period.Microseconds())
	}
	d := s.decide(s.state[0], l, s.now, 1)
	steps := []int64{0, 1, r.Int64N(period), period, period - 1, r.Int64N(longest + 1), d.NextAfter.Microseconds(), d.ResetAfter.Microseconds(), max(0, d.ResetAfter.Microseconds()-1)}
	s.now += steps[r.IntN(len(steps))]
	return nil
}

// record adds the charge s.spent[n] to the uses of the i-th limit. It checks that the units
// that the limit must count are within the quota of the limit.
func (s *periodSwitcher) record(i, n int) error {
	l, u := s.limits[i], &s.uses[i]
	period := l.Period.Microseconds()
	if s.now >= u.until {
		u.since = n
	}
	seen := s.spent[u.since:]
	over := seen.sum(s.now-period+1, s.now+1) > l.Quota
	switch s.kind {
	case 4:
		over = seen.sum(0, s.now+1) > l.Quota
	case 5:
		start := s.now / period * period
		over = over && seen.sum(start-period, start)*(start+period-s.now)+seen.sum(start, s.now+1)*period > l.Quota*period
	}
	if over {
		return fmt.Errorf("%v admits %d units at %d, though %v are spent since its own charge", l, s.spent[n].n, s.now, seen)
	}
	u.own = append(u.own, s.spent[n])
	u.until = s.now + period
	if s.kind == 4 {
		u.until = s.now + s.decide(s.state[0], l, s.now, 0).NextAfter.Microseconds()
	}
	return nil
}

// TestSwitchedNear: if the periods of two sliding windows differ by less than a factor of
// 2, their windows may end at one instant. One limit may then take the counters of the
// other limit for its own, and count only a share of some units, or nothing of them. Each
// limit by itself still admits at most its worst case, 2·quota − 1, or 2·quota if units
// are given back.
func TestSwitchedNear(t *testing.T) {
	for _, tt := range []nearCase{
		{ // the 29 units of the previous window are forgotten
			[]quota.Limit{algorithms.SlidingWindow(30, time.Minute), algorithms.SlidingWindow(2, 100*time.Second)},
			[][3]int64{{179, 0, 29}, {180, 0, 1}, {200, 1, 1}, {201, 0, 28}}, 58,
		},
		{
			[]quota.Limit{algorithms.SlidingWindow(19, 12*time.Second), algorithms.SlidingWindow(2, 18*time.Second)},
			[][3]int64{{9, 0, 19}, {17, 0, 7}, {18, 1, -1}, {18, 0, 13}}, 38,
		},
	} {
		tt.run(t)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 14))
	for n := range rounds.N(5000, 40_000) {
		runNear(t, r, seed, 2+n%2)
	}
}

// A nearCase charges two sliding windows at given seconds.
type nearCase struct {
	limits []quota.Limit
	steps  [][3]int64 // for each charge: the second, the index of the limit, and the units
	want   int64      // the most units that the first limit admits in its period
}

func (tt nearCase) run(t *testing.T) {
	t.Helper()
	const second = 1_000_000
	s := newSwitcher(tt.limits...)
	start := s.now - s.now%(36*100*second)
	var own history
	for _, step := range tt.steps {
		s.now = start + step[0]*second
		before := len(s.spent)
		if err := s.charge(int(step[1]), step[2]); err != nil {
			t.Fatal(err)
		}
		if step[2] > 0 && len(s.spent) == before {
			t.Errorf("%v refuses %d units at %d s", tt.limits[step[1]], step[2], step[0])
		}
		switch {
		case step[2] < 0:
			own = own.giveBack(-step[2])
		case step[1] == 0:
			own = append(own, spending{s.now, step[2]})
		}
	}
	if got := own.most(tt.limits[0].Period.Microseconds()); got != tt.want {
		t.Errorf("%v: the first limit admits %d in its period, want %d", tt.limits, got, tt.want)
	}
}

// runNear charges several limits at random. They are sliding windows of similar periods. The
// argument count is how many limits there are.
func runNear(t *testing.T, r *rand.Rand, seed uint64, count int) {
	t.Helper()
	var limits []quota.Limit
	shortest := (2 + r.Int64N(10)) * (1 + r.Int64N(20))
	for period := shortest; len(limits) < count; period += 1 + r.Int64N(max(1, 2*shortest-period-1)) {
		limits = append(limits, algorithms.SlidingWindow([]int64{2, 1 + r.Int64N(6), 1 + r.Int64N(40), 1000}[r.IntN(4)], time.Duration(period)*time.Microsecond))
	}
	s := newSwitcher(limits...)
	s.now += r.Int64N(1000)
	gifts := int64(r.IntN(2))
	var by []int // for each spending: the index of the limit that admitted it
	for range 16 {
		i := r.IntN(len(limits))
		cost := s.decide(s.state[0], limits[i], s.now, 0).Remaining
		if cost > 1 && r.IntN(4) == 0 {
			cost = 1 + r.Int64N(cost)
		}
		if gifts > 0 && r.IntN(4) == 0 {
			cost = -1 - r.Int64N(limits[i].Quota)
		}
		before := len(s.spent)
		if err := s.charge(i, cost); err != nil {
			t.Fatalf("seed %d: %v: %+v: %v", seed, limits, s.state[0], err)
		}
		if len(s.spent) > before {
			by = append(by, i)
		}
		by = by[:len(s.spent)]
		p, q := limits[r.IntN(len(limits))].Period.Microseconds(), limits[i].Period.Microseconds()
		s.now += []int64{0, 1, p, p - 1, p - s.now%p, q - s.now%q - 1, r.Int64N(p)}[r.IntN(7)]
		for i, l := range limits {
			if got, claim := s.spent.of(by, i).most(l.Period.Microseconds()), 2*l.Quota-1+gifts; got > claim {
				t.Fatalf("seed %d: %v: %v admitted %d in its period, want %d at most: %v by %v", seed, limits, l, got, claim, s.spent, by)
			}
		}
	}
}

// of returns the spendings that the i-th limit admitted. by[k] is the limit of h[k].
func (h history) of(by []int, i int) (own history) {
	for k, c := range h {
		if by[k] == i {
			own = append(own, c)
		}
	}
	return own
}
