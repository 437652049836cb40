package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTierCache: an account that upgrades has its new tier within a minute. A slow database holds up
// one request for 100 ms, and then none for 5 s.
func TestTierCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, slow, queries := tier("free"), false, 0
		c := tierCache{query: func(ctx context.Context, id int) (tier, error) {
			queries++
			if slow {
				<-ctx.Done()
				return "", errors.New("the database is slow")
			}
			return now, nil
		}}
		start := time.Now()
		for _, step := range []struct {
			sleep   time.Duration
			now     tier
			slow    bool
			id      int
			want    tier
			took    time.Duration
			queries int
		}{
			{0, "free", false, 1, "free", 0, 1},
			{59 * time.Second, "pro", false, 1, "free", 0, 1},
			{time.Second, "pro", false, 1, "pro", 0, 2},
			{time.Minute, "pro", true, 1, "pro", 100 * time.Millisecond, 3},
			{4 * time.Second, "pro", true, 1, "pro", 0, 3},
			{0, "pro", true, 2, "", 100 * time.Millisecond, 4},
			{5 * time.Second, "free", false, 1, "free", 0, 5},
		} {
			time.Sleep(step.sleep)
			now, slow = step.now, step.slow
			before := time.Now()
			got := c.tierOf(t.Context(), step.id)
			if took := time.Since(before); got != step.want || took != step.took || queries != step.queries {
				t.Errorf("after %v, account %d: got %q after %v and %d queries, want %q after %v and %d",
					before.Sub(start), step.id, got, took, queries, step.want, step.took, step.queries)
			}
		}
	})
}
