package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// TestOneCall: a transaction is one command, even if transactions with other limits, costs or
// waits have charged the same key before.
func TestOneCall(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	charges := func(cost int64, limits ...quota.Limit) (cs []quota.Charge) {
		for _, l := range limits {
			cs = append(cs, quota.Charge{Key: "k", Limit: l, Cost: cost})
		}
		return cs
	}
	tx := func(cost int64, limits ...quota.Limit) quota.Transaction {
		return quota.Transaction{Charges: charges(cost, limits...)}
	}
	waits := func(t quota.Transaction) quota.Transaction {
		t.Within = time.Hour
		return t
	}
	keys := func(t quota.Transaction) quota.Transaction {
		for i := range t.Charges {
			t.Charges[i].Key = fmt.Sprint("k", i)
		}
		return t
	}
	spent := func(t quota.Transaction) quota.Transaction {
		for i := range t.Charges {
			t.Charges[i].Spent = time.Now().UnixMicro()
		}
		return t
	}
	meter := func(units int64) quota.Limit { return algorithms.GCRA(units, time.Minute).Named("l") }
	fixed, sliding, log := algorithms.FixedWindow(1000, time.Hour), algorithms.SlidingWindow(1000, time.Hour).Named("l"), algorithms.SlidingLog(1000, time.Hour)
	bucket, day := algorithms.LeakyBucket(1000, 1000, time.Minute), algorithms.Calendar(1000, algorithms.Day, nil)
	several := func(n int) (limits []quota.Limit) {
		for i := range n {
			limits = append(limits, algorithms.GCRA(1000, time.Hour).Named(fmt.Sprint(i)))
		}
		return limits
	}
	for name, shapes := range map[string][]quota.Transaction{
		"costs":                     {tx(1, meter(1000)), tx(7, meter(1000)), tx(0, meter(1000)), tx(-1, meter(1000)), tx(1e6, meter(1000))},
		"with waiting and without":  {tx(1, bucket, fixed), waits(tx(1, bucket, fixed)), waits(tx(3, fixed, bucket))},
		"tiers of other numbers":    {tx(1, meter(1000)), tx(1, meter(10)), tx(100, meter(1000)), tx(1, meter(10))},
		"tiers of other algorithms": {tx(1, meter(1000)), tx(1, sliding), tx(1, bucket.Named("l")), tx(1, fixed.Named("l"))},
		"limits that join":          {tx(1, meter(1000)), tx(1, meter(1000), fixed), tx(1, fixed, meter(1000), sliding), tx(1, sliding)},
		"a calendar beside":         {tx(1, day), tx(1, day, fixed), tx(2, fixed, day), waits(tx(1, day))},
		"a log beside":              {tx(1, log), tx(5, log, meter(1000)), tx(1, meter(1000)), tx(2000, log)},
		"looks beside":              {tx(1, meter(1000)), {Charges: append(charges(2, meter(1000)), charges(0, fixed)...)}, {Charges: append(charges(0, meter(1000)), charges(1, fixed)...)}},
		"forgotten":                 {tx(1, meter(1000), fixed), {Charges: charges(1, fixed), Mode: quota.ModeForget}, {Charges: charges(1, meter(1000)), Mode: quota.ModeForget}},
		"at most":                   {{Charges: charges(1, meter(1000), fixed), Mode: quota.ModeAtMost, Most: 100}, {Charges: charges(1, log, fixed), Mode: quota.ModeAtMost, Most: 1e6}, {Charges: charges(2, log), Mode: quota.ModeAtMost, Most: 1}},
		"forced":                    {{Charges: charges(5000, meter(1000), fixed), Mode: quota.ModeForce}, {Charges: charges(5000, log), Mode: quota.ModeForce}, tx(1, meter(1000))},
		"few and many":              {tx(1, several(20)...), tx(1, several(21)...), tx(1, several(3)...)},
		"several keys":              {keys(tx(1, meter(1000), fixed, log)), keys(tx(1, log, meter(10))), tx(1, log), keys(waits(tx(1, bucket, fixed))), keys(tx(0, meter(1000), fixed))},
		"given back":                {keys(tx(1, meter(1000), fixed)), spent(keys(tx(-1, meter(1000), fixed))), spent(tx(-1, meter(1000), fixed)), spent(tx(-1, log))},
	} {
		setRule(shapes, name)
		takeShapes(t, store, name, shapes)
		resetStats(t, rdb) // Redis now has the scripts
		for range 4 {
			takeShapes(t, store, name, shapes)
		}
		if got, want := ran(t, server), 4*len(shapes); got != want {
			t.Errorf("%s: got %d scripts run for %d times Take", name, got, want)
		}
		var batch []*quota.Transaction
		for range 10 {
			for i := range shapes {
				again := shapes[i]
				again.Decisions = nil
				batch = append(batch, &again)
			}
		}
		takeEach(t, store, name, batch)
		resetStats(t, rdb)
		takeEach(t, store, name, batch)
		if got := ran(t, server); got > len(batch) {
			t.Errorf("%s: got %d scripts run for a batch of %d", name, got, len(batch))
		}
	}
}

