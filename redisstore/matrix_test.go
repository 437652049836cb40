package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

const matrixPassword = "a password"

// A trouble is a state of Redis in which it answers with an error instead of a decision.
// TestFaults tests failures of the network. TestSentinel, TestCluster and TestReshard test
// failures of several nodes.
type trouble struct {
	name       string
	begin, end func(m *matrix)
	sees       string // a part of the error and of the line in the log; "none" if Take returns no error
	forgets    bool   // the trouble deletes the units that were spent before
}

// A matrix is a server in trouble. admin is a connection that was made before the trouble.
type matrix struct {
	*testing.T
	server *redistest.Proc
	admin  *redis.Conn
	busy   sync.WaitGroup
}

func (m *matrix) do(args ...any) {
	m.Helper()
	if err := m.admin.Do(context.Background(), args...).Err(); err != nil {
		m.Fatalf("%v: %v", args, err)
	}
}

// other sends a command from another goroutine, because its answer takes long.
func (m *matrix) other(args ...any) {
	rdb := client(m, redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{m.server.Addr()}, Password: matrixPassword, ReadTimeout: time.Minute, MaxRetries: -1}))
	m.busy.Go(func() { rdb.Do(context.Background(), args...) })
}

var troubles = []trouble{
	{"out of memory", func(m *matrix) { m.do("CONFIG", "SET", "maxmemory", "1") },
		func(m *matrix) { m.do("CONFIG", "SET", "maxmemory", "0") }, "redisstore: Redis answers: OOM ", false},
	{"a replica", func(m *matrix) { m.do("REPLICAOF", "127.0.0.1", "1") },
		func(m *matrix) { m.do("REPLICAOF", "NO", "ONE") }, "redisstore: Redis answers: READONLY ", false},
	{"a replica without its master", func(m *matrix) {
		m.do("CONFIG", "SET", "replica-serve-stale-data", "no")
		m.do("REPLICAOF", "127.0.0.1", "1")
	}, func(m *matrix) { m.do("REPLICAOF", "NO", "ONE") }, "redisstore: Redis answers: MASTERDOWN ", false},
	{"loading", func(m *matrix) {
		m.do("DEBUG", "POPULATE", "10000")
		m.do("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
		m.do("CONFIG", "SET", "key-load-delay", "1000")
		m.other("DEBUG", "RELOAD")
	}, func(m *matrix) { m.do("CONFIG", "SET", "key-load-delay", "0") }, "redisstore: Redis answers: LOADING ", false},
	{"busy with a script", func(m *matrix) {
		m.do("CONFIG", "SET", "busy-reply-threshold", "1")
		m.other("EVAL", "while true do end", "0")
	}, func(m *matrix) { m.do("SCRIPT", "KILL") }, "redisstore: Redis answers: BUSY ", false},
	{"cannot save", func(m *matrix) {
		dir := m.admin.ConfigGet(context.Background(), "dir").Val()["dir"]
		if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
			m.Fatal(err)
		}
		m.do("CONFIG", "SET", "save", "3600 1")
		m.do("BGSAVE")
	}, func(m *matrix) { m.do("CONFIG", "SET", "save", "") }, "redisstore: Redis answers: MISCONF ", false},
	{"no permission", func(m *matrix) { m.do("ACL", "SETUSER", "default", "-evalsha", "-eval") },
		func(m *matrix) { m.do("ACL", "SETUSER", "default", "+@all") }, "redisstore: the default user lacks +evalsha: NOPERM ", false},
	{"a wrong password", func(m *matrix) {
		m.do("CONFIG", "SET", "requirepass", "another")
		m.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}, func(m *matrix) { m.do("CONFIG", "SET", "requirepass", matrixPassword) }, "redisstore: the user or the password is wrong, or the user is disabled: WRONGPASS ", false},
	{"too many clients", func(m *matrix) {
		m.do("CONFIG", "SET", "maxclients", "1")
		m.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}, func(m *matrix) { m.do("CONFIG", "SET", "maxclients", "1000") }, "", false}, // go-redis does not pass on what Redis says
	{"a value of another program", func(m *matrix) {
		m.do("DEL", "weir:r:{.k}")
		m.do("HSET", "weir:r:{.k}", "f", "v")
	}, func(m *matrix) { m.do("DEL", "weir:r:{.k}") }, "redisstore: Redis answers: WRONGTYPE ", true},
	{"scripts flushed", func(m *matrix) { m.do("SCRIPT", "FLUSH") }, func(*matrix) {}, "none", false},
}

