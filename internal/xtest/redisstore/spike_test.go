package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestLogAfterSpike: a log that was long once is as short as its window after a few
// charges, although the key never rests for as long as its period.
func TestLogAfterSpike(t *testing.T) {
	server := miniredis.RunT(t)
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: server.Addr()})))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	charge := weir.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1<<40, time.Hour), Cost: 1}
	take := func(after time.Duration) {
		now = now.Add(after)
		server.SetTime(now)
		if err := store.Take(t.Context(), &weir.Transaction{Charges: []weir.Charge{charge}}); err != nil {
			t.Fatal(err)
		}
	}
	fields := func() int {
		keys, err := server.HKeys("weir:r:log:{.k}")
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	for range 2000 {
		take(time.Microsecond)
	}
	if got := fields(); got < 25 {
		t.Fatalf("got %d fields, want many", got)
	}
	for range 6 {
		take(20 * time.Minute)
	}
	if got := fields(); got > 3 {
		t.Errorf("got %d fields of a log whose window has 4 entries", got)
	}
}
