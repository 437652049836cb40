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

// TestHold: one call of the store pauses a key. A transaction that charges the pause is
// delayed until the pause is over, whatever other limits the transaction charges, and changes
// nothing about the pause, also if it is given back.
func TestHold(t *testing.T) {
	for _, limit := range []weir.Limit{
		algorithms.GCRA(3, time.Second), algorithms.TokenBucket(3, 3, time.Second), algorithms.LeakyBucket(100, 3, time.Second),
		algorithms.FixedWindow(3, time.Second), algorithms.AnchoredWindow(3, time.Second), algorithms.SlidingWindow(3, time.Second),
		algorithms.SlidingLog(3, time.Second), algorithms.Calendar(3, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			pauseAndGoOn(t, limit)
		})
	}
}

// pauseAndGoOn pauses a key, charges the pause alone and together with limit, and sleeps until
// the pause is over.
func pauseAndGoOn(t *testing.T, limit weir.Limit) {
	calls := 0
	memory := memstore.New(memstore.Options{})
	store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error { calls++; return memory.Take(ctx, tx) })
	pause := weir.PauseOf("r", "")
	unit := quota.Charge{Rule: "r", Limit: limit, Cost: 1}
	wants := func(within time.Duration, what string, allowed bool, wait time.Duration, charges ...quota.Charge) *quota.Transaction {
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
		return &tx
	}
	begin := func(d time.Duration) {
		t.Helper()
		if tx, before := (quota.Transaction{Charges: []quota.Charge{weir.BeginPause(pause, d)}}), calls; store.Take(t.Context(), &tx) != nil || !tx.Allowed() || calls != before+1 {
			t.Errorf("%v: paused for %v: got %+v in %d calls, want it allowed in one", limit, d, tx.Decisions, calls-before)
		}
	}
	wants(0, "open", true, 0, pause, unit)
	for _, d := range []time.Duration{10 * time.Second, 20 * time.Second, 5 * time.Second, 20 * time.Second} {
		begin(d)
	}
	wants(0, "paused, at once", false, 20*time.Second, pause, unit)
	wants(19*time.Second, "paused, too long", false, 20*time.Second, pause)
	wants(time.Minute, "paused", true, 20*time.Second, pause)
	wants(time.Minute, "paused, with a limit", true, 20*time.Second, pause, unit)
	slow := quota.Charge{Rule: "slow", Limit: algorithms.GCRA(1, time.Minute), Cost: 1}
	wants(0, "the first in a line", true, 0, slow)
	turn := wants(time.Hour, "the second in a line", true, time.Minute, slow, pause)
	wants(0, "beside that line", false, 20*time.Second, pause)
	if err := quota.Refund(t.Context(), store, turn); err != nil {
		t.Fatal(err)
	}
	wants(0, "after that was given back", false, 20*time.Second, pause)
	time.Sleep(20*time.Second - time.Microsecond)
	wants(0, "a microsecond early", false, time.Microsecond, pause)
	wants(time.Minute, "a microsecond early", true, time.Microsecond, pause)
	time.Sleep(time.Microsecond)
	wants(0, "over", true, 0, pause)
	begin(time.Hour)
	pause.Cost = -1
	wants(0, "a gift", true, 0, pause)
	pause.Cost = 1
	if tx, err := quota.Peek(t.Context(), store, pause); err != nil || tx.Allowed() || tx.RetryAfter() != time.Hour {
		t.Errorf("%v: Peek: got %+v and %v, want a wait of an hour", limit, tx, err)
	}
	wants(0, "after a gift", false, time.Hour, pause)
	if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{pause}, Mode: quota.ModeForget}); err != nil {
		t.Fatal(err)
	}
	wants(0, "forgotten", true, 0, pause)
}
