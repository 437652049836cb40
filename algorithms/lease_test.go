package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// A held is a lease.
type held struct {
	at, n int64          // when the units were spent, and how many are not used yet
	d     quota.Decision // the decision that spent the units
}

// TestHeld spends units in advance and uses them later, up to all that Usable allows,
// while another caller takes what is left. A new key then admits the same units at the
// instants at which they were used: the leases have exceeded no limit.
func TestHeld(t *testing.T) {
	used, histories := map[string]int{}, rounds.N(5000, 20_000)
	for range histories {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		period := time.Duration(1+r.Int64N(2000)) * time.Microsecond
		units, burst := 1+r.Int64N(300), 1+r.Int64N(300)
		for _, l := range append(withoutParameters(units, burst, period), algorithms.Calendar(units, algorithms.Day, nil)) {
			a, ok := l.Algorithm.(lease.Leaser)
			if !ok {
				continue
			}
			h, late := useLate(r, &l, a)
			used[l.Algorithm.Name()] += late
			var s quota.State
			for i, x := range h {
				var d quota.Decision
				if s, d = l.Algorithm.Take(s, &l, x.at, x.n); !d.Allowed {
					t.Fatalf("seed %d, %v: use number %d, of %d units at %d µs, exceeds the limit: %+v after %v", seed, l, i, x.n, x.at, d, rounds.Last(h[:i]))
				}
			}
		}
	}
	for _, l := range append(withoutParameters(1, 1, time.Second), algorithms.Calendar(1, algorithms.Day, nil)) {
		_, ok := l.Algorithm.(lease.Leaser)
		if n := used[l.Algorithm.Name()]; ok && n < histories/2 {
			t.Errorf("%v: got %d units used later than they were spent in %d histories, want more", l, n, histories)
		}
	}
	if used["sliding-log"] > 0 {
		t.Error("a sliding log was leased, though it records the instant of each unit")
	}
}

// useLate returns the units that were used, each with the instant of its use, and how many
// units were used later than they were spent.
func useLate(r *rand.Rand, l *quota.Limit, a lease.Leaser) (h history, late int) {
	period := l.Period.Microseconds()
	u := lateUser{r: r, limit: l, leaser: a, now: 1_700_000_000_000_000 + r.Int64N(10*period)}
	if r.IntN(2) == 0 && l.Period >= 24*time.Hour {
		u.now = 1_700_006_400_000_000 - 20_000 // 20 ms before a day ends
		period = 10_000
	}
	for range 60 {
		switch r.IntN(6) {
		case 0, 1:
			u.now += r.Int64N([]int64{3, 1 + period/8, 1 + period/2, 1 + 2*period}[r.IntN(4)])
		case 2:
			u.another()
		case 3:
			u.lease()
		case 4, 5:
			for i := range u.leases {
				if r.IntN(3) > 0 {
					u.use(&u.leases[i])
				}
			}
		}
	}
	return u.used, u.late
}

// A lateUser leases units of a key and uses them later.
type lateUser struct {
	r      *rand.Rand
	limit  *quota.Limit
	leaser lease.Leaser
	state  quota.State
	now    int64
	leases []held
	used   history
	late   int // units used later than they were spent
}

func (u *lateUser) take(n int64) (d quota.Decision) {
	u.state, d = u.limit.Algorithm.Take(u.state, u.limit, u.now, n)
	return d
}

// another caller takes all that is left, or some.
func (u *lateUser) another() {
	n := u.take(0).Remaining
	if u.r.IntN(3) == 0 {
		n = u.r.Int64N(n + 1)
	}
	if n > 0 && u.take(n).Allowed {
		u.used = append(u.used, spending{u.now, n})
	}
}

// lease leases some units. One is used now, and the others may be used later.
func (u *lateUser) lease() {
	n := u.r.Int64N(1 + u.take(0).Remaining)
	if n == 0 {
		return
	}
	if d := u.take(n); d.Allowed {
		u.used = append(u.used, spending{u.now, 1})
		u.leases = append(u.leases, held{u.now, n - 1, d})
	}
}

// use uses some or all of the units of a lease that are usable now. Before that, it may give
// some or all units of the lease back.
func (u *lateUser) use(x *held) {
	if x.n > 0 && u.r.IntN(4) == 0 && !u.leaser.Drains() {
		n := x.n
		if u.r.IntN(2) == 0 {
			n = 1 + u.r.Int64N(x.n)
		}
		u.state = u.leaser.Cancel(u.state, u.limit, u.now, x.at, n)
		x.n -= n
	}
	may := u.leaser.Usable(u.limit, x.d, x.at, u.now, x.n)
	n := may
	if u.r.IntN(2) == 0 {
		n = u.r.Int64N(may + 1)
	}
	if n == 0 {
		return
	}
	x.n = may - n
	u.used = append(u.used, spending{u.now, n})
	if u.now > x.at {
		u.late += int(n)
	}
}
