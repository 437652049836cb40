package stack_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// TestOneMasterDown: while one of three masters is down, memory decides only the keys of that master.
func TestOneMasterDown(t *testing.T) {
	for what, fail := range map[string]func(*redistest.Proc) (work func()){
		"killed": func(p *redistest.Proc) func() { p.Kill(); return func() { p.Restart(t) } },
		"hangs":  func(p *redistest.Proc) func() { p.Pause(); return p.Resume },
	} {
		t.Run(what, func(t *testing.T) { testOneMasterDown(t, fail) })
	}
}

func testOneMasterDown(t *testing.T, fail func(*redistest.Proc) (work func())) {
	t.Parallel() // it mostly waits for its servers
	cluster := redistest.Cluster(t, 3, 0)
	for _, node := range cluster.Nodes {
		if _, err := node.Do("CONFIG", "SET", "cluster-require-full-coverage", "no"); err != nil {
			t.Fatal(err)
		}
	}
	open := func(timeout time.Duration) redis.UniversalClient {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, cluster.Addrs()...))
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	store, err := stack.New(open(time.Second), stack.Options{Replicas: 1, Redis: redisstore.Options{Timeout: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	other, err := redisstore.New(open(5*time.Second), redisstore.Options{Timeout: 5 * time.Second}) // whose refusals store does not know
	if err != nil {
		t.Fatal(err)
	}
	of := func(keys ...string) *quota.Transaction {
		tx := new(quota.Transaction)
		for _, key := range keys {
			tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(1, time.Hour), Cost: 1})
		}
		return tx
	}
	one := func(key string) *quota.Transaction { return of(key) }
	dead := cluster.MasterOf("{.dead}")
	var healthy []string
	for i := 0; len(healthy) < 144; i++ {
		key := fmt.Sprint(i)
		if cluster.MasterOf("{."+key+"}") == dead {
			continue
		}
		healthy = append(healthy, key)
		if tx := one(key); other.Take(t.Context(), tx) != nil || !tx.Allowed() {
			t.Fatalf("key %s: not allowed at first", key)
		}
	}
	if err := store.Take(t.Context(), one("first")); err != nil { // it finds the masters
		t.Fatal(err)
	}
	work := fail(dead)
	var breaker *quota.BreakerStore
	for _, s := range store.Stores() {
		if b, ok := s.(*quota.BreakerStore); ok {
			breaker = b
		}
	}
	for begin := time.Now(); !breaker.Stats().Open; time.Sleep(10 * time.Millisecond) { // also the circuit of both masters
		if err := store.Take(t.Context(), of("dead", healthy[0])); err != nil || time.Since(begin) > time.Minute {
			t.Fatalf("a key of the dead master: got %v; the breaker is open: %v", err, breaker.Stats().Open)
		}
	}
	admitted := 0
	for _, key := range healthy[:72] {
		tx := one(key)
		if err := store.Take(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if tx.Allowed() {
			admitted++
		}
	}
	if admitted > 0 {
		t.Errorf("got %d of %d limited keys of healthy masters admitted, want none", admitted, 72)
	}

	// The same with requests that also have a key of the dead master.
	keyOf := func(dies bool, text string) string {
		for i := 0; ; i++ {
			if key := fmt.Sprint(text, i); (cluster.MasterOf("{."+key+"}") == dead) == dies {
				return key
			}
		}
	}
	admitted = 0
	for _, key := range healthy[72:] {
		tx := of(keyOf(true, key+"lost"), key)
		if err := store.Take(quota.WithBudget(t.Context()), tx); err != nil {
			t.Fatal(err)
		}
		if tx.Allowed() {
			admitted++
		}
	}
	if admitted > 0 {
		t.Errorf("got %d of %d limited keys of healthy masters admitted with a key of the dead one, want none", admitted, 72)
	}
	lost := keyOf(true, "lost")
	both := of(lost, keyOf(false, "fresh")) // has spent nothing yet
	inRedis, inMemory := both.Charges[1], both.Charges[0]
	check := func(what string, wantRedis, wantMemory int64) {
		t.Helper()
		redis, err := quota.Peek(t.Context(), other, inRedis)
		if err != nil {
			t.Fatal(err)
		}
		memory, err := quota.Peek(t.Context(), store, inMemory)
		if got, want := [2]int64{redis.Decisions[0].Remaining, memory.Decisions[0].Remaining}, [2]int64{wantRedis, wantMemory}; err != nil || got != want {
			t.Errorf("%s: got %v left in Redis and in memory, %v, want %v", what, got, err, want)
		}
	}
	check("at first", 1, 1)
	if err := store.Take(t.Context(), both); err != nil || !both.Allowed() || !both.Decisions[0].FellBack || both.Decisions[1].FellBack {
		t.Errorf("got %+v and %v, want allowed, the first by memory", both.Decisions, err)
	}
	check("spent", 0, 0)
	if err := quota.Refund(t.Context(), store, both); err != nil {
		t.Error(err)
	}
	check("refunded", 1, 1)
	if err := store.Take(t.Context(), one(lost)); err != nil {
		t.Fatal(err)
	}
	if err := store.Take(t.Context(), both); err != nil || both.Allowed() {
		t.Errorf("the key of the dead master is full: got %+v and %v, want refused", both.Decisions, err)
	}
	check("refused by memory", 1, 0)

	both = of(keyOf(true, "later"), keyOf(false, "later"))
	if err := store.Take(t.Context(), both); err != nil || !both.Allowed() {
		t.Fatalf("got %+v and %v, want allowed", both.Decisions, err)
	}
	work()
	for begin := time.Now(); breaker.Stats().Open; time.Sleep(10 * time.Millisecond) {
		if err := store.Take(t.Context(), of("dead", healthy[0])); err != nil || time.Since(begin) > 30*time.Second {
			t.Fatalf("a key of the master that works again: got %v; the breaker is open: %v", err, breaker.Stats().Open)
		}
	}
	inRedis, inMemory = both.Charges[1], both.Charges[1]
	if err := quota.Refund(t.Context(), store, both); err != nil {
		t.Errorf("refund after the outage: got %v", err)
	}
	check("refunded after the outage", 1, 1)
}
