package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
	"github.com/seed83679106/weir/redisstore"
)

// patience is the Timeout of stores in tests. It is longer than the default, for a busy
// machine.
const patience = 5 * time.Second

func newStore(t testing.TB, rdb redis.UniversalClient, sendTime ...bool) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience, SendTime: len(sendTime) > 0})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func client(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestConformance(t *testing.T) {
	addr := redistest.Server(t).Addr()
	t.Run("tuned", func(t *testing.T) {
		conform(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, addr))), nil)
	})
	t.Run("defaults", func(t *testing.T) {
		rounds.Slow(t, "the whole suite again")
		conform(t, client(t, redis.NewClient(&redis.Options{Addr: addr})), nil)
	})
	t.Run("Lua 5.4", func(t *testing.T) {
		rounds.Slow(t, "the whole suite again")
		conform(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Lua54(t).Addr()})), nil)
	})
}

// TestServer runs Probe and the conformance suite on the server whose address is in WEIR_SERVER.
// It deletes everything that the server holds.
func TestServer(t *testing.T) {
	addr := os.Getenv("WEIR_SERVER")
	if addr == "" {
		t.Skip("WEIR_SERVER is not set")
	}
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, addr)))
	if err := newStore(t, rdb).Probe(t.Context(), everyLimit...); err != nil {
		t.Fatal(err)
	}
	conform(t, rdb, nil)
}

// TestConformanceCluster runs the conformance suite in a cluster: once with all keys in one
// slot, and once with keys as they are, but without the tests of several keys. Keys of several
// slots are decided at several instants, which the suite does not expect. cluster_test.go
// tests such keys.
func TestConformanceCluster(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	c := redistest.Cluster(t, 3, 0)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, c.Addrs()...)))
	t.Run("one slot", func(t *testing.T) { conform(t, rdb, oneSlot) })
	t.Run("one key", func(t *testing.T) { conform(t, rdb, nil) })
}

// TestConformanceRing runs the conformance suite in a ring, as TestConformanceCluster does in a
// cluster.
func TestConformanceRing(t *testing.T) {
	rounds.Slow(t, "the whole suite twice again")
	rdb := client(t, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{
		"1": redistest.Server(t).Addr(), "2": redistest.Server(t).Addr(),
	}}))
	t.Run("one slot", func(t *testing.T) { conform(t, rdb, oneSlot) })
	t.Run("one key", func(t *testing.T) { conform(t, rdb, nil) })
}

// TestInFlight tests a limit of requests in flight, whose units are given back one by one,
// beside other limits of the key.
func TestInFlight(t *testing.T) {
	servers := []string{redistest.Server(t).Addr()}
	if rounds.Long() {
		servers = append(servers, redistest.Lua54(t).Addr())
	}
	for _, addr := range servers {
		rdb := client(t, redis.NewClient(&redis.Options{Addr: addr}))
		storetest.Limits(t, newStore(t, rdb), algorithms.InFlight(7, time.Millisecond).Named("short"), algorithms.InFlight(7, time.Hour).Named("long"),
			algorithms.SlidingLog(7, time.Hour).Named("log"), algorithms.GCRA(7, time.Hour).Named("meter"))
	}
}

// severalKeys are the tests of the suite that charge several keys at one instant.
var severalKeys = []string{"Random", "ManyCharges", "Decisions", "Duplicate", "Names", "CrossingKeys", "Each"}

// conform runs the suite, and checks the TTLs of the values that each test leaves in Redis.
func conform(t *testing.T, rdb redis.UniversalClient, adapt func(quota.Store) quota.Store, sendTime ...bool) {
	_, single := rdb.(*redis.Client)
	storetest.Run(t, func(t *testing.T) quota.Store {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		if !single && adapt == nil && slices.Contains(severalKeys, name) {
			t.Skip("the test charges keys of several slots at one instant")
		}
		l := newLifetimes(t, rdb, sendTime...)
		t.Cleanup(func() { l.check(t, rdb) })
		if adapt != nil {
			return adapt(l)
		}
		return l
	})
}

// oneSlot returns a store that puts all keys into one slot: it gives every key the same
// prefix, which contains the end of the hash tag. A long key keeps the state of its StoredKey.
func oneSlot(next quota.Store) quota.Store {
	return storeFunc(func(ctx context.Context, t *quota.Transaction) error {
		charges := t.Charges
		t.Charges = slices.Clone(charges)
		for i := range t.Charges {
			t.Charges[i].Key = "slot}" + t.Charges[i].StoredKey()
		}
		defer func() { t.Charges = charges }()
		return next.Take(ctx, t)
	})
}

// TestReservedLifetime: the TTL of a value may exceed the time for which its states matter by
// a part of the longest period, even if a limit of a shorter period has the reservation.
func TestReservedLifetime(t *testing.T) {
	rdb := client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()}))
	l := newLifetimes(t, rdb)
	short, long := algorithms.SlidingLog(7, 20*time.Millisecond).Named("short"), algorithms.SlidingLog(7, time.Hour).Named("long")
	// The limits of these charges make transactions wait.
	wait := func(key string) quota.Charge {
		return quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(1, time.Hour), Cost: 1}
	}
	for _, tx := range []quota.Transaction{
		{Charges: []quota.Charge{wait("3"), wait("4")}},
		{Within: time.Hour, Charges: []quota.Charge{{Rule: "r", Key: "1", Limit: short, Cost: 1}, {Rule: "r", Key: "1", Limit: long}, wait("3")}},
		{Within: time.Hour, Charges: []quota.Charge{{Rule: "r", Key: "2", Limit: short, Cost: 1}, wait("4")}},
		{Charges: []quota.Charge{{Rule: "r", Key: "2", Limit: long, Cost: 1}}},
		{Charges: []quota.Charge{{Rule: "r", Key: "2", Limit: long, Cost: -1}}},
	} {
		if err := l.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
			t.Fatalf("got %v and %+v, want it allowed", err, tx.Decisions)
		}
	}
	l.check(t, rdb)
}

