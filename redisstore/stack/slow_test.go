package stack_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	const slow, fast = "127.0.0.1:1", "127.0.0.1:2"
	var answers atomic.Int64
	answer := func(addr string, args []string) string {
		if addr == slow && answers.Add(1)%10 == 0 {
			time.Sleep(60 * time.Millisecond) // longer than the Timeout
		} else if addr == slow {
			time.Sleep(40 * time.Millisecond)
		}
		now := time.Now().UnixMicro()
		if args[0] != "evalsha" || !strings.HasPrefix(args[3], "weir:r:") {
			return "-ERR unknown command\r\n"
		}
		state := fmt.Sprintf("%d %d 0;", now/1e6, now%1e6) // each key is full
		for _, x := range []int64{now, 1, 0, now + time.Hour.Microseconds()} {
			state += string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(x))))
		}
		return fmt.Sprintf("$%d\r\n%s\r\n", len(state), state)
	}
	synctest.Test(t, func(t *testing.T) { // a process that is late would not find out that Redis is slow
		defer time.Sleep(10 * time.Second) // in which all goroutines end
		rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"slow": slow, "fast": fast}, Protocol: 2, DisableIdentity: true,
			HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
			Dialer: func(_ context.Context, _, addr string) (net.Conn, error) {
				here, there := net.Pipe()
				go redistest.Answer(there, func(args []string) string { return answer(addr, args) })
				return here, nil
			}})
		defer rdb.Close()
		s, err := stack.New(rdb, stack.Options{Replicas: 1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		chargeOf := func(addr, text string) quota.Charge {
			for i := 0; ; i++ {
				key := fmt.Sprint(text, i)
				if node, err := rdb.GetShardClientForKey("{." + key + "}"); err != nil {
					t.Fatal(err)
				} else if node.Options().Addr == addr {
					return quota.Charge{Rule: "r", Key: key, Limit: algorithms.GCRA(1, time.Hour), Cost: 1}
				}
			}
		}
		late := &quota.Transaction{Charges: []quota.Charge{chargeOf(slow, "late")}}
		for begin := time.Now(); s.Redis().Slow(t.Context(), late) == nil; time.Sleep(5 * time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatal("not too slow after 10 s")
			}
			go s.Redis().Take(t.Context(), &quota.Transaction{Charges: late.Charges})
		}
		for i := range 50 {
			tx := &quota.Transaction{Charges: []quota.Charge{chargeOf(slow, fmt.Sprint("slow", i, ".")), chargeOf(fast, fmt.Sprint("fast", i, "."))}}
			if err := s.Take(t.Context(), tx); err != nil || tx.Allowed() || !tx.Decisions[0].FellBack || tx.Decisions[1].FellBack {
				t.Errorf("got %+v and %v, want refused, the first by memory and the second by Redis", tx.Decisions, err)
			}
		}
	})
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
