package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// TestLogAfterSpike: if a log has grown long in a spike, a few later charges shrink it to the
// entries of its window. The log need not expire for this.
func TestLogAfterSpike(t *testing.T) {
	server := miniredis.RunT(t)
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: server.Addr()})))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1<<40, time.Hour), Cost: 1}
	take := func(after time.Duration) {
		now = now.Add(after)
		server.SetTime(now)
		if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); err != nil {
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
		t.Fatalf("got %d fields after 2000 charges, want at least 25", got)
	}
	for range 6 {
		take(20 * time.Minute)
	}
	if got := fields(); got > 3 {
		t.Errorf("got %d fields for a log of 4 entries, want at most 3", got)
	}
}
