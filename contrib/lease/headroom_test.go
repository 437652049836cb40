package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
)

// TestHeadroomLeases: each class of a key has leases, also if requests of both classes come in turns.
func TestHeadroomLeases(t *testing.T) {
	for name, headroom := range map[string][2]int64{"one class": {0, 0}, "two classes": {0, 3000}} {
		synctest.Test(t, func(t *testing.T) {
			store := lease.New(memory(), lease.Options{})
			for range 5000 {
				for _, h := range headroom {
					tx := once(algorithms.FixedWindow(1_000_000, time.Hour))
					tx.Charges[0].Headroom = h
					if err := store.Take(t.Context(), tx); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Millisecond)
			}
			if s := store.Stats(); s.Misses > s.Hits/10 {
				t.Errorf("%s: got %d calls of the store and %d decisions from leases, want a tenth at most", name, s.Misses, s.Hits)
			}
			closeStore(t, store)
		})
	}
}
