package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
)

// switched charges a key as who wants most of two tiers of one name: whenever the
// smaller one admits a unit, all that the larger one has left. It returns the most
// units that were admitted in a window of the period.
func switched(t *testing.T, store weir.Store, tiers [2]weir.Limit, rounds int, pause func()) (most int) {
	t.Helper()
	var spent []time.Time
	take := func(l weir.Limit) bool {
		tx := weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: l.Algorithm.Name(), Limit: l, Cost: 1}}}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		if tx.Allowed() {
			spent = append(spent, tx.At)
		}
		return tx.Allowed()
	}
	for range rounds {
		for !take(tiers[0]) {
			pause()
		}
		for take(tiers[1]) {
		}
	}
	first := 0
	for i, at := range spent {
		for !spent[first].After(at.Add(-tiers[1].Period)) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// TestSwitchedTiers: a client that is charged under two tiers of one name is
// admitted what the larger one admits, by every script that knows meters.
func TestSwitchedTiers(t *testing.T) {
	tiers := func(period time.Duration) [][2]weir.Limit {
		return [][2]weir.Limit{
			{algorithms.GCRA(6, period), algorithms.GCRA(60, period)},
			{algorithms.TokenBucket(6, 6, period), algorithms.TokenBucket(60, 60, period)},
			{algorithms.LeakyBucket(6, 6, period), algorithms.LeakyBucket(60, 60, period)},
			{algorithms.SlidingWindow(6, period), algorithms.SlidingWindow(60, period)},
			{algorithms.SlidingLog(6, period), algorithms.SlidingLog(60, period)},
		}
	}
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
		server.SetTime(now)
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range tiers(time.Minute) {
			if got := switched(t, store, pair, 12, func() {
				now = now.Add(time.Second)
				server.SetTime(now)
			}); got > 119 {
				t.Errorf("%v and %v: got %d in a minute, want 119 at most", pair[0], pair[1], got)
			}
		}
	})
	t.Run("server", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
		defer rdb.Close()
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		const period = 100 * time.Millisecond
		for _, pair := range tiers(period) {
			if got := switched(t, store, pair, 12, func() {}); got > 119 {
				t.Errorf("%v and %v: got %d in %v, want 119 at most", pair[0], pair[1], got, period)
			}
		}
	})
}

// TestSwitchedBatch: a batch under the smaller tier decides as its transactions
// one by one do, when the larger one has left more than it holds.
func TestSwitchedBatch(t *testing.T) {
	server := miniredis.RunT(t)
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	server.SetTime(now)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	small, large := algorithms.GCRA(6, time.Minute), algorithms.GCRA(60, time.Minute)
	states := make([]weir.State, 1)
	all := weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: "k", Limit: large, Cost: 60}}}
	want := all
	if err := store.Take(t.Context(), &all); err != nil || !want.Decide(now.UnixMicro(), states) {
		t.Fatal(err, want.Decisions)
	}
	for range 5 {
		now = now.Add(25 * time.Second)
		server.SetTime(now)
		var batch []*weir.Transaction
		for range 4 {
			batch = append(batch, &weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: "k", Limit: small, Cost: 1}}})
		}
		for _, err := range store.TakeEach(t.Context(), batch) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for i, got := range batch {
			want := weir.Transaction{Charges: got.Charges}
			want.Decide(now.UnixMicro(), states)
			if got.Decisions[0] != want.Decisions[0] {
				t.Errorf("%v, %d of the batch: got %+v, want %+v", now, i, got.Decisions[0], want.Decisions[0])
			}
		}
	}
}
