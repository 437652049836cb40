package quota_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestPeekAndReset: Peek spends nothing, and Reset gives back all units of its keys and no
// units of other keys.
func TestPeekAndReset(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(5, time.Hour), algorithms.TokenBucket(5, 1, time.Hour), algorithms.LeakyBucket(5, 1, time.Hour),
		algorithms.FixedWindow(5, time.Hour), algorithms.AnchoredWindow(5, time.Hour),
		algorithms.SlidingWindow(5, time.Hour), algorithms.SlidingLog(5, time.Hour), algorithms.Calendar(5, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, store := context.Background(), memstore.New(memstore.Options{})
			spend := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 4}
			other := quota.Charge{Rule: "api", Key: "other", Limit: limit, Cost: 4}
			take(t, store, 0, spend)
			take(t, store, 0, other)
			left := func(c quota.Charge) int64 {
				tx, err := quota.Peek(ctx, store, c)
				if err != nil {
					t.Fatal(err)
				}
				return tx.Decisions[0].Remaining
			}
			if a, b := left(spend), left(spend); a != 1 || b != 1 {
				t.Errorf("%v: peeked %d and %d, want 1 left both times", limit, a, b)
			}
			if err := quota.Reset(ctx, store, spend); err != nil {
				t.Fatal(err)
			}
			if a, b := left(spend), left(other); a != 5 || b != 1 {
				t.Errorf("%v: after a reset %d left, and %d of another key; want 5 and 1", limit, a, b)
			}
		})
	}
}

// TestPeekCost: Peek of a charge says what Take then decides about the charge, through every
// decorator, and spends nothing.
func TestPeekCost(t *testing.T) {
	limit := algorithms.GCRA(5, time.Hour)
	for name, around := range map[string]func(quota.Store) quota.Store{
		"hybrid":  func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"breaker": func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"fallback": func(s quota.Store) quota.Store {
			return quota.Fallback(s, memstore.New(memstore.Options{}), quota.FallbackOptions{})
		},
		"coalesce": func(s quota.Store) quota.Store { return quota.Coalesce(s) },
		"share":    func(s quota.Store) quota.Store { return quota.Share(s, 1) },
		"lease":    func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := around(memstore.New(memstore.Options{}))
			for range 3 {
				for cost := range int64(7) {
					checkPeek(t, name, store, limit, cost)
					if cost > 0 {
						time.Sleep(7 * time.Minute)
					}
				}
			}
		})
	}
}

// checkPeek compares Peek of a cost with a charge of cost 0, and then with a charge of that
// cost.
func checkPeek(t *testing.T, name string, store quota.Store, limit quota.Limit, cost int64) {
	t.Helper()
	c := quota.Charge{Rule: "api", Limit: limit, Cost: cost}
	before := peek(t, store, c, quota.Charge{Rule: "other", Limit: limit, Cost: 5})
	d := before.Decisions[0]
	if len(before.Charges) != 2 || !before.Decisions[1].Allowed || before.Decisions[1].Remaining != 5 {
		t.Errorf("%s: got %+v, want two charges, the second of which fits and was not spent", name, before)
	}
	look := take(t, store, 0, quota.Charge{Rule: "api", Limit: limit}).Decisions[0]
	if d.Remaining != look.Remaining || d.NextAfter != look.NextAfter || d.ResetAfter != look.ResetAfter {
		t.Errorf("%s: cost %d: peeked %+v, and a charge of cost 0 got %+v", name, cost, d, look)
	}
	if cost == 0 {
		return
	}
	after := take(t, store, 0, c).Decisions[0]
	if d.Allowed != after.Allowed || d.RetryAfter != after.RetryAfter {
		t.Errorf("%s: cost %d: peeked %+v, and then got %+v", name, cost, d, after)
	}

}

func ExamplePeek() {
	ctx, store := context.Background(), memstore.New(memstore.Options{})
	charge := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(10, 24*time.Hour), Cost: 3}
	store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{charge}})

	t, _ := quota.Peek(ctx, store, charge)
	fmt.Println(t.Decisions[0].Remaining)
	quota.Reset(ctx, store, charge)
	t, _ = quota.Peek(ctx, store, charge)
	fmt.Println(t.Decisions[0].Remaining)
	// Output:
	// 7
	// 10
}
