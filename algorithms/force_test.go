package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestForce: after units were spent by force, each charge is decided by the definition of
// the algorithm. The definition counts forced units as if they had fitted.
func TestForce(t *testing.T) {
	histories := 20_000
	if testing.Short() {
		histories = 2_000
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 5))
	for range histories {
		k := newKey(randomLimit(r))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		states := make([]weir.State, 1)
		for i := range 20 {
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: k.limit, Cost: 1 + r.Int64N(k.burst)}}}
			if tx.Force = r.IntN(4) == 0; tx.Force {
				tx.Charges[0].Cost = 1 + r.Int64N(3*k.burst)
			}
			cost := tx.Charges[0].Cost
			fits := func(at int64) bool { return k.fits(k.spent, k.quota, k.burst, k.period, at, cost) }
			tx.Decide(now, states)
			d := &tx.Decisions[0]
			retry := now + d.RetryAfter.Microseconds()
			switch {
			case d.Allowed && !tx.Force && !fits(now), !d.Allowed && (tx.Force || fits(now) || !fits(retry) || fits(retry-1)):
				t.Fatalf("seed %d: %v, decision %d at %d of cost %d, force %v: got %+v\nspent %v", seed, k.limit, i, now, cost, tx.Force, *d, k.spent)
			case d.Allowed:
				k.spent = append(k.spent, spending{now, cost})
				if err := k.checkForced(now, tx.Force, d); err != nil {
					t.Fatalf("seed %d: %v, decision %d at %d of cost %d, force %v: %v\nspent %v", seed, k.limit, i, now, cost, tx.Force, err, k.spent)
				}
			}
			now += max(0, randomStep(r, k, d))
		}
	}
}

// checkForced compares At of a decision with its definition: the units are spent now. But if
// they are forced, a meter spends them at the first instant at which it holds all that was
// spent.
func (k *key) checkForced(now int64, forced bool, d *weir.Decision) error {
	holds := func(at int64) bool { return k.fits(k.spent, k.quota, k.burst, k.period, at, 0) }
	switch k.limit.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		if forced {
			if d.At < now || !holds(d.At) || d.At > now && holds(d.At-1) {
				return fmt.Errorf("At is %d; the meter holds its units then: %v, one µs earlier: %v", d.At, holds(d.At), holds(d.At-1))
			}
			return nil
		}
	}
	if d.At != now {
		return fmt.Errorf("At is %d, want %d", d.At, now)
	}
	return nil
}

// TestForceKeepsTheRate: in the long run a meter admits its rate, even if many charges are
// forced.
func TestForceKeepsTheRate(t *testing.T) {
	for _, l := range []weir.Limit{algorithms.GCRA(10, time.Second), algorithms.GCRA(10, time.Second).WithBurst(3)} {
		states, now, spent := make([]weir.State, 1), int64(1e15), int64(0)
		for range 1000 { // for 100 s; a forced charge of 7 follows each charge of 1 that fits
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: l, Cost: 1}}}
			if tx.Decide(now, states) {
				tx.Charges[0].Cost, tx.Force = 7, true
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
	states, now := make([]weir.State, 1), int64(1e15)
	one := weir.Charge{Limit: l, Cost: 1}
	reservation := weir.Transaction{Charges: []weir.Charge{one}, Within: time.Second}
	for _, tx := range []*weir.Transaction{
		{Charges: []weir.Charge{one}}, &reservation, {Charges: []weir.Charge{one}, Force: true},
	} {
		if !tx.Decide(now, states) {
			t.Fatalf("got %+v, want it allowed", tx.Decisions)
		}
	}
	back := one
	back.Cost, back.Spent = -2, reservation.Decisions[0].At
	(&weir.Transaction{Charges: []weir.Charge{back}, Undo: reservation.Undo}).Decide(now, states)
	again := weir.Transaction{Charges: []weir.Charge{one}}
	if again.Decide(now, states) || again.Decisions[0].RetryAfter != time.Second {
		t.Errorf("got %+v, want the first unit to count for a second", again.Decisions[0])
	}
}
