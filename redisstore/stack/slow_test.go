package stack_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// TestTooSlow: if the round trip is near the Timeout, so that Redis decides only some requests, the fallback
// soon decides all of them, which is logged once with its remedy, until Redis is quick.
func TestTooSlow(t *testing.T) {
	rounds.Slow(t, "Redis must be slow for 5 s")
	t.Parallel()
	proxy := redistest.Proxy(t, redistest.Server(t).Addr())
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, proxy.Addr()))
	defer rdb.Close()
	var log weirtest.Log
	s, err := stack.New(rdb, stack.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	decided := func() map[string]int64 { return fallbackOf(t, s).Stats().Decided }
	load := func(d time.Duration) { // 200 requests a second
		var wg sync.WaitGroup
		for i, begin := 0, time.Now(); time.Since(begin) < d; i++ {
			wg.Go(func() {
				_ = s.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{
					{Rule: "r", Key: fmt.Sprint(i % 50), Limit: algorithms.GCRA(1000, time.Second), Cost: 1}}})
			})
			time.Sleep(5 * time.Millisecond)
		}
		wg.Wait()
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for begin := time.Now(); !ok(); load(time.Second / 4) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: not after a minute; decided %v, log:\n%s", what, decided(), &log)
			}
		}
		t.Logf("%s", what)
	}
	load(time.Second / 4)
	proxy.Latency.Store(int64(40 * time.Millisecond))
	const line = `msg="stack: timeout too short for this Redis" err="redisstore: even the fastest answers of Redis take `
	eventually("too slow", func() bool { return strings.Contains(log.String(), line) })
	before := decided()
	load(time.Second)
	after := decided()
	for cause, n := range after {
		if more := n - before[cause]; (more > 0) != (cause == "slow") {
			t.Errorf("too slow: got %d decisions by the fallback because of %q", more, cause)
		}
	}
	if n := strings.Count(log.String(), "too short for"); n != 1 || !strings.Contains(log.String(), "raise redisstore.Options.Timeout") {
		t.Errorf("got %d lines in\n%s", n, &log)
	}
	proxy.Latency.Store(0)
	eventually("quick again", func() bool { return !fallbackOf(t, s).Stats().Active })
}

// TestOneTooSlow: if one of two servers is too slow, Redis decides the keys of the other one, also in
// requests with keys of both.
func TestOneTooSlow(t *testing.T) {
	rounds.Slow(t, "Redis must be slow for 5 s")
	t.Parallel()
	proxy, fast := redistest.Proxy(t, redistest.Server(t).Addr()), redistest.Server(t)
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"slow": proxy.Addr(), "fast": fast.Addr()}, Protocol: 2})
	defer rdb.Close()
	s, err := stack.New(rdb, stack.Options{Replicas: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keyOf := func(slow bool, text string) string {
		for i := 0; ; i++ {
			key := fmt.Sprint(text, i)
			if node, err := rdb.GetShardClientForKey("{." + key + "}"); err != nil {
				t.Fatal(err)
			} else if (node.Options().Addr == proxy.Addr()) == slow {
				return key
			}
		}
	}
	charge := func(key string, n int64) quota.Charge {
		return quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(n, time.Hour), Cost: 1}
	}
	var full []quota.Charge // on a busy machine, some calls get no answer in time
	for i := range 50 {
		full = append(full, charge(keyOf(false, fmt.Sprint("full", i, ".")), 1))
		until(t, "Redis decides", func() bool {
			return s.Redis().Take(t.Context(), &quota.Transaction{Charges: full[i:]}) == nil
		})
	}
	proxy.Latency.Store(int64(40 * time.Millisecond))
	slow := &quota.Transaction{Charges: []quota.Charge{charge(keyOf(true, "slow"), 10_000)}}
	for begin := time.Now(); s.Redis().Slow(t.Context(), slow) == nil; time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("not too slow after a minute")
		}
		go s.Redis().Take(t.Context(), &quota.Transaction{Charges: slow.Charges}) // a breaker would send fewer
	}
	admitted := 0
	for _, c := range full {
		tx := &quota.Transaction{Charges: []quota.Charge{slow.Charges[0], c}}
		until(t, "memory decides the key of the slow server, and Redis the other one", func() bool {
			if err := s.Take(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			return tx.Decisions[0].FellBack && !tx.Decisions[1].FellBack
		})
		if tx.Allowed() {
			admitted++
		}
	}
	if admitted > 0 {
		t.Errorf("got %d of %d limited keys of the fast server admitted, want none", admitted, len(full))
	}
}

func fallbackOf(t *testing.T, s *stack.Store) *quota.FallbackStore {
	for _, store := range s.Stores() {
		if f, ok := store.(*quota.FallbackStore); ok {
			return f
		}
	}
	t.Fatal("no fallback")
	return nil
}
