package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
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

// TestSwitchedBatch: a batch under a small tier is decided as its transactions one by one, even
// if units of a larger tier exceed what the small tier allows.
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

// TestSwitchedPeriods changes the periods of limits between transactions, but not the names of
// the limits. The scripts must decide as the Go code does. Tests of package algorithms check
// the Go code.
func TestSwitchedPeriods(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 4))
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	for n := range rounds.N(25, 120) {
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		h := newHistory(r, server, store)
		h.limits, h.tiers = nil, false
		kind, limits := n%5, 1
		if kind >= 3 {
			limits += r.IntN(2)
		}
		for i := range limits {
			units := 1 + r.Int64N(30)
			h.limits = append(h.limits, []quota.Limit{
				algorithms.FixedWindow(units, time.Hour), algorithms.AnchoredWindow(units, time.Hour), algorithms.SlidingWindow(units, time.Hour),
				algorithms.SlidingLog(units, time.Hour), algorithms.SlidingLog(units, time.Hour),
			}[kind].Named(fmt.Sprint("l", i)))
		}
		h.changing, h.switching, h.huge = true, true, false
		h.unlike = h.unlike && len(h.limits) > 1
		for range 60 {
			for i := range h.limits {
				h.shift(&h.limits[i])
			}
			if len(h.limits) == 1 {
				h.expire()
			}
			if _, err := h.step(t); err != nil {
				t.Fatalf("seed %d, history of\n%s%v", seed, h.text(200), err)
			}
		}
		server.FlushDB()
	}
}

// expire deletes the values whose states have ended, if there is only one limit.
func (h *history) expire() {
	for _, key := range h.keys {
		c := quota.Charge{Key: key, Limit: h.limits[0]}
		if s := h.states[name(&c)]; s.Until <= h.now {
			delete(h.states, name(&c))
			h.server.Del(value(&c))
		}
	}
}

// shift gives a limit a different period, and sometimes a different quota. The limit of a log
// gets no period that is longer than the time for which the history keeps the units of the log,
// because Redis may remember older units.
func (h *history) shift(l *quota.Limit) {
	periods := []time.Duration{time.Second, 3 * time.Second, 40 * time.Second, time.Minute, time.Hour}
	if h.r.IntN(8) == 0 {
		l.Quota = 1 + h.r.Int64N(30)
	}
	p := periods[h.r.IntN(len(periods))]
	if l.Algorithm.Name() != "sliding-log" || p <= h.kept(l) {
		l.Period = p
	}
}

// TestSwitchedPeriodsOnServer: charges under a long and a short period take turns on a
// redis-server. The limit with the long period must count all units, also those under the
// short period.
func TestSwitchedPeriodsOnServer(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	limits := func(units int64, period time.Duration) []quota.Limit {
		return []quota.Limit{algorithms.AnchoredWindow(units, period), algorithms.SlidingWindow(units, period), algorithms.SlidingLog(units, period)}
	}
	for i, long := range limits(40, 24*time.Hour) {
		long, short := long.Named("l"), limits(10, time.Millisecond)[i].Named("l")
		left := int64(40)
		for n := 0; left > 0; n++ {
			l := []quota.Limit{long, short}[n%2]
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: l.Algorithm.Name(), Limit: l, Cost: 1 + int64(n%3)}}}
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
			if tx.Allowed() {
				left -= tx.Charges[0].Cost
			} else if l == short { // the short limit admits again after a millisecond
				runtime.Gosched()
				continue
			} else if tx.Charges[0].Cost <= left {
				t.Fatalf("%v: refuses %d, with %d left: %+v", l, tx.Charges[0].Cost, left, tx.Decisions[0])
			}
			look := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: l.Algorithm.Name(), Limit: long}}}
			if err := store.Take(t.Context(), &look); err != nil {
				t.Fatal(err)
			}
			if got := look.Decisions[0].Remaining; got != max(0, left) {
				t.Fatalf("%v: got %d remaining after a charge of %d under %v, want %d", long, got, tx.Charges[0].Cost, l, left)
			}
		}
	}
}

// TestCancelAfterChange: a charge is cancelled after the period of its limit has become so
// short that its units no longer count. The cancellation gives nothing back and changes no
// state, so under the old period the units still count.
func TestCancelAfterChange(t *testing.T) {
	before, after := limitsOf(6, 10_000*time.Hour), limitsOf(6, time.Microsecond)
	for name, store := range map[string]quota.Store{
		"memory": memstore.New(memstore.Options{}),
		"redis":  newStore(t, client(t, redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()}))),
	} {
		for i, l := range before {
			spent := take(t, store, quota.Charge{Rule: "r", Key: "k", Limit: l.Named("l"), Cost: 6})
			for !time.Now().After(spent.At.Add(2 * time.Microsecond)) { // until the units no longer count under the new period
				runtime.Gosched()
			}
			take(t, store, quota.Charge{Rule: "r", Key: "k", Limit: after[i].Named("l"), Cost: -1, Spent: spent.At.Add(-time.Minute).UnixMicro()})
			if left := take(t, store, quota.Charge{Rule: "r", Key: "k", Limit: l.Named("l")}).Decisions[0].Remaining; left != 0 {
				t.Errorf("%v in %s: got %d remaining, want 0", l, name, left)
			}
		}
	}
}

// decideBoth returns a function that takes a transaction twice, from a store in Redis and by
// Decide, and compares the decisions. The states for Decide are kept from call to call. The
// clock of the store stands still.
func decideBoth(t *testing.T) func(*quota.Transaction) *quota.Transaction {
	server := miniredis.RunT(t)
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

// TestCancelTwiceAfterChange: a reservation in a log is cancelled, and then cancelled again
// under a shorter period. Redis must decide as the Go code does, which keeps the earlier units
// for the longer period.
func TestCancelTwiceAfterChange(t *testing.T) {
	decide := decideBoth(t)
	long, short := algorithms.SlidingLog(3, time.Minute).Named("l"), algorithms.SlidingLog(3, time.Second).Named("l")
	var turns []*quota.Transaction // reservations, a minute apart
	for range 4 {
		turns = append(turns, decide(&quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: long, Cost: 3}}, Within: time.Hour}))
	}
	decide(cancelOf(turns[2], long))
	decide(cancelOf(turns[3], long))
	decide(cancelOf(turns[2], short))
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

// limitsOf returns a limit of each algorithm whose period can change.
func limitsOf(units int64, period time.Duration) []quota.Limit {
	return []quota.Limit{
		algorithms.GCRA(units, period), algorithms.TokenBucket(units, units, period), algorithms.LeakyBucket(units, units, period),
		algorithms.FixedWindow(units, period), algorithms.AnchoredWindow(units, period), algorithms.SlidingWindow(units, period), algorithms.SlidingLog(units, period),
	}
}
