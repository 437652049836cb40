package main

import (
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// TestFlood: whatever door users take, at two replicas over one Redis, the account admits exactly
// 100, no door more than its own limit, and each word that was streamed was charged, within the budget
// of tokens. Another user is not in the way, and nothing stays in flight.
func TestFlood(t *testing.T) {
	addr := redistest.Server(t).Addr()
	replicas, err := start(t.Context(), addr, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		t.Cleanup(r.stop)
	}
	for _, user := range []string{"ann", "ben"} {
		tokens.Store(0)
		passed, err := flood(t.Context(), replicas, user, 40)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, d := range doors {
			sum += passed[d.name]
			if passed[d.name] == 0 || d.name != "tokens" && passed[d.name] > 30 {
				t.Errorf("%s: %s let %d pass, want 1 to 30", user, d.name, passed[d.name])
			}
		}
		if sum != 100 {
			t.Errorf("%s: %d passed (%v), want 100", user, sum, passed)
		}
		if got, most := tokens.Load(), min(200, 50*int64(passed["tokens"])); got == 0 || got > most {
			t.Errorf("%s: %d answers had %d words, want %d at most", user, passed["tokens"], got, most)
		}
		store := replicas[0].store
		until(t, store, algorithms.InFlight(40, time.Minute), "running", user, 40)
		until(t, store, algorithms.AnchoredWindow(200, 24*time.Hour), "tokens", user, 200-tokens.Load())
	}
	for _, d := range doors { // without a user
		if passed, err := d.try(t.Context(), replicas[0], ""); passed {
			t.Errorf("%s let nobody pass: %v", d.name, err)
		}
	}
}

// until waits until a user has n units left of a limit.
func until(t *testing.T, store weir.Store, limit weir.Limit, rule, user string, n int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		asked, err := quota.Peek(t.Context(), store, quota.Charge{Rule: rule, Key: user, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		left := asked.Decisions[0].Remaining
		if left == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s has %d left, want %d", rule, user, left, n)
		}
	}
}
