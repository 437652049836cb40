package stack

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// away is a Redis that answers no call while down is set.
type away struct {
	quota.Store
	down atomic.Bool
}

func (a *away) Take(ctx context.Context, t *quota.Transaction) error {
	if a.down.Load() {
		return errors.New("no answer in time")
	}
	return a.Store.Take(ctx, t)
}

// TakeEach implements optional.Batcher.
func (a *away) TakeEach(ctx context.Context, ts []*quota.Transaction) (errs []error) {
	for _, t := range ts {
		errs = append(errs, a.Take(ctx, t))
	}
	return errs
}

// Track implements optional.Tracker: tracking is turned off.
func (a *away) Track(func(string, bool), func(time.Time)) func([]*quota.Transaction) []error {
	return nil
}

// processesOf returns the stores of n processes that share redis, without what calls a real Redis.
func processesOf(n int, redis *away) (stores []quota.Store) {
	for range n {
		memory := quota.Share(memstore.New(memstore.Options{}), n)
		hybrid := quota.Hybrid(quota.Breaker(mirrored{quota.Coalesce(redis), redis, memory}, quota.BreakerOptions{}), quota.HybridOptions{})
		stores = append(stores, quota.Fallback(hybrid, memory, quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)}))
	}
	return stores
}

// TestLateAnswers: a client sends 100 requests a second to each of two processes for a minute, and
// exceeds its limit after 5 s. From then on, Redis does not answer for 1.5 of every 4 s. The client gets
// what the limit admits in a minute, and what drains in the two memories, but not the limit once more.
func TestLateAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		limit quota.Limit
		cost  int64
		most  int
	}{
		"gcra":           {algorithms.GCRA(1000, time.Hour), 1, 1000 + 2*17},
		"burst":          {algorithms.TokenBucket(100, 1000, time.Hour), 1, 100 + 2*17},
		"anchored":       {algorithms.AnchoredWindow(1000, time.Hour), 1, 1000},
		"leaky bucket":   {algorithms.LeakyBucket(1000, 1000, time.Hour), 1, 1000 + 2*17},
		"fixed window":   {algorithms.FixedWindow(1000, time.Hour), 1, 1000},
		"sliding window": {algorithms.SlidingWindow(1000, time.Hour), 1, 1000},
		"sliding log":    {algorithms.SlidingLog(1000, time.Hour), 1, 1000},
		"costs":          {algorithms.FixedWindow(1000, time.Hour), 3, 333},
		"gcra, costs":    {algorithms.GCRA(1000, time.Hour), 3, 333 + 2*6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redis := &away{Store: memstore.New(memstore.Options{})}
				stores := processesOf(2, redis)
				admitted := 0
				for i := range 6000 {
					redis.down.Store(i > 1000 && i%400 > 250)
					for _, s := range stores {
						if weirtest.Take(t, s, 0, quota.Charge{Rule: "r", Key: "k", Limit: test.limit, Cost: test.cost}).Allowed() {
							admitted++
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
				if admitted > test.most {
					t.Errorf("admitted %d requests, want at most %d", admitted, test.most)
				}
			})
		})
	}
}

