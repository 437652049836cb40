package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/lease"
)

// A held is a lease: n units, not yet used, of those that decision d spent at the instant at.
type held struct {
	at, n int64
	d     weir.Decision
}

// TestHeld spends units in advance and uses them as late, and as many at once, as Usable
// allows, while another caller takes what is left. A new key admits the same units at the
// instants at which they were used, so the leases exceed no limit.
func TestHeld(t *testing.T) {
	used := map[string]int{}
	for range 20_000 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		period := time.Duration(1+r.Int64N(2000)) * time.Microsecond
		quota, burst := 1+r.Int64N(300), 1+r.Int64N(300)
		for _, l := range append(all(quota, burst, period), algorithms.Calendar(quota, algorithms.Day, nil)) {
			a, ok := l.Algorithm.(lease.Leaser)
			if !ok {
				continue
			}
			h, late := useLate(r, &l, a)
			used[l.Algorithm.Name()] += late
			var s weir.State
			for i, x := range h {
				var d weir.Decision
				if s, d = l.Algorithm.Take(s, &l, x.at, x.n); !d.Allowed {
					t.Fatalf("seed %d, %v: number %d, %d units at %d µs, is beyond the limit: %+v after %v", seed, l, i, x.n, x.at, d, h[:i])
				}
			}
		}
	}
	for _, l := range append(all(1, 1, time.Second), algorithms.Calendar(1, algorithms.Day, nil)) {
		_, ok := l.Algorithm.(lease.Leaser)
		if n := used[l.Algorithm.Name()]; ok && n < 10_000 {
			t.Errorf("%v: got %d units used later than they were spent, too few to show anything", l, n)
		}
	}
	if used["sliding-log"] > 0 {
		t.Error("a sliding log was leased, though it records the instant of each unit")
	}
}

// useLate returns the units used, with the instants of their use, and how many of them were
// used later than they were spent.
func useLate(r *rand.Rand, l *weir.Limit, a lease.Leaser) (h history, late int) {
	var s weir.State
	var leases []held
	period := l.Period.Microseconds()
	now := 1_700_000_000_000_000 + r.Int64N(10*period)
	if r.IntN(2) == 0 && l.Period >= 24*time.Hour {
		now = 1_700_006_400_000_000 - 20_000 // a day ends
		period = 10_000
	}
	take := func(n int64) (d weir.Decision) {
		s, d = l.Algorithm.Take(s, l, now, n)
		return d
	}
	for range 60 {
		switch r.IntN(6) {
		case 0, 1:
			now += r.Int64N([]int64{3, 1 + period/8, 1 + period/2, 1 + 2*period}[r.IntN(4)])
		case 2: // another caller takes all that is left, or some
			n := take(0).Remaining
			if r.IntN(3) == 0 {
				n = r.Int64N(n + 1)
			}
			if n > 0 && take(n).Allowed {
				h = append(h, spending{now, n})
			}
		case 3: // lease some units: one is used now, the others later
			room := take(0).Remaining
			if n := r.Int64N(1 + room); n > 0 {
				if d := take(n); d.Allowed {
					h = append(h, spending{now, 1})
					leases = append(leases, held{now, n - 1, d})
				}
			}
		case 4, 5:
			for i := range leases {
				x := &leases[i]
				if r.IntN(3) == 0 {
					continue
				}
				if r.IntN(4) == 0 && !a.Drains() { // give back the units that are left
					s = a.Cancel(s, l, now, x.at, x.n)
					x.n = 0
				}
				may := a.Usable(l, x.d, x.at, now, x.n)
				n := may
				if r.IntN(2) == 0 {
					n = r.Int64N(may + 1)
				}
				if n == 0 {
					continue
				}
				x.n = may - n
				h = append(h, spending{now, n})
				if now > x.at {
					late += int(n)
				}
			}
		}
	}
	return h, late
}
