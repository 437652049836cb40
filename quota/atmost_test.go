package quota_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/quota"
)

// TestAllowAtMost: if concurrent callers ask for more units than the limit has, they get
// exactly its 100 units together.
func TestAllowAtMost(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) quota.Store{
		"memory":   func(*testing.T) quota.Store { return memory() },
		"redis":    func(t *testing.T) quota.Store { return redisAt(t, redistest.Server(t).Addr(), 5*time.Second) },
		"coalesce": func(*testing.T) quota.Store { return quota.Coalesce(memory()) },
		"hybrid":   func(*testing.T) quota.Store { return quota.Hybrid(memory(), quota.HybridOptions{}) },
		"lease":    func(*testing.T) quota.Store { return lease.New(memory(), lease.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			for _, limit := range []quota.Limit{algorithms.GCRA(100, 1000*time.Hour), algorithms.SlidingLog(100, 1000*time.Hour)} {
				var total atomic.Int64
				together(8, func(i int) {
					for range 10 {
						total.Add(takeAtMost(t, store, limit, 3+int64(i)))
					}
				})
				if total.Load() != 100 {
					t.Errorf("%v: granted %d units, want 100", limit, total.Load())
				}
			}
		})
	}
	if _, _, err := quota.AllowAtMost(t.Context(), memory(), quota.Charge{Limit: algorithms.GCRA(1, time.Hour)}); err == nil {
		t.Error("a cost of 0: got no error")
	}
}

// takeAtMost asks for n units and returns how many are granted.
func takeAtMost(t *testing.T, store quota.Store, limit quota.Limit, n int64) int64 {
	t.Helper()
	granted, d, err := quota.AllowAtMost(t.Context(), store, quota.Charge{Rule: "jobs", Key: "acme", Limit: limit, Cost: n})
	if err != nil || granted < 0 || granted > n || d.Allowed != (granted > 0) {
		t.Errorf("got %d, %+v and error %v for %d units", granted, d, err, n)
	}
	return granted
}

func ExampleAllowAtMost() {
	ctx, store := context.Background(), memory()
	charge := quota.Charge{Rule: "mails", Key: "acme", Limit: algorithms.FixedWindow(100, 1000*time.Hour), Cost: 70}
	for range 3 {
		granted, _, err := quota.AllowAtMost(ctx, store, charge)
		fmt.Println(granted, err)
	}
	// Output:
	// 70 <nil>
	// 30 <nil>
	// 0 <nil>
}
