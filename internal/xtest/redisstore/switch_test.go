package redisstore_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// switched charges a key like a client that gets as much as possible by switching between
// two tiers of one name. Whenever the smaller tier admits a unit, the client spends all
// that the larger tier has left. switched returns the most units that were admitted within one
// period of the larger tier.
func switched(t *testing.T, store quota.Store, tiers [2]quota.Limit, rounds int, pause func()) (most int) {
	t.Helper()
	var spent []time.Time
	take := func(l quota.Limit) bool {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: l.Algorithm.Name(), Limit: l, Cost: 1}}}
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

// TestSwitchedTiers: if a client switches between two tiers of one name, it gets no more units
// than the larger tier alone admits in the worst case.
func TestSwitchedTiers(t *testing.T) {
	t.Parallel()
	tiers := func(period time.Duration) [][2]quota.Limit {
		return [][2]quota.Limit{
			{algorithms.GCRA(6, period), algorithms.GCRA(60, period)},
			{algorithms.TokenBucket(6, 6, period), algorithms.TokenBucket(60, 60, period)},
			{algorithms.LeakyBucket(6, 6, period), algorithms.LeakyBucket(60, 60, period)},
			{algorithms.SlidingWindow(6, period), algorithms.SlidingWindow(60, period)},
			{algorithms.SlidingLog(6, period), algorithms.SlidingLog(60, period)},
		}
	}
	t.Run("miniredis", func(t *testing.T) {
		server := mini(t)
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

// TestSwitchedBatch: a batch under a small tier is decided as its transactions one by one, even
// if units of a larger tier exceed what the small tier allows.
func TestSwitchedBatch(t *testing.T) {
	server := mini(t)
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	server.SetTime(now)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	small, large := algorithms.GCRA(6, time.Minute), algorithms.GCRA(60, time.Minute)
	states := make([]quota.State, 1)
	all := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: large, Cost: 60}}}
	want := all
	if err := store.Take(t.Context(), &all); err != nil || !want.Decide(now.UnixMicro(), states) {
		t.Fatal(err, want.Decisions)
	}
	for range 5 {
		now = now.Add(25 * time.Second)
		server.SetTime(now)
		var batch []*quota.Transaction
		for range 4 {
			batch = append(batch, &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: small, Cost: 1}}})
		}
		for _, err := range store.TakeEach(t.Context(), batch) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for i, got := range batch {
			want := quota.Transaction{Charges: got.Charges}
			want.Decide(now.UnixMicro(), states)
			if got.Decisions[0] != want.Decisions[0] {
				t.Errorf("%v, %d of the batch: got %+v, want %+v", now, i, got.Decisions[0], want.Decisions[0])
			}
		}
	}
}

// decideBoth returns a function that takes a transaction twice, from a store in Redis and by
// Decide, and compares the decisions. The states for Decide are kept from call to call. The
// clock of the store stands still.
func decideBoth(t *testing.T) func(*quota.Transaction) *quota.Transaction {
	server := mini(t)
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: server.Addr()})))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	server.SetTime(now)
	kept := map[string]quota.State{} // by key and limit
	return func(got *quota.Transaction) *quota.Transaction {
		t.Helper()
		var want quota.Transaction
		want.SetQuestion(got)
		if err := store.Take(t.Context(), got); err != nil {
			t.Fatal(err)
		}
		states := make([]quota.State, len(got.Charges))
		for i := range states {
			states[i] = kept[name(&got.Charges[i])]
		}
		want.Decide(now.UnixMicro(), states)
		for i := range states {
			c := &got.Charges[i]
			kept[name(c)] = states[i]
			if got.Decisions[i] != want.Decisions[i] {
				t.Errorf("%v, cost %d: got %+v, want %+v", c.Limit, c.Cost, got.Decisions[i], want.Decisions[i])
			}
		}
		return got
	}
}

