package stack_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// until returns once ok returns true, and fails the test after a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

// TestCheck: without a request, the log and Err name the right that is missing, and Err is nil
// once the right is there. If the right is taken away again, the next request starts another
// check. All requests are decided.
func TestCheck(t *testing.T) {
	server := redistest.Server(t)
	for _, rules := range []string{"+@all", "-psetex", "-hgetall"} {
		if _, err := server.Do("ACL", "SETUSER", "weir", "on", ">p", "~*", rules); err != nil {
			t.Fatal(err)
		}
	}
	o := redisstore.ClientOptions(5*time.Second, server.Addr())
	o.Username, o.Password = "weir", "p"
	rdb := redis.NewUniversalClient(o)
	defer rdb.Close()
	store, log := openClient(t, rdb, stack.Options{Replicas: 1})
	const missing = `user "weir" lacks +psetex +hgetall`
	until(t, "Err names the rights", func() bool {
		return errors.Is(store.Err(), quota.ErrUnusable) && strings.Contains(store.Err().Error(), missing)
	})
	if n, err := granted(t, store, "a"); n != 100 || err != nil {
		t.Errorf("without rights: got %d units and error %v, want 100 from memory", n, err)
	}
	if _, err := granted(t, store.WithoutFallback(), "b"); !errors.Is(err, quota.ErrUnusable) {
		t.Errorf("without rights and fallback: got error %v, want an ErrUnusable", err)
	}
	server.Do("ACL", "SETUSER", "weir", "+@all")
	until(t, "Err is nil", func() bool { return store.Err() == nil })
	until(t, "the log has both lines", func() bool {
		return strings.Contains(log.String(), `level=ERROR msg="stack: setup of Redis unusable`) && strings.Contains(log.String(), "stack: use of Redis continues")
	})
	store.Checked() // the next failure is a new one only after the end of this check
	server.Do("ACL", "SETUSER", "weir", "-psetex")
	store.Age(10 * time.Second) // TestChecksPause tests that no check begins earlier
	until(t, "Err names the right again", func() bool {
		granted(t, store, "c")
		return errors.Is(store.Err(), quota.ErrUnusable)
	})
	if n := strings.Count(log.String(), `level=ERROR msg="stack: setup of Redis unusable`); n != 2 {
		t.Errorf("got %d lines that Redis cannot decide, want 2:\n%s", n, log)
	}
}

// TestCheckOutage: Redis that is down at start is no ErrUnusable. Once Redis is up, Err is nil.
func TestCheckOutage(t *testing.T) {
	server := redistest.Server(t)
	server.Kill()
	store, log := open(t, server.Addr(), stack.Options{Replicas: 1})
	until(t, "the log has the outage", func() bool { return strings.Contains(log.String(), "stack: outage of Redis began") })
	if err := store.Err(); err == nil || errors.Is(err, quota.ErrUnusable) {
		t.Errorf("got error %v, want one that is no ErrUnusable", err)
	}
	server.Restart(t)
	until(t, "Err is nil", func() bool { return store.Err() == nil })
}

// TestOutageLog: an outage is one line when it begins, which says what failed, what this means for
// the limits, and what to do, and one line when it ends. The first line is the same whether a check or
// a request finds the outage, by whichever store, because both may.
func TestOutageLog(t *testing.T) {
	server := redistest.Server(t)
	server.Kill()
	store, whole := open(t, server.Addr(), stack.Options{Replicas: 4})
	before := 0 // the length of the log when Redis was up the last time
	// A restart also loses the counts, which the next heartbeat finds.
	lines := func(log string) int { return strings.Count(log, "\n") - strings.Count(log, "counts in Redis lost") }
	for _, use := range []struct {
		finds string
		store quota.Store // nil if no request is the first
	}{{"a check", nil}, {"a request", store}, {"Undivided", store.Undivided()}, {"WithoutFallback", store.WithoutFallback()}} {
		take := func() {
			if use.store != nil {
				use.store.Take(t.Context(), weirtest.Once(algorithms.GCRA(9, time.Hour)))
			}
		}
		log := ""
		until(t, use.finds+" finds the outage", func() bool {
			take()
			log = whole.String()[before:]
			return strings.Contains(log, `msg="stack: outage of Redis began"`) && (use.store == nil || breakerOf(store).Stats().Open)
		})
		const effect = "counting in memory: each process enforces 1/4 of each limit; calls without a fallback fail"
		if n := lines(log); n != 1 || !strings.Contains(log, effect) || !strings.Contains(log, "advice=") {
			t.Errorf("%s: got %d lines, want one that says %q:\n%s", use.finds, n, effect, log)
		}
		server.Restart(t)
		until(t, "the log has the end", func() bool {
			take()
			log = whole.String()[before:]
			return strings.Contains(log, `level=INFO msg="stack: use of Redis continues" after=`) && !breakerOf(store).Stats().Open
		})
		if n := lines(log); n != 2 {
			t.Errorf("%s: got %d lines, want 2:\n%s", use.finds, n, log)
		}
		store.Checked()
		before = len(whole.String())
		server.Kill()
	}
}

// TestForeignValue: the line about a value that another program wrote says so, whatever the value is.
func TestForeignValue(t *testing.T) {
	server := redistest.Server(t)
	for _, write := range [][]string{{"SET", "weir:api:{.192.0.2.1}", "garbage"}, {"RPUSH", "weir:api:{.192.0.2.1}", "x"}} {
		server.Do("DEL", "weir:api:{.192.0.2.1}")
		if _, err := server.Do(write...); err != nil {
			t.Fatal(err)
		}
		store, log := open(t, server.Addr(), stack.Options{Replicas: 1})
		tr := weirtest.Once(algorithms.GCRA(9, time.Hour))
		if err := store.Take(t.Context(), tr); err != nil || !tr.FellBack() || !strings.Contains(log.String(), "give the program that wrote it another prefix") {
			t.Errorf("%s: got error %v, FellBack %v and the log\n%s", write, err, tr.FellBack(), log)
		}
	}
}

