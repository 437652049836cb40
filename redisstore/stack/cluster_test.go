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
	t.Parallel() // it mostly waits for its servers to start
	cluster := redistest.Cluster(t, 3, 0)
	for _, node := range cluster.Nodes {
		if _, err := node.Do("CONFIG", "SET", "cluster-require-full-coverage", "no"); err != nil {
			t.Fatal(err)
		}
	}
	open := func() redis.UniversalClient {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, cluster.Addrs()...))
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	store, err := stack.New(open(), stack.Options{Replicas: 1, Redis: redisstore.Options{Timeout: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	other, err := redisstore.New(open(), redisstore.Options{Timeout: time.Second}) // whose refusals store does not know
	if err != nil {
		t.Fatal(err)
	}
	one := func(key string) *quota.Transaction {
		return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: key, Limit: algorithms.GCRA(1, time.Hour), Cost: 1}}}
	}
	dead := cluster.MasterOf("{.dead}")
	var healthy []string
	for i := 0; len(healthy) < 72; i++ {
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
	dead.Kill()
	var breaker *quota.BreakerStore
	for _, s := range store.Stores() {
		if b, ok := s.(*quota.BreakerStore); ok {
			breaker = b
		}
	}
	for begin := time.Now(); !breaker.Stats().Open; time.Sleep(10 * time.Millisecond) {
		if err := store.Take(t.Context(), one("dead")); err != nil || time.Since(begin) > time.Minute {
			t.Fatalf("a key of the dead master: got %v; the breaker is open: %v", err, breaker.Stats().Open)
		}
	}
	admitted := 0
	for _, key := range healthy {
		tx := one(key)
		if err := store.Take(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if tx.Allowed() {
			admitted++
		}
	}
	if admitted > 0 {
		t.Errorf("got %d of %d limited keys of healthy masters admitted, want none", admitted, len(healthy))
	}
}
