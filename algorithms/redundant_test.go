package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// TestRedundantRefusesNothing compares pairs of small limits of every algorithm except
// calendar. If a.Redundant(&b) is true, the limit a refuses no unit that the limit b admits,
// in 30 random sequences of units.
func TestRedundantRefusesNothing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	found := map[string]int{}
	for range 20_000 {
		a, b := smallLimit(rnd), smallLimit(rnd)
		if !a.Redundant(&b) {
			continue
		}
		found[a.Algorithm.Name()]++
		for range 30 {
			if refused(rnd, a, b) {
				t.Errorf("Redundant(%v, %v) is true, but the first limit refused a unit that the second admitted", a, b)
				break
			}
		}
	}
	for _, name := range algorithms.Names() {
		if found[name] == 0 && name != "leaky-bucket" && name != "in-flight" {
			t.Errorf("got %d redundant pairs of %s, want some: %v", found[name], name, found)
		}
	}
}

func smallLimit(rnd *rand.Rand) quota.Limit {
	names := algorithms.Names()
	l := quota.Limit{Algorithm: algorithms.ByName(names[rnd.IntN(len(names))])}
	period := 1 + rnd.Int64N(6)
	l.Period = time.Duration(period) * time.Microsecond
	l.Quota = 1 + rnd.Int64N(min(4, period)) // at most one unit per µs
	if _, meter := l.Algorithm.(optional.Metered); meter && rnd.IntN(2) == 0 {
		l.Burst = 1 + rnd.Int64N(5)
	}
	return l
}

// refused asks for units at random instants and reports whether the limit a refuses a unit
// that the limit b admits.
func refused(rnd *rand.Rand, a, b quota.Limit) bool {
	const start = 60 << 20 // a window of every small period begins here
	often := rnd.Float64()
	var ofA, ofB quota.State
	for at := int64(start); at < start+100; at++ {
		for range 8 {
			if rnd.Float64() > often {
				break
			}
			nextB, decision := b.Algorithm.Take(ofB, &b, at, 1)
			if !decision.Allowed {
				break
			}
			nextA, decision := a.Algorithm.Take(ofA, &a, at, 1)
			if !decision.Allowed {
				return true
			}
			ofA, ofB = nextA, nextB
		}
	}
	return false
}

func TestRedundant(t *testing.T) {
	log := func(units int64, period time.Duration) quota.Limit {
		return algorithms.SlidingLog(units, period)
	}
	gcra := func(units int64, period time.Duration, burst int64) quota.Limit {
		return algorithms.GCRA(units, period).WithBurst(burst)
	}
	fixed := func(units int64, period time.Duration) quota.Limit {
		return algorithms.FixedWindow(units, period)
	}
	for _, tt := range []struct {
		a, b quota.Limit
		want bool
	}{
		{log(600, 600*time.Second), log(10, 10*time.Second), true},
		{log(599, 600*time.Second), log(10, 10*time.Second), false},
		{log(605, 605*time.Second), log(10, 10*time.Second), false}, // in 605 s, the second admits 61 times 10
		{log(610, 605*time.Second), log(10, 10*time.Second), true},
		{log(20, time.Minute), log(5, 3*time.Second), false},
		{log(5, 3*time.Second), log(20, time.Minute), false},
		{log(20, 3*time.Second), log(20, time.Minute), true},
		{gcra(100, time.Minute, 10), gcra(1, time.Second, 10), true},  // the first is faster
		{gcra(60, time.Minute, 10), gcra(1, time.Second, 10), true},   // both have the same rate
		{gcra(60, time.Minute, 10), gcra(1, time.Second, 11), false},  // the second has a larger burst
		{gcra(60, time.Minute, 100), gcra(2, time.Second, 10), false}, // the first is slower
		{log(60, time.Minute), gcra(1, time.Second, 1), true},
		{log(60, time.Minute), gcra(1, time.Second, 2), false}, // the second admits 61 in a minute
		{log(61, time.Minute), gcra(1, time.Second, 2), true},
		{fixed(600, 10*time.Minute), fixed(10, 10*time.Second), true},
		{fixed(600, 10*time.Minute), fixed(7, 7*time.Second), false}, // 10 minutes touch up to 87 windows of 7 s
		{fixed(609, 10*time.Minute), fixed(7, 7*time.Second), true},
		{log(600, 10*time.Minute), fixed(10, 10*time.Second), false}, // 10 minutes touch up to 61 windows of 10 s
		{algorithms.Calendar(3, algorithms.Day, nil), algorithms.Calendar(2, algorithms.Day, nil), true},
		{algorithms.Calendar(31, algorithms.Month, nil), algorithms.Calendar(1, algorithms.Day, nil), false}, // not detected
		{log(1<<50, time.Hour), log(1<<50, time.Second), false},                                              // the numbers do not overflow
		{log(1<<50, 2*time.Second), log(1<<49, time.Second), true},
	} {
		if got := tt.a.Redundant(&tt.b); got != tt.want {
			t.Errorf("Redundant(%v, %v) is %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}
