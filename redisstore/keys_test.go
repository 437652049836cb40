package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestLongKeys: keys of 900 kB take no more room in Redis than short keys, because Redis
// gets a digest of them.
func TestLongKeys(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, server.Addr())))
	store := newStore(t, rdb)
	n := min(rounds.N(30, 300), 300)
	before := usedMemory(t, rdb)
	for i := range n {
		key := fmt.Sprint(i, strings.Repeat("x", 900_000))
		for _, limit := range []quota.Limit{algorithms.GCRA(9, time.Hour), algorithms.SlidingLog(9, time.Hour)} {
			take(t, store, quota.Charge{Rule: "api", Key: key, Limit: limit, Cost: 1})
		}
	}
	if kept := usedMemory(t, rdb) - before; kept > 5<<20 {
		t.Errorf("%d keys of 900 kB take %d bytes, want less than 5 MB", n, kept)
	}
	names, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil || len(names) != 2*n {
		t.Errorf("got %d keys, %v, want %d", len(names), err, 2*n)
	}
	for _, name := range names {
		if len(name) > 200 {
			t.Fatalf("got a key of %d bytes, want 200 at most", len(name))
		}
	}
}

func usedMemory(t *testing.T, rdb redis.UniversalClient) int64 {
	t.Helper()
	info, err := rdb.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(info, "\nused_memory:")
	digits, _, _ := strings.Cut(after, "\r")
	used, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// TestLongKeyIsItsDigest: a long key and its digest share a state, on a single server and in
// a cluster, in Take and in TakeEach.
func TestLongKeyIsItsDigest(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	long := strings.Repeat("x", 900)
	charge := func(key string) quota.Charge {
		return quota.Charge{Rule: "api", Key: key, Limit: algorithms.GCRA(3, time.Hour), Cost: 1}
	}
	for name, rdb := range map[string]redis.UniversalClient{
		"server":  redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Server(t).Addr())),
		"cluster": redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Cluster(t, 3, 0).Addrs()...)),
	} {
		store := newStore(t, client(t, rdb))
		take(t, store, charge(long))
		ts := []*quota.Transaction{
			{Charges: []quota.Charge{charge(storedkey.Of(long))}},
			{Charges: []quota.Charge{charge(long)}},
			{Charges: []quota.Charge{charge(storedkey.Of(long))}},
			{Charges: []quota.Charge{charge(long), {Rule: "other", Key: storedkey.Of(long), Limit: algorithms.GCRA(3, time.Hour), Cost: 1}}},
		}
		for i, err := range store.TakeEach(t.Context(), ts) {
			if err != nil {
				t.Errorf("%s: transaction %d: %v", name, i, err)
			}
		}
		for i, tx := range ts {
			if tx.Allowed() != (i < 2) {
				t.Errorf("%s: transaction %d: allowed is %v, want %v", name, i, tx.Allowed(), i < 2)
			}
		}
	}
}

// TestPrefixes: stores with different prefixes never use the same key, whatever their rules and
// algorithms are.
func TestPrefixes(t *testing.T) {
	rdb := client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()}))
	names := map[string]string{}
	for _, prefix := range []string{"weir:", "weir:billing:", "weir:log:", "weir:billing:log:", "a/", "a/b/"} {
		store, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range []string{"", "billing", "log", "b", "a", "log:log", "%6cog"} {
			for _, limit := range []quota.Limit{algorithms.SlidingLog(5, time.Hour), algorithms.GCRA(5, time.Hour)} {
				c := quota.Charge{Rule: rule, Key: "k", Limit: limit, Cost: 1}
				who := fmt.Sprintf("prefix %q, rule %q, %s", prefix, rule, limit.Algorithm.Name())
				if other, used := names[store.Key(&c)]; used {
					t.Errorf("%s and %s: both use %s", who, other, store.Key(&c))
				}
				names[store.Key(&c)] = who
				if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{c}}); err != nil {
					t.Errorf("%s: %v", who, err)
				}
			}
		}
	}
	for _, prefix := range []string{"weir", "app.", "x%", "a:b"} { // "weir" with the rule "s", and "weirs" with the rule ""
		if _, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix}); err == nil || !strings.Contains(err.Error(), `want a separator such as ":" at its end`) {
			t.Errorf("prefix %q: got %v, want an error", prefix, err)
		}
	}
}
