package regions

import (
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// TestDemand: only requests under GCRA, TokenBucket and LeakyBucket raise the demand of a
// region, and no number of requests makes it overflow.
func TestDemand(t *testing.T) {
	ask := func(s *Store, l quota.Limit) {
		weirtest.Take(t, s, 0, quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: 1})
	}
	s := New(weirtest.Memory(), weirtest.Memory(), Options{Budget: "b", Region: "eu", Regions: 2})
	for _, l := range []quota.Limit{algorithms.InFlight(10, time.Minute), algorithms.SlidingLog(10, time.Hour), algorithms.FixedWindow(1, 1000*time.Hour)} {
		ask(s, l)
	}
	if got := s.wanted.Load(); got != 0 {
		t.Errorf("got a demand of %v by limits whose parts do not move", time.Duration(got))
	}
	for range 5000 {
		ask(s, algorithms.GCRA(1, 30*24*time.Hour))
		if s.wanted.Load() <= 0 {
			t.Fatalf("got a demand of %v", time.Duration(s.wanted.Load()))
		}
	}
}