// TestLongScriptLifetime: a value lives until its states no longer matter, although Redis counts its TTL
// from a later instant than that of the scripts, which charge only some of its states. They are so short
// that the difference stays below half a second on a busy machine.
func TestLongScriptLifetime(t *testing.T) {
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Server(t).Addr())))
	store := newStore(t, rdb)
	long := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, time.Minute).Named("long"), Cost: 1}
	if _, err := quota.Allow(t.Context(), store, long); err != nil {
		t.Fatal(err)
	}
	var others quota.Transaction
	for i := range 300 {
		others.Charges = append(others.Charges, quota.Charge{Rule: "r", Key: fmt.Sprint(i), Limit: algorithms.GCRA(1e6, time.Millisecond), Cost: 1})
	}
	others.Charges[299].Key = "k" // its value is written last
	for range 4 {
		if err := store.Take(t.Context(), &others); err != nil || !others.Allowed() {
			t.Fatalf("got %v, want the charges of the other limits allowed", err)
		}
	}
	tx, err := quota.Peek(t.Context(), store, long)
	if err != nil {
		t.Fatal(err)
	}
	ttl := rdb.PTTL(t.Context(), store.Key(&long)).Val()
	if rest := time.Until(tx.At.Add(tx.Decisions[0].ResetAfter)); ttl < rest-time.Millisecond {
		t.Errorf("got a TTL of %v, want at least %v", ttl, rest)
	}
}

type storeFunc func(context.Context, *quota.Transaction) error

func (f storeFunc) Take(ctx context.Context, t *quota.Transaction) error { return f(ctx, t) }

// A lifetimes store notes until when each value may live: until its states no longer matter,
// and at most a second and the longest period of its charges longer. That period may belong
// to another limit of the key than the state that matters longest. Scripts round up to a whole
// second and then to 1 or 2 ms more, which Redis counts from another instant of the script.
type lifetimes struct {
	*redisstore.Store
	mu      sync.Mutex
	ends    map[string]time.Time     // when the states of a value no longer matter
	periods map[string]time.Duration // the longest period of the charges of a value
	late    time.Duration            // how much longer values live with SendTime
}

func newLifetimes(t testing.TB, rdb redis.UniversalClient, sendTime ...bool) *lifetimes {
	late := time.Duration(len(sendTime)) * (2*patience + 20*time.Millisecond)
	return &lifetimes{late: late, Store: newStore(t, rdb, sendTime...), ends: map[string]time.Time{}, periods: map[string]time.Duration{}}
}

func (l *lifetimes) Take(ctx context.Context, t *quota.Transaction) error {
	if err := l.Store.Take(ctx, t); err != nil {
		return err
	}
	l.note(t)
	return nil
}

func (l *lifetimes) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	errs := l.Store.TakeEach(ctx, ts)
	for i, t := range ts {
		if errs == nil || errs[i] == nil {
			l.note(t)
		}
	}
	return errs
}

func (l *lifetimes) note(t *quota.Transaction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		key := l.Key(c)
		if end := t.At.Add(d.ResetAfter); end.After(l.ends[key]) {
			l.ends[key] = end
		}
		l.periods[key] = max(l.periods[key], c.Limit.Period)
	}
}

func (l *lifetimes) check(t *testing.T, rdb redis.UniversalClient) {
	ctx := context.Background()
	err := eachServer(ctx, rdb, func(rdb *redis.Client) error {
		var all []error
		keys := rdb.Scan(ctx, 0, "*", 1000).Iterator()
		for keys.Next(ctx) {
			ttl, err := rdb.PTTL(ctx, keys.Val()).Result()
			most := l.ends[keys.Val()].Add(l.periods[keys.Val()] + time.Second + 5*time.Millisecond + l.late)
			switch {
			case err != nil:
				return err
			case ttl == -2: // the value has expired meanwhile
			case ttl < 0:
				all = append(all, fmt.Errorf("%.100q has no TTL", keys.Val()))
			case time.Now().Add(ttl).After(most):
				all = append(all, fmt.Errorf("%.100q has a TTL of %v, want %v at most", keys.Val(), ttl, time.Until(most)))
			}
		}
		return errors.Join(append(all, keys.Err(), rdb.FlushAll(ctx).Err())...)
	})
	if err != nil {
		t.Error(err)
	}
}

func eachServer(ctx context.Context, rdb redis.UniversalClient, f func(*redis.Client) error) error {
	each := func(_ context.Context, rdb *redis.Client) error { return f(rdb) }
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		return rdb.ForEachMaster(ctx, each)
	case *redis.Ring:
		return rdb.ForEachShard(ctx, each)
	}
	return f(rdb.(*redis.Client))
}
