package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// TestSwitchedTiers: a client that is charged under two tiers of one name is
// admitted what the larger one admits, in any order.
func TestSwitchedTiers(t *testing.T) {
	for _, tiers := range [][2]weir.Limit{
		{algorithms.GCRA(60, time.Minute), algorithms.GCRA(600, time.Minute)},
		{algorithms.TokenBucket(60, 60, time.Minute), algorithms.TokenBucket(600, 600, time.Minute)},
		{algorithms.SlidingWindow(60, time.Minute), algorithms.SlidingWindow(600, time.Minute)},
		{algorithms.SlidingLog(60, time.Minute), algorithms.SlidingLog(600, time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			got := 0
			take := func(l weir.Limit) bool {
				tx := weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: "k", Limit: l, Cost: 1}}}
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Fatal(err)
				}
				if tx.Allowed() {
					got++
				}
				return tx.Allowed()
			}
			// Whenever the smaller one admits a unit, all that the larger one has left.
			for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
				if take(tiers[0]) {
					for take(tiers[1]) {
					}
				}
			}
			if got > 1199 {
				t.Errorf("%v and %v: got %d in a minute, want 1199 at most", tiers[0], tiers[1], got)
			}
		})
	}
}
