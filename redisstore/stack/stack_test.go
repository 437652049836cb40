package stack_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// open returns a stack with a client of the Redis at addr, and its log.
func open(t *testing.T, addr string, o stack.Options) (*stack.Store, *weirtest.Log) {
	t.Helper()
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(5*time.Second, addr))
	t.Cleanup(func() { rdb.Close() })
	return openClient(t, rdb, o)
}

func openClient(t *testing.T, rdb redis.UniversalClient, o stack.Options) (*stack.Store, *weirtest.Log) {
	t.Helper()
	log := &weirtest.Log{}
	o.Redis.Timeout, o.Logger = 5*time.Second, slog.New(slog.NewTextHandler(log, nil))
	store, err := stack.New(rdb, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, log
}

// granted returns how many of 100 units a store grants to a key, and its error.
func granted(t *testing.T, store quota.Store, key string) (int64, error) {
	t.Helper()
	n, _, err := quota.AllowAtMost(t.Context(), store, quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(100, 1000*time.Hour), Cost: 100})
	return n, err
}

// TestStack: two stacks count together in Redis, and remember what it refuses. When Redis is
// gone, each of them admits its share of the limit, Undivided the whole limit, and
// WithoutFallback returns the error. One line of the log has the cause.
func TestStack(t *testing.T) {
	server := redistest.Server(t)
	a, log := open(t, server.Addr(), stack.Options{Replicas: 4})
	b, _ := open(t, server.Addr(), stack.Options{Replicas: 4})
	n, err := granted(t, a, "k")
	m, err2 := granted(t, b, "k")
	if n != 100 || m != 0 || err != nil || err2 != nil {
		t.Fatalf("got %d and %d units, errors %v and %v, want 100 and 0", n, m, err, err2)
	}
	for range 10 {
		if tx := weirtest.Once(algorithms.GCRA(100, 1000*time.Hour)); a.Take(t.Context(), tx) != nil || !tx.Allowed() {
			t.Fatalf("got %+v, want an allowed charge", tx.Decisions)
		}
	}
	server.Kill()
	for _, test := range []struct {
		name  string
		store quota.Store
		want  int64
		down  bool
	}{
		{"divided", a, 25, false}, {"divided", b, 25, false}, {"undivided", a.Undivided(), 100, false}, {"without", a.WithoutFallback(), 0, true},
	} {
		n, err := granted(t, test.store, test.name)
		if n != test.want || (err != nil) != test.down {
			t.Errorf("%s: got %d units and error %v, want %d", test.name, n, err, test.want)
		}
		// Which call notices the end of the server, a read, a write or a dial, is decided by the kernel.
		var network *net.OpError
		if test.down && !errors.As(err, &network) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got error %v, want that of the connection", test.name, err)
		}
	}
	if text := log.String(); !strings.Contains(text, "stack: outage of Redis began") {
		t.Errorf("the log lacks the outage:\n%s", text)
	}
}

// TestReplicas: stacks that share Redis count each other. When Redis is gone, eight of them admit at
// most the limit together.
func TestReplicas(t *testing.T) {
	server := redistest.Server(t)
	var stores []*stack.Store
	for range 8 {
		s, _ := open(t, server.Addr(), stack.Options{})
		stores = append(stores, s)
	}
	for _, s := range stores {
		until(t, "each store has counted all", func() bool { return s.Replicas() == len(stores) })
	}
	other, log := open(t, server.Addr(), stack.Options{Replicas: 3, Redis: redisstore.Options{Prefix: "other:"}})
	if other.Replicas() != 3 {
		t.Errorf("got %d replicas, want the number of the options", other.Replicas())
	}
	server.Kill()
	all := int64(0)
	for _, s := range append(stores, other) {
		n, err := granted(t, s, "k")
		if err != nil {
			t.Fatal(err)
		}
		all += n
	}
	if want := int64(8*12 + 33); all != want {
		t.Errorf("got %d units, want %d", all, want)
	}
	late, _ := open(t, server.Addr(), stack.Options{})
	if n, err := granted(t, late, "k"); n != 100 || err != nil || late.Replicas() != 0 {
		t.Errorf("a store of the outage: got %d units and error %v, want the whole limit", n, err)
	}
	if !strings.Contains(log.String(), "1/3 of each limit") {
		t.Errorf("the log lacks the share:\n%s", log)
	}
}

// TestAnnounce: a Limiter announces its limits to a stack and to the stores that it returns.
func TestAnnounce(t *testing.T) {
	server := redistest.Server(t)
	store, _ := open(t, server.Addr(), stack.Options{})
	for _, s := range []quota.Store{store, store.WithoutFallback()} {
		s.(optional.Announcer).Announce("r", []quota.Limit{algorithms.GCRA(1, time.Hour)})
	}
	until(t, "Redis has the limits", func() bool {
		limits, err := server.Do("HGETALL", "weir:limits")
		return err == nil && strings.Contains(fmt.Sprint(limits), `"1h: 1 per 1h0m0s (gcra)"`)
	})
}

// TestHybridInFront: a refusal is remembered, so that Redis is not asked again.
func TestHybridInFront(t *testing.T) {
	server := redistest.Server(t)
	store, _ := open(t, server.Addr(), stack.Options{Replicas: 1})
	limit := algorithms.GCRA(1, 1000*time.Hour)
	for range 50 {
		if err := store.Take(t.Context(), weirtest.Once(limit)); err != nil {
			t.Fatal(err)
		}
	}
	var hits int64
	for _, part := range store.Stores() {
		if h, ok := part.(*quota.HybridStore); ok {
			hits = h.Stats().Hits
		}
	}
	if hits != 48 { // the first is admitted, and the second refused by Redis
		t.Errorf("got %d refusals from memory of 50 requests, want 48", hits)
	}
}

// TestNew: New returns an error for each mistake, and panics at none.
func TestNew(t *testing.T) {
	rdb := redis.NewClient(redisstore.ClientOptions(0, "127.0.0.1:1").Simple())
	defer rdb.Close()
	for want, o := range map[string]stack.Options{
		"Replicas is -1; want at least 0":           {Replicas: -1},
		"Hybrid.MaxKeys is -1":                      {Replicas: 1, Hybrid: quota.HybridOptions{MaxKeys: -1}},
		"Memory.MaxKeys is -1":                      {Replicas: 1, Memory: memstore.Options{MaxKeys: -1}},
		"Breaker.Failures is -1":                    {Replicas: 1, Breaker: quota.BreakerOptions{Failures: -1}},
		"Breaker.Cooldown is -1ns":                  {Replicas: 1, Breaker: quota.BreakerOptions{Cooldown: -1}},
		`Prefix is "{"; want a text without braces`: {Replicas: 1, Redis: redisstore.Options{Prefix: "{"}},
	} {
		if _, err := stack.New(rdb, o); !weirtest.FailsWith(err, want) {
			t.Errorf("%+v: got error %v, want %q", o, err, want)
		}
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := stack.New(none, stack.Options{Replicas: 1}); !weirtest.FailsWith(err, "the client is nil") {
			t.Errorf("%T: got error %v for a nil client", none, err)
		}
	}
}

// TestWarnings: settings of the client that work against the store are logged.
func TestWarnings(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	log := &weirtest.Log{}
	store, err := stack.New(rdb, stack.Options{Replicas: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range store.Redis().Warnings() {
		if !strings.Contains(log.String(), w+`" fix=`) {
			t.Errorf("the log lacks %q and a fix:\n%s", w, log)
		}
	}
}