// cancelOf returns the transaction that cancels a reservation under these limits.
func cancelOf(turn *quota.Transaction, limits ...quota.Limit) *quota.Transaction {
	back := &quota.Transaction{}
	for _, l := range limits {
		i := slices.IndexFunc(turn.Charges, func(c quota.Charge) bool { return c.Limit.Name == l.Name })
		c := turn.Charges[i]
		c.Limit, c.Cost, c.Spent = l, -c.Cost, turn.Decisions[i].At
		back.Charges, back.Cancels = append(back.Charges, c), append(back.Cancels, turn.Undo[i])
	}
	return back
}

// TestCancelAfterForget: limits a and b share a log. A reservation under b is cancelled after b
// was forgotten and has reserved again. The log then has no units of b. The next unit of b is
// spent at the instant of the reservation before the cancelled one: later units of a must not
// delay the unit.
func TestCancelAfterForget(t *testing.T) {
	a, b := algorithms.SlidingLog(9, time.Minute).Named("a"), algorithms.SlidingLog(9, time.Minute).Named("b")
	for _, test := range []struct {
		name             string
		turns, cancelled []quota.Limit
	}{
		{"both cancel", []quota.Limit{a, b}, []quota.Limit{a, b}},
		{"one cancels", []quota.Limit{b}, []quota.Limit{b}},
	} {
		t.Run(test.name, func(t *testing.T) {
			decide := decideBoth(t)
			waits := 0
			reserve := func(delay time.Duration, limits ...quota.Limit) *quota.Transaction {
				t.Helper()
				tx := &quota.Transaction{Within: time.Hour}
				if delay > 0 { // another limit makes the transaction wait
					waits++
					c := quota.Charge{Rule: "r", Key: fmt.Sprint(waits), Limit: algorithms.GCRA(1, delay), Cost: 1}
					decide(&quota.Transaction{Charges: []quota.Charge{c}})
					tx.Charges = append(tx.Charges, c)
				}
				for _, l := range limits {
					tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: 1})
				}
				return decide(tx)
			}
			reserve(time.Second, test.turns...)
			turn := reserve(3*time.Second, test.turns...)
			decide(&quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: b}}, Mode: quota.ModeForget})
			reserve(3*time.Second, a)
			reserve(3*time.Second, a, b)
			decide(cancelOf(turn, test.cancelled...))
			for range 9 {
				if got := reserve(0, b).Wait; got != time.Second {
					t.Errorf("got a wait of %v, want 1s", got)
				}
				decide(&quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: a}, {Rule: "r", Key: "k", Limit: b}}})
			}
			if got := reserve(0, b).Wait; got != time.Second+time.Minute {
				t.Errorf("got a wait of %v after the quota, want 61s", got)
			}
		})
	}
}

// TestCapOfCancel: a cancellation of more units than any state has is capped alike by the store and by
// Decide, under a smaller limit than that of the charge.
func TestCapOfCancel(t *testing.T) {
	server := mini(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	store := newStore(t, client(t, rdb))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	l := algorithms.LeakyBucket(10, 10, time.Microsecond)
	w := algorithms.AnchoredWindow(6, 3*time.Microsecond).Named("l0")
	states := make([]quota.State, 2)
	first := now.UnixMicro()
	for _, s := range []struct {
		after time.Duration
		mode  quota.Mode
		cost  int64
		spent int64
	}{{0, quota.ModeForce, math.MaxInt64, 0}, {7, quota.ModeForce, math.MaxInt64, 0}, {0, quota.ModeSpend, -math.MaxInt64, first}, {0, quota.ModePeek, 1, 0}} {
		now = now.Add(s.after * time.Microsecond)
		if s.mode != quota.ModeForce {
			l = algorithms.LeakyBucket(7, 7, time.Microsecond)
		}
		server.SetTime(now)
		got := quota.Transaction{Mode: s.mode, Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: l, Cost: s.cost, Spent: s.spent}, {Rule: "r", Key: "k", Limit: w, Cost: max(s.cost, -8), Spent: s.spent}}}
		want := got
		if err := store.Take(t.Context(), &got); err != nil {
			t.Fatal(err)
		}
		want.Decide(now.UnixMicro(), states)
		if got.Decisions[0] != want.Decisions[0] {
			t.Errorf("got %+v, want %+v", got.Decisions[0], want.Decisions[0])
		}
	}
}
