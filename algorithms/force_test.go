package algorithms_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// TestForce: after units were spent by force, each charge is decided by the definition of
// the algorithm. The definition counts forced units as if they had fitted. In between, the quotas
// of windows and logs change, and units are given back or forgotten. TestDebts does that with
// meters.
func TestForce(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	for range rounds.N(2000, 20_000) {
		k := newKey(randomLimit(r))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]quota.State, 1)
		for i := range 20 {
			if !k.meter() {
				k.disturb(r, now, states)
			}
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}}
			forced := r.IntN(4) == 0
			if forced {
				tx.Mode, tx.Charges[0].Cost = quota.ModeForce, 1+r.Int64N(3*k.burst)
			}
			cost := tx.Charges[0].Cost
			fits := func(at int64) bool { return k.fits(k.spent, k.quota, k.burst, k.period, at, cost) }
			tx.Decide(now, states)
			d := &tx.Decisions[0]
			retry := now + d.RetryAfter.Microseconds()
			switch {
			case d.Allowed && !forced && !fits(now), !d.Allowed && (forced || fits(now) || !fits(retry) || fits(retry-1)):
				t.Fatalf("seed %d: %v, decision %d at %d of cost %d, force %v: got %+v\nspent %v", seed, k.limit, i, now, cost, forced, *d, rounds.Last(k.spent))
			case d.Allowed:
				if k.spent = append(k.spent, spending{now, cost}); d.At != now {
					t.Fatalf("seed %d: %v, decision %d at %d of cost %d, force %v: At is %d\nspent %v", seed, k.limit, i, now, cost, forced, d.At, rounds.Last(k.spent))
				}
			}
			now += max(0, randomStep(r, k, d))
		}
	}
}

// disturb sometimes changes the quota, or gives back units, or forgets all of them.
func (k *key) disturb(r *rand.Rand, now int64, states []quota.State) {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: k.limit, Cost: -1 - r.Int64N(3*k.burst)}}}
	switch r.IntN(16) {
	case 0, 1:
		k.change(r)
	case 2, 3:
		tx.Decide(now, states)
		k.giveBack(now, -tx.Charges[0].Cost)
	case 4:
		tx.Mode = quota.ModeForget
		tx.Decide(now, states)
		k.spent = nil
	}
}

// TestForceKeepsTheRate: in the long run a meter admits its rate, even if many charges are
// forced.
func TestForceKeepsTheRate(t *testing.T) {
	for _, l := range []quota.Limit{algorithms.GCRA(10, time.Second), algorithms.GCRA(10, time.Second).WithBurst(3)} {
		states, now, spent := make([]quota.State, 1), int64(1e15), int64(0)
		for range 1000 { // for 100 s; a forced charge of 7 follows each charge of 1 that fits
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}}}
			if tx.Decide(now, states) {
				tx.Charges[0].Cost, tx.Mode = 7, quota.ModeForce
				tx.Decide(now, states)
				spent += 8
			}
			now += 100_000
		}
		if spent < 1000 || spent > 1000+l.Capacity()+8 {
			t.Errorf("%v: got %d units in 100 s, want 1000 to 1000 + the capacity + 8", l, spent)
		}
	}
}

// TestForceAfterReservation: a forced charge behind a reservation drops no older units,
// because the older units count again if the reservation is canceled.
func TestForceAfterReservation(t *testing.T) {
	l := algorithms.SlidingLog(1, time.Second)
	states, now := make([]quota.State, 1), int64(1e15)
	one := quota.Charge{Limit: l, Cost: 1}
	reservation := quota.Transaction{Charges: []quota.Charge{one}, Within: time.Second}
	for _, tx := range []*quota.Transaction{
		{Charges: []quota.Charge{one}}, &reservation, {Charges: []quota.Charge{one}, Mode: quota.ModeForce},
	} {
		if !tx.Decide(now, states) {
			t.Fatalf("got %+v, want it allowed", tx.Decisions)
		}
	}
	back := one
	back.Cost, back.Spent = -2, reservation.Decisions[0].At
	(&quota.Transaction{Charges: []quota.Charge{back}, Cancels: reservation.Undo}).Decide(now, states)
	again := quota.Transaction{Charges: []quota.Charge{one}}
	if again.Decide(now, states) || again.Decisions[0].RetryAfter != time.Second {
		t.Errorf("got %+v, want the first unit to count for a second", again.Decisions[0])
	}
}

