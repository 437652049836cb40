package quota_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestForget: every decorator passes ModeForget on to its store, and forgets what it remembers
// itself.
func TestForget(t *testing.T) {
	for name, decorated := range map[string]func(quota.Store) quota.Store{
		"nothing":  func(s quota.Store) quota.Store { return s },
		"Hybrid":   func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"Breaker":  func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"Fallback": func(s quota.Store) quota.Store { return quota.Fallback(failing{errDown}, s, quota.FallbackOptions{}) },
		"Share":    func(s quota.Store) quota.Store { return quota.Share(s, 2) },
		"Coalesce": func(s quota.Store) quota.Store { return quota.Joined(quota.Coalesce(s)) },
		"Lease":    func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
	} {
		store := decorated(memstore.New(memstore.Options{}))
		charges := []quota.Charge{
			{Rule: "r", Limit: algorithms.SlidingLog(10, time.Hour), Cost: 1},
			{Rule: "r", Limit: algorithms.FixedWindow(10, 10_000*time.Hour), Cost: 1},
		}
		for round := range 4 {
			admitted := 0
			for take(t, store, 0, charges...).Allowed() {
				admitted++
			}
			take(t, store, 0, charges...)
			if want := map[bool]int{true: 5, false: 10}[name == "Share"]; admitted != want {
				t.Errorf("%s: got %d admitted in round %d, want %d", name, admitted, round, want)
			}
			forget := quota.Transaction{Charges: slices.Clone(charges), Mode: quota.ModeForget}
			forget.Charges[0].Cost, forget.Charges[1].Cost = int64(round)-1, int64(round)-1 // which ModeForget ignores
			if err := store.Take(t.Context(), &forget); err != nil {
				t.Fatal(err)
			}
		}
	}
}
