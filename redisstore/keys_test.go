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
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestLongKeys: keys of 900 kB take no more room in Redis than short keys, because Redis
// gets a digest of them.
func TestLongKeys(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, server.Addr())))
	store := newStore(t, rdb)
	const n = 300
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