// TestReadOnly: a server that refuses writes answers calls that change nothing. Their success closes
// the breaker, but the log does not say that the outage is over, and Err says that it is not.
func TestReadOnly(t *testing.T) {
	server := redistest.Server(t)
	store, log := open(t, server.Addr(), stack.Options{Replicas: 1, Breaker: quota.BreakerOptions{Cooldown: time.Millisecond}})
	until(t, "Err is nil", func() bool { return store.Err() == nil })
	store.Checked()
	store.Age(10 * time.Second)
	server.Do("REPLICAOF", "127.0.0.1", "1")
	take := func() { store.Take(t.Context(), weirtest.Once(algorithms.GCRA(9, time.Hour))) }
	for range 2 {
		until(t, "the breaker is open", func() bool { take(); return breakerOf(store).Stats().Open })
		until(t, "a call that changes nothing closes the breaker", func() bool {
			if _, err := quota.Peek(t.Context(), store.WithoutFallback(), quota.Charge{Rule: "r", Limit: algorithms.GCRA(9, time.Hour)}); err != nil {
				return false
			}
			return !breakerOf(store).Stats().Open
		})
	}
	if got := log.String(); strings.Count(got, "stack: outage of Redis began") != 1 || strings.Contains(got, "continues") || !strings.Contains(got, "use the address of the master") {
		t.Errorf("while Redis refuses writes: got the log\n%s", got)
	}
	until(t, "Err names the cause", func() bool { err := store.Err(); return err != nil && strings.Contains(err.Error(), "READONLY") })
	server.Do("REPLICAOF", "NO", "ONE")
	until(t, "the log has the end", func() bool { return strings.Contains(log.String(), "stack: use of Redis continues") })
	if err := store.Err(); err != nil {
		t.Errorf("after the end: got %v", err)
	}
}

func breakerOf(s *stack.Store) (b *quota.BreakerStore) {
	for _, part := range s.Stores() {
		if of, ok := part.(*quota.BreakerStore); ok {
			b = of
		}
	}
	return b
}

// TestCheckEnds: the goroutine of a check ends with Close, with the client, and with success.
func TestCheckEnds(t *testing.T) {
	checks := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "stack.(*checker).run")
	}
	for name, end := range map[string]func(rdb redis.UniversalClient, store *stack.Store){
		"Close":  func(_ redis.UniversalClient, store *stack.Store) { store.Close() },
		"client": func(rdb redis.UniversalClient, _ *stack.Store) { rdb.Close() },
	} {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "127.0.0.1:1"))
		defer rdb.Close()
		store, _ := openClient(t, rdb, stack.Options{Replicas: 1})
		end(rdb, store)
		until(t, name+" ends the check", func() bool { return checks() == 0 })
		if n, err := granted(t, store, "k"); n != 100 || err != nil {
			t.Errorf("after %s: got %d units and error %v, want 100 from memory", name, n, err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	store, _ := open(t, redistest.Server(t).Addr(), stack.Options{Replicas: 1})
	until(t, "success ends the check", func() bool { return store.Err() == nil && checks() == 0 })
	if err := store.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTrackingRight: a user who may not have Redis report changes is logged, with what to do, and the
// store is usable.
func TestTrackingRight(t *testing.T) {
	for user, want := range map[string]int{"whole": 0, "limited": 1} {
		server := redistest.Server(t)
		server.Do("ACL", "SETUSER", "whole", "on", "nopass", "~*", "+@all")
		server.Do("ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all", "-client|tracking")
		o := redisstore.ClientOptions(5*time.Second, server.Addr())
		o.Username, o.Password = user, "any"
		rdb := redis.NewUniversalClient(o)
		defer rdb.Close()
		store, log := openClient(t, rdb, stack.Options{Replicas: 2})
		until(t, "Err is nil", func() bool { return store.Err() == nil })
		store.Checked()
		if got := log.String(); strings.Count(got, "right of the Redis user missing") != want || want > 0 && !strings.Contains(got, `fix="add +client|tracking to the ACL of the user"`) {
			t.Errorf("%s: got %q, want %d lines", user, got, want)
		}
	}
}

// TestEviction: a maxmemory-policy that evicts keys that are being limited is logged, if the server
// has a bound of its memory, and the user may know it.
func TestEviction(t *testing.T) {
	for _, c := range []struct {
		maxmemory, policy string
		user              string // "" is one with all rights
		want              int
	}{
		{"100mb", "allkeys-lru", "", 1}, {"100mb", "volatile-ttl", "", 1}, {"100mb", "volatile-lfu", "", 0},
		{"100mb", "noeviction", "", 0}, {"0", "allkeys-lru", "", 0}, {"100mb", "allkeys-lru", "limited", 0},
	} {
		server := redistest.Server(t)
		server.Do("CONFIG", "SET", "maxmemory", c.maxmemory, "maxmemory-policy", c.policy)
		server.Do("ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all", "-info")
		o := redisstore.ClientOptions(5*time.Second, server.Addr())
		if o.Username = c.user; c.user != "" {
			o.Password = "any"
		}
		rdb := redis.NewUniversalClient(o)
		defer rdb.Close()
		store, log := openClient(t, rdb, stack.Options{Replicas: 2})
		until(t, "Err is nil", func() bool { return store.Err() == nil })
		store.Checked()
		if got := strings.Count(log.String(), "maxmemory-policy "+c.policy); got != c.want || strings.Count(log.String(), "\n") != c.want {
			t.Errorf("%+v: got %q", c, log.String())
		}
	}
}