// TestTroubles: during a trouble, Take returns an error with the answer of Redis, the log gets
// one line about it, and the fallback decides. After the trouble Redis still has its counts.
// Two troubles differ: scripts that are gone cause no error, and the answer of a Redis with too
// many clients is not in the error.
func TestTroubles(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t)
		})
	}
}

// test causes and ends the trouble. Meanwhile it calls a store without a fallback, and a stack
// of that store and a fallback.
func (c trouble) test(t *testing.T) {
	server := redistest.Server(t, "--enable-debug-command", "yes", "--dbfilename", "taken")
	admin := client(t, redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{server.Addr()}, MaxRetries: -1, ReadTimeout: 10 * time.Second})).(*redis.Client).Conn()
	t.Cleanup(func() { admin.Close() })
	m := &matrix{T: t, server: server, admin: admin}
	t.Cleanup(m.busy.Wait)
	m.do("CONFIG", "SET", "requirepass", matrixPassword)
	m.do("AUTH", matrixPassword)

	o := redisstore.ClientOptions(0, server.Addr())
	o.Password = matrixPassword
	store, err := redisstore.New(client(t, redis.NewUniversalClient(o)), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var log weirtest.Log
	logger := slog.New(slog.NewTextHandler(&log, nil))
	stack := quota.Fallback(quota.Breaker(store, quota.BreakerOptions{Logger: logger, Cooldown: 50 * time.Millisecond}),
		memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: logger})
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, 10*time.Minute).WithBurst(1_000_000), Cost: 1}
	tx := quota.Transaction{Charges: []quota.Charge{charge}}
	eventually(t, "connected", func() error { return store.Take(t.Context(), &tx) })
	eventually(t, "decided again", func() error { return store.Take(t.Context(), &tx) })
	before := tx.Decisions[0].Remaining

	c.begin(m)
	if c.sees == "none" {
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Errorf("got %v, want no error", err)
		}
		return
	}
	begin := time.Now()
	eventually(t, "in trouble", func() error {
		err := store.Take(t.Context(), &tx)
		if err == nil {
			before = tx.Decisions[0].Remaining
			return errors.New("decided")
		}
		if !strings.Contains(err.Error(), c.sees) {
			return fmt.Errorf("got %q, want %q in it", err, c.sees)
		}
		t.Logf("a client sees %q after %v", err, time.Since(begin).Round(time.Millisecond))
		return nil
	})
	for range 20 {
		if err := stack.Take(t.Context(), &tx); err != nil {
			t.Fatalf("with a fallback: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.end(m)
	m.busy.Wait()
	end := time.Now()
	eventually(t, "decided again", func() error { return store.Take(t.Context(), &tx) })
	t.Logf("decided again %v after the end", time.Since(end).Round(time.Millisecond))
	if after := tx.Decisions[0].Remaining; after >= before && !c.forgets {
		t.Errorf("got %d remaining, %d before: what was spent is lost", after, before)
	}
	c.checkLog(t, stack, &tx, &log)
}

// checkLog waits until the log says that the primary store decides again. The log must also
// have one earlier line about the trouble.
func (c trouble) checkLog(t *testing.T, stack quota.Store, tx *quota.Transaction, log *weirtest.Log) {
	t.Helper()
	eventually(t, "the fallback rests", func() error {
		if err := stack.Take(t.Context(), tx); err != nil {
			return err
		}
		if !strings.Contains(log.String(), "quota: primary store decides again") {
			return errors.New("not yet")
		}
		return nil
	})
	if got := strings.Count(log.String(), "quota: primary store failed") + strings.Count(log.String(), "quota: primary store unusable"); got != 1 || !strings.Contains(log.String(), c.sees) && !strings.Contains(log.String(), redisstore.ErrTimeout.Error()) {
		t.Errorf("got %d lines, want one that names %q:\n%s", got, c.sees, log.String())
	}
	t.Logf("the log says\n%s", log.String())
}