// TestDebtIsALevel: a debt drains by the numbers in force, units that are given back reduce it
// in every order, and it ends when all units are given back.
func TestDebtIsALevel(t *testing.T) {
	const now, all = 1_700_000_000_000_000, -1 << 52
	hourly := algorithms.GCRA(1000, time.Hour)
	daily := algorithms.GCRA(1_000_000, 24*time.Hour)
	type step struct {
		limit       quota.Limit
		cost, spent int64 // forced if cost > 1
		at          int64
	}
	for _, test := range []struct {
		about string
		steps []step
		retry time.Duration // of the last step, if it costs a unit; otherwise the ResetAfter
	}{
		{"a debt", []step{{hourly, 5000, 0, 0}, {hourly, 1, 0, 0}}, 4*time.Hour + 3600*time.Millisecond},
		{"raised", []step{{hourly, 5000, 0, 0}, {algorithms.GCRA(10_000_000, time.Hour), 1, 0, 0}}, 0},
		{"raised to less", []step{{hourly, 5000, 0, 0}, {algorithms.GCRA(2000, time.Hour), 1, 0, 0}}, 90*time.Minute + 1800*time.Millisecond},
		{"raised and lowered", []step{{hourly, 5000, 0, 0}, {algorithms.GCRA(10_000, time.Hour), 1, 0, 0}, {hourly, 1, 0, 0}}, 4*time.Hour + 3600*time.Millisecond},
		{"another rate later", []step{{hourly, 5000, 0, 0}, {hourly.WithBurst(4), 1, 0, 3600e6}}, 3*time.Hour + 3600*time.Millisecond},
		{"lowered", []step{{daily, 1_000_001, 0, 0}, {algorithms.GCRA(100, 24*time.Hour), 1, 0, 0}}, 2 * 864 * time.Second},
		{"lowered, then forced", []step{{daily, 1_000_000, 0, 0}, {algorithms.GCRA(100, 24*time.Hour), 2, 0, 0}, {algorithms.GCRA(100, 24*time.Hour), 1, 0, 0}}, 3 * 864 * time.Second},
		{"reset", []step{{hourly, 5000, 0, 0}, {hourly, all, 0, 1}, {hourly, 1, 0, 1}}, 0},
		{"refund, then debt", []step{{hourly, 400, 0, 0}, {hourly, -400, now, 1}, {hourly, 5000, 0, 1}, {hourly, 0, 0, 1}}, 5 * time.Hour},
		{"debt, then refund", []step{{hourly, 400, 0, 0}, {hourly, 5000, 0, 1}, {hourly, -400, now, 1}, {hourly, 0, 0, 1}}, 5 * time.Hour},
		{"debt, then the newest", []step{{hourly, 400, 0, 0}, {hourly, 5000, 0, 0}, {hourly, -400, 0, 0}, {hourly, 0, 0, 0}}, 5 * time.Hour},
		{"refund of a debt", []step{{hourly, 5000, 0, 0}, {hourly, 1000, 0, 1}, {hourly, -5000, now, 3600e6}, {hourly, 0, 0, 3600e6}}, time.Microsecond},
		{"the most", []step{{algorithms.GCRA(1, time.Hour), math.MaxInt64, 0, 0}, {algorithms.GCRA(1, time.Hour), 0, 0, 0}}, 1 << 50 / 3_600_000_000 * time.Hour},
	} {
		states := make([]quota.State, 1)
		var d quota.Decision
		for _, s := range test.steps {
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: s.limit.Named("l"), Cost: s.cost, Spent: s.spent}}}
			if s.cost > 1 {
				tx.Mode = quota.ModeForce
			}
			tx.Decide(now+s.at, states)
			d = tx.Decisions[0]
		}
		got := d.RetryAfter
		if test.steps[len(test.steps)-1].cost != 1 {
			got = d.ResetAfter
		}
		if got != test.retry {
			t.Errorf("%s: got %v, want %v", test.about, got, test.retry)
		}
	}
}
