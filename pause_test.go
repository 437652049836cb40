package weir_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestHold: one call of the store shuts a gate. A transaction that charges the gate is
// delayed until the gate opens, whatever other limits the transaction charges. A charge of a
// gate with a negative cost changes nothing.
func TestHold(t *testing.T) {
	for _, limit := range []weir.Limit{
		algorithms.GCRA(3, time.Second), algorithms.TokenBucket(3, 3, time.Second), algorithms.LeakyBucket(100, 3, time.Second),
		algorithms.FixedWindow(3, time.Second), algorithms.AnchoredWindow(3, time.Second), algorithms.SlidingWindow(3, time.Second),
		algorithms.SlidingLog(3, time.Second), algorithms.Calendar(3, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			shutAndOpen(t, limit)
		})
	}
}

// shutAndOpen shuts a gate, charges it alone and together with limit, and sleeps until it
// opens.
func shutAndOpen(t *testing.T, limit weir.Limit) {
	calls := 0
	memory := memstore.New(memstore.Options{})
	store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error { calls++; return memory.Take(ctx, tx) })
	gate := quota.Charge{Rule: "r", Limit: weir.GateLimit("pause"), Cost: 1}
	unit := quota.Charge{Rule: "r", Limit: limit, Cost: 1}
	wants := func(within time.Duration, what string, allowed bool, wait time.Duration, charges ...quota.Charge) {
		t.Helper()
		tx := quota.Transaction{Within: within, Charges: charges}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		if !allowed {
			tx.Wait = tx.RetryAfter()
		}
		if tx.Allowed() != allowed || tx.Wait != wait {
			t.Errorf("%v: %s: got %v after %v, want %v after %v", limit, what, tx.Allowed(), tx.Wait, allowed, wait)
		}
	}
	wants(0, "open", true, 0, gate, unit)
	for _, h := range []struct {
		d  time.Duration
		ok bool
	}{{10 * time.Second, true}, {20 * time.Second, true}, {5 * time.Second, false}, {20 * time.Second, true}} {
		calls = 0
		if ok, err := weir.ShutGates(t.Context(), store, h.d, gate); ok != h.ok || err != nil || calls != 1 {
			t.Errorf("%v: shut for %v: got %v, %v in %d calls, want %v in one", limit, h.d, ok, err, calls, h.ok)
		}
	}
	wants(0, "shut, at once", false, 20*time.Second, gate, unit)
	wants(19*time.Second, "shut, too long", false, 20*time.Second, gate)
	wants(time.Minute, "shut", true, 20*time.Second, gate)
	wants(time.Minute, "shut, with a limit", true, 20*time.Second, gate, unit)
	time.Sleep(20*time.Second - time.Microsecond)
	wants(0, "a microsecond early", false, time.Microsecond, gate)
	wants(time.Minute, "a microsecond early", true, time.Microsecond, gate)
	time.Sleep(time.Microsecond)
	wants(0, "over", true, 0, gate)
	slow := quota.Charge{Rule: "slow", Limit: algorithms.GCRA(1, time.Minute), Cost: 1}
	wants(time.Hour, "the first in a line", true, 0, slow, gate)
	wants(time.Hour, "the second in a line", true, time.Minute, slow, gate)
	wants(0, "beside that line", true, 0, gate)
	_, _ = weir.ShutGates(t.Context(), store, time.Hour, gate)
	gate.Cost = -1
	wants(0, "a gift", true, 0, gate)
	gate.Cost = 1
	wants(0, "after a gift", false, time.Hour, gate)
	if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{gate}, Forget: true}); err != nil {
		t.Fatal(err)
	}
	wants(0, "forgotten", true, 0, gate)
}