// TestMirrored: memory gets nothing but the keys that Redis refuses, keeps as many of their units as Redis,
// and forgets what is forgotten in Redis.
func TestMirrored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gcra, flight := algorithms.GCRA(10, time.Hour), algorithms.InFlight(1, time.Hour)
		memory := memstore.New(memstore.Options{})
		for _, test := range []struct {
			name  string
			limit quota.Limit
			spent int64 // in Redis, before
			cost  int64
			room  int64 // Headroom
			mode  quota.Mode
			want  int64 // what remains in memory
		}{
			{"allowed", gcra, 9, 1, 0, quota.ModeSpend, 10},
			{"refused", gcra, 10, 1, 0, quota.ModeSpend, 0},
			{"a large cost", gcra, 9, 2, 0, quota.ModeSpend, 1},
			{"a cost that never fits", gcra, 3, 11, 0, quota.ModeSpend, 7},
			{"a class", gcra, 5, 1, 5, quota.ModeSpend, 5},
			{"a class of which nothing is left", gcra, 8, 1, 5, quota.ModeSpend, 5},
			{"a peek", gcra, 10, 1, 0, quota.ModePeek, 10},
			{"in flight", flight, 1, 1, 0, quota.ModeSpend, 1},
		} {
			redis := &away{Store: memstore.New(memstore.Options{})}
			store := mirrored{quota.Coalesce(redis), redis, memory}
			c := quota.Charge{Rule: "r", Key: test.name, Limit: test.limit, Cost: test.spent}
			weirtest.Take(t, redis, 0, c)
			c.Cost, c.Headroom = test.cost, test.room
			take := func(mode quota.Mode) int64 {
				if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{c}, Mode: mode}); err != nil {
					t.Fatal(err)
				}
				return weirtest.Peek(t, memory, quota.Charge{Rule: c.Rule, Key: c.Key, Limit: c.Limit}).Decisions[0].Remaining
			}
			if got := take(test.mode); got != test.want {
				t.Errorf("%s: got %d units in memory, want %d", test.name, got, test.want)
			}
			take(test.mode)
			if _, err := quota.Reset(t.Context(), store, c); err != nil {
				t.Fatal(err)
			}
			if got, want := take(quota.ModePeek), test.limit.Capacity(); got != want {
				t.Errorf("%s: got %d units in memory after Reset, want %d", test.name, got, want)
			}
			if got, want := take(quota.ModeForget), test.limit.Capacity(); got != want {
				t.Errorf("%s: got %d units in memory after ModeForget, want %d", test.name, got, want)
			}
		}
	})
}

// TestGrantedOnce: units that package credit has granted and Redis has spent cannot be spent again in memory.
func TestGrantedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := &away{Store: memstore.New(memstore.Options{})}
		store := credit.New(processesOf(1, redis)[0], credit.Options{Rules: []string{"r"}})
		c := quota.Charge{Rule: "r", Key: "ada", Limit: algorithms.FixedWindow(1, 24*time.Hour), Cost: 1}
		weirtest.Take(t, store, 0, c)
		if weirtest.Take(t, store, 0, c).Allowed() {
			t.Fatal("got allowed, want a limit without units")
		}
		if err := credit.Grant(t.Context(), store, "r", "ada", 5, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for i := range 10 {
			redis.down.Store(i >= 5)
			if got, want := weirtest.Take(t, store, 0, c).Allowed(), i < 5; got != want {
				t.Errorf("request %d after 5 units were granted: got allowed %v, want %v", i, got, want)
			}
		}
	})
}

// halfDead is a Redis with two servers, of which one answers no call.
type halfDead struct{ quota.Store }

func (h halfDead) Take(ctx context.Context, t *quota.Transaction) error {
	if h.Server(t) == "dead" {
		return errors.New("no answer in time")
	}
	return h.Store.Take(ctx, t)
}

// Server implements optional.Server.
func (h halfDead) Server(t *quota.Transaction) string { return t.Charges[0].Key }

// TestLinesOfOneServer: while one of several servers is down, requests with keys of the others do not end the
// outage, so it is logged once, however rare its own requests are.
func TestLinesOfOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(weirtest.Log)
		o := outageLog{logger: slog.New(slog.NewTextHandler(log, nil)), effect: func() string { return "" }}
		memory := memstore.New(memstore.Options{})
		store := o.fallback(o.breaker(halfDead{memstore.New(memstore.Options{})}, quota.BreakerOptions{}), memory)
		for i := range 600 {
			key := "alive"
			if i%17 == 0 {
				key = "dead"
			}
			weirtest.Take(t, store, 0, quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(1000, time.Second), Cost: 1})
			time.Sleep(100 * time.Millisecond)
		}
		// The breaker opens at the fifth failure. Until then, each failure may be an outage.
		if n := strings.Count(log.String(), "outage of Redis began"); n > 5 {
			t.Errorf("got %d outages in a minute, want at most 5:\n%s", n, log)
		}
	})
}