// setRule sets the rule of all charges.
func setRule(shapes []quota.Transaction, rule string) {
	for i := range shapes {
		for j := range shapes[i].Charges {
			shapes[i].Charges[j].Rule = rule
		}
	}
}

// takeShapes takes a transaction of each shape.
func takeShapes(t *testing.T, store quota.Store, name string, shapes []quota.Transaction) {
	t.Helper()
	for i := range shapes {
		if err := store.Take(t.Context(), &shapes[i]); err != nil {
			t.Fatalf("%s, shape %d: %v", name, i, err)
		}
	}
}

// resetStats sets the server's count of scripts run back to 0.
func resetStats(t *testing.T, rdb *redis.Client) {
	t.Helper()
	if err := rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestBatchIsOneCall: under every algorithm, a batch of equal transactions of one key is one
// command, even if the key has states of other limits.
func TestBatchIsOneCall(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for _, limit := range []quota.Limit{
		algorithms.GCRA(100, time.Hour), algorithms.TokenBucket(100, 100, time.Hour), algorithms.LeakyBucket(100, 100, time.Hour),
		algorithms.FixedWindow(100, 10_000*time.Hour), algorithms.AnchoredWindow(100, time.Hour), algorithms.SlidingWindow(100, 10_000*time.Hour),
		algorithms.Calendar(100, algorithms.Month, nil), algorithms.SlidingLog(100, time.Hour),
	} {
		charge := quota.Charge{Rule: "r", Key: limit.Algorithm.Name(), Limit: limit, Cost: 3}
		take(t, store, quota.Charge{Rule: "r", Key: charge.Key, Limit: limit.Named("other"), Cost: 1})
		take(t, store, quota.Charge{Rule: "r", Key: charge.Key, Limit: limit.Named("other"), Cost: -1}) // also loads the script
		var batch []*quota.Transaction
		for range 40 {
			batch = append(batch, &quota.Transaction{Charges: []quota.Charge{charge}})
		}
		resetStats(t, rdb)
		takeEach(t, store, limit.String(), batch)
		if got := ran(t, server); got != 1 {
			t.Errorf("%v: got %d scripts run for a batch, want 1", limit, got)
		}
		allowed := 0
		for i, tx := range batch {
			if tx.Allowed() {
				allowed++
			}
			if want := max(0, 100-3*int64(min(i+1, 33))); tx.Decisions[0].Remaining != want {
				t.Errorf("%v, %d: got %d remaining, want %d", limit, i, tx.Decisions[0].Remaining, want)
			}
		}
		if allowed != 33 {
			t.Errorf("%v: got %d allowed of %d, want 33", limit, allowed, len(batch))
		}
	}
}

// TestFewScripts: the number of scripts in Redis is bounded. It does not grow with the
// numbers, names and costs of limits.
func TestFewScripts(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	kinds := []func(int64, time.Duration) quota.Limit{algorithms.GCRA, algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.AnchoredWindow}
	scripts := func() int {
		info, err := rdb.InfoMap(t.Context(), "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		var n int
		fmt.Sscan(info["Memory"]["number_of_cached_scripts"], &n)
		return n
	}
	for i := range 1000 {
		take(t, store, quota.Charge{Rule: "r", Key: fmt.Sprint(i), Limit: algorithms.GCRA(int64(i+1), time.Hour).Named(fmt.Sprint(i)), Cost: int64(i)})
	}
	if got := scripts(); got > 1 {
		t.Errorf("got %d scripts for one algorithm under 1000 names and numbers, want 1", got)
	}
	for i := range 1000 {
		var charges []quota.Charge
		for j := range 6 { // makes up to 4096 shapes
			charges = append(charges, quota.Charge{Rule: "r", Key: "k", Limit: kinds[i*17>>(2*j)%4](1000, time.Hour).Named(fmt.Sprint(j)), Cost: 1})
		}
		take(t, store, charges...)
	}
	for i := range 1000 {
		var charges []quota.Charge
		for j := range 10 { // makes up to 1024 shapes of several keys
			charges = append(charges, quota.Charge{Rule: "r", Key: fmt.Sprint(j), Limit: kinds[i>>j&1](1000, time.Hour), Cost: 1})
		}
		take(t, store, charges...)
	}
	if got, most := scripts(), 64+len(kinds); got > most {
		t.Errorf("got %d scripts for any number of shapes, want %d at most", got, most)
	}
}
