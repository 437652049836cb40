package stack_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/stack"
)

// until returns once ok returns true, and fails the test after 30 s.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after 30 s: %s", what)
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
		return strings.Contains(log.String(), `level=ERROR msg="stack: check of Redis failed`) && strings.Contains(log.String(), "stack: check of Redis passed")
	})
	server.Do("ACL", "SETUSER", "weir", "-psetex")
	store.Age(10 * time.Second) // TestChecksPause tests that no check begins earlier
	until(t, "Err names the right again", func() bool {
		granted(t, store, "c")
		return errors.Is(store.Err(), quota.ErrUnusable)
	})
	if n := strings.Count(log.String(), `level=ERROR msg="stack: check of Redis failed`); n != 2 {
		t.Errorf("got %d lines that Redis cannot decide, want 2:\n%s", n, log)
	}
}

// TestCheckOutage: Redis that is down at start is no ErrUnusable. Once Redis is up, Err is nil.
func TestCheckOutage(t *testing.T) {
	server := redistest.Server(t)
	server.Kill()
	store, log := open(t, server.Addr(), stack.Options{Replicas: 1})
	until(t, "the log has the outage", func() bool { return strings.Contains(log.String(), "stack: check of Redis not answered yet") })
	if err := store.Err(); err == nil || errors.Is(err, quota.ErrUnusable) {
		t.Errorf("got error %v, want one that is no ErrUnusable", err)
	}
	server.Restart(t)
	until(t, "Err is nil", func() bool { return store.Err() == nil })
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
