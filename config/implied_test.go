package config

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// Small limits of every algorithm, and for each pair all that can happen to
// them in a while: implied must be true where a is never the one to refuse, and
// false where it is once, except that it may miss something of sliding windows.
func TestImplied(t *testing.T) {
	pairs := 600
	if testing.Short() {
		pairs = 150
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	found := map[bool]int{}
	for range pairs {
		a, b := smallLimit(rnd), smallLimit(rnd)
		got, want := implied(a, b), !canRefuse(a.Limit, b.Limit)
		exact := a.Algorithm.Name() != "leaky-bucket" && a.Algorithm.Name() != "sliding-window" && b.Algorithm.Name() != "sliding-window"
		if got && !want || exact && got != want {
			t.Errorf("implied(%v, %v) is %v, want %v", a.Limit, b.Limit, got, want)
		}
		if exact {
			found[want]++
		}
	}
	if found[true] < pairs/10 || found[false] < pairs/10 {
		t.Errorf("the pairs are one-sided: %v", found)
	}
}

func smallLimit(rnd *rand.Rand) limit {
	l := counters[rnd.IntN(len(counters))]
	period := 1 + rnd.Int64N(6)
	l.Period = time.Duration(period) * time.Microsecond
	l.Quota = 1 + rnd.Int64N(min(4, period)) // clocks tick faster than limits
	l.Burst = 0
	if isMeter(limit{Limit: l}) && rnd.IntN(2) == 0 {
		l.Burst = 1 + rnd.Int64N(5)
	}
	return limit{Limit: l}
}

// canRefuse searches for a time at which a refuses a unit that b allows.
func canRefuse(a, b weir.Limit) bool {
	type node struct{ a, b weir.State }
	const start = 1 << 20 * 60 // where windows of every small period begin
	now := []node{{}}
	for at := int64(start); at < start+120; at++ {
		seen := map[string]bool{}
		for i := 0; i < len(now); i++ { // grows: units of the same µs
			n := now[i]
			nextB, db := take(n.b, &b, at)
			if !db.Allowed {
				continue
			}
			nextA, da := take(n.a, &a, at)
			if !da.Allowed {
				return true
			}
			if k := stateKey(nextA, nextB, at); !seen[k] {
				seen[k] = true
				now = append(now, node{nextA, nextB})
			}
		}
		seen = map[string]bool{}
		next := now[:0]
		for _, n := range now {
			if _, d := a.Algorithm.Take(n.a, &a, at+1, 0); d.ResetAfter == 0 {
				n.a = weir.State{}
			}
			if _, d := b.Algorithm.Take(n.b, &b, at+1, 0); d.ResetAfter == 0 {
				n.b = weir.State{}
			}
			if k := stateKey(n.a, n.b, at); !seen[k] {
				seen[k] = true
				next = append(next, n)
			}
		}
		now = next
	}
	return false
}

// take leaves s alone, so that more than one future can follow from it.
func take(s weir.State, l *weir.Limit, at int64) (weir.State, weir.Decision) {
	s.Log = slices.Clone(s.Log)
	return l.Algorithm.Take(s, l, at, 1)
}

func stateKey(a, b weir.State, at int64) string {
	var k []byte
	for _, s := range []weir.State{a, b} {
		k = binary.AppendVarint(k, at-s.At)
		k = binary.AppendVarint(k, s.A)
		k = binary.AppendVarint(k, s.B)
		k = binary.AppendVarint(k, int64(len(s.Log)))
		for _, m := range s.Log {
			k = binary.AppendVarint(k, at-m.At)
			k = binary.AppendVarint(k, m.Sum)
		}
	}
	return string(k)
}

func TestImpliedOfReal(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	log := func(quota int64, period time.Duration) limit {
		return limit{Limit: algorithms.SlidingLog(quota, period)}
	}
	gcra := func(quota int64, period time.Duration, burst int64) limit {
		return limit{Limit: algorithms.GCRA(quota, period).WithBurst(burst)}
	}
	fixed := func(quota int64, period time.Duration) limit {
		return limit{Limit: algorithms.FixedWindow(quota, period)}
	}
	sliding := func(quota int64, period time.Duration) limit {
		return limit{Limit: algorithms.SlidingWindow(quota, period)}
	}
	per := func(quota int64, unit algorithms.Unit, loc *time.Location) limit {
		return limit{algorithms.Calendar(quota, unit, loc), unit, loc}
	}
	const day = 24 * time.Hour
	for _, tt := range []struct {
		a, b limit
		want bool
	}{
		{log(600, 600*time.Second), log(10, 10*time.Second), true},
		{log(599, 600*time.Second), log(10, 10*time.Second), false},
		{log(605, 605*time.Second), log(10, 10*time.Second), false}, // 61 bursts begin in it
		{log(610, 605*time.Second), log(10, 10*time.Second), true},
		{log(20, time.Minute), log(5, 3*time.Second), false},
		{log(5, 3*time.Second), log(20, time.Minute), false},
		{log(20, 3*time.Second), log(20, time.Minute), true},
		{gcra(100, time.Minute, 10), gcra(1, time.Second, 10), true},  // faster
		{gcra(60, time.Minute, 10), gcra(1, time.Second, 10), true},   // the same
		{gcra(60, time.Minute, 10), gcra(1, time.Second, 11), false},  // by its burst
		{gcra(60, time.Minute, 100), gcra(2, time.Second, 10), false}, // slower
		{log(60, time.Minute), gcra(1, time.Second, 1), true},
		{log(60, time.Minute), gcra(1, time.Second, 2), false}, // 61
		{log(61, time.Minute), gcra(1, time.Second, 2), true},
		{fixed(600, 10*time.Minute), fixed(10, 10*time.Second), true},
		{fixed(600, 10*time.Minute), fixed(7, 7*time.Second), false}, // touches 87 of them
		{fixed(609, 10*time.Minute), fixed(7, 7*time.Second), true},
		{log(600, 10*time.Minute), fixed(10, 10*time.Second), false}, // touches 61
		{sliding(600, 10*time.Minute), log(10, 10*time.Second), false},
		{sliding(610, 10*time.Minute), log(10, 10*time.Second), true},
		{per(3100, algorithms.Month, berlin), per(100, algorithms.Day, berlin), true},
		{per(3099, algorithms.Month, berlin), per(100, algorithms.Day, berlin), false},
		{per(3100, algorithms.Month, berlin), per(100, algorithms.Day, time.UTC), false},
		{per(24, algorithms.Day, time.UTC), log(1, time.Hour), true},
		{per(24, algorithms.Day, berlin), log(1, time.Hour), false}, // 25 hours
		{per(100, algorithms.Day, time.UTC), fixed(100, day), true},
		{fixed(100, day), per(100, algorithms.Day, time.UTC), true},
		{fixed(100, day), per(100, algorithms.Day, berlin), false},
		{gcra(100, day, 200), per(100, algorithms.Day, time.UTC), true},
		{gcra(100, day, 198), per(100, algorithms.Day, time.UTC), false},
		{gcra(1000, day, 1000), per(100, algorithms.Day, berlin), false},
		{log(1<<50, time.Hour), log(1<<50, time.Second), false}, // the numbers do not overflow
		{log(1<<50, 2*time.Second), log(1<<49, time.Second), true},
	} {
		if got := implied(tt.a, tt.b); got != tt.want {
			t.Errorf("implied(%v, %v) is %v, want %v", tt.a.Limit, tt.b.Limit, got, tt.want)
		}
	}
}
