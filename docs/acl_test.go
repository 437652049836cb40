package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// acl returns the access rules in docs/security.md: the rules of Weir's user in Redis, and
// the further rules that this user needs in a cluster.
func acl(t *testing.T) (user, cluster []string) {
	t.Helper()
	blocks := blocksOf(t, "redis-acl")
	if len(blocks) != 2 {
		t.Fatalf("got %d blocks of rules, want a user and what a cluster needs", len(blocks))
	}
	return strings.Fields(blocks[0].text)[1:], strings.Fields(blocks[1].text)[2:]
}

// as creates a user on each server, and returns a client that logs in as this user.
func as(t *testing.T, user []string, servers ...*redistest.Proc) redis.UniversalClient {
	t.Helper()
	var addrs []string
	for _, server := range servers {
		admin := redis.NewClient(redisstore.ClientOptions(0, server.Addr()).Simple())
		defer admin.Close()
		set := []any{"ACL", "SETUSER"}
		for _, word := range user {
			set = append(set, word)
		}
		if err := admin.Do(t.Context(), set...).Err(); err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, server.Addr())
	}
	o := redisstore.ClientOptions(time.Second, addrs...)
	o.Username, o.Password = user[0], strings.TrimPrefix(user[2], ">")
	rdb := redis.NewUniversalClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// refusals returns the commands and keys that a server has refused to its users.
func refusals(t *testing.T, server *redistest.Proc) any {
	t.Helper()
	log, err := server.Do("ACL", "LOG")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// TestACL: with the rights of docs/security.md Weir can do everything that it does in Redis:
// the conformance suite of stores, all algorithms, tracking, leases, regions, credit, the features of a
// Limiter, overrides and the check of package stack. Redis refuses no command. Keys of other
// programs are out of reach.
func TestACL(t *testing.T) {
	user, _ := acl(t)
	server := redistest.Server(t)
	rdb := as(t, user, server)
	n := 0
	open := func(t *testing.T) *redisstore.Store {
		n++
		store, err := redisstore.New(rdb, redisstore.Options{Prefix: fmt.Sprintf("weir:%d:", n), Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	storetest.Run(t, func(t *testing.T) weir.Store { return open(t) })
	t.Run("stack", func(t *testing.T) {
		store, err := stack.New(rdb, stack.Options{Replicas: 2, Redis: redisstore.Options{Timeout: 10 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := store.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		useLimiter(t, store)
		useLimiter(t, quota.Coalesce(store.Redis()))
	})
	t.Run("tracking", func(t *testing.T) {
		hybrid := quota.Hybrid(open(t), quota.HybridOptions{})
		for begin := time.Now(); hybrid.Stats().Watched == 0; time.Sleep(time.Millisecond) {
			if _, err := quota.Allow(t.Context(), hybrid, quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}); err != nil {
				t.Fatal(err)
			}
			if time.Since(begin) > time.Minute {
				t.Fatal("no refusal is watched")
			}
		}
	})
	t.Run("lease", func(t *testing.T) {
		leases := lease.New(quota.Coalesce(open(t)), lease.Options{})
		useLimiter(t, leases)
		for range 200 {
			if _, err := quota.Allow(t.Context(), leases, quota.Charge{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(100_000, time.Hour), Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := leases.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("regions", func(t *testing.T) {
		region := regions.New(open(t), open(t), regions.Options{Budget: "b", Region: "a", Regions: 2, Every: 50 * time.Millisecond})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		go region.Run(ctx)
		for region.Part() < 0.4 { // it has claimed more than a tenth of its half
			if ctx.Err() != nil {
				t.Fatal("the region claims no part")
			}
			useLimiter(t, region)
		}
	})
	t.Run("credit", func(t *testing.T) {
		store := credit.New(open(t), credit.Options{Rules: []string{"api"}})
		for _, err := range []error{
			credit.Grant(t.Context(), store, "api", "192.0.2.1", 100, time.Hour), credit.Revoke(t.Context(), store, "api", "192.0.2.2"),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		useLimiter(t, store)
	})
	t.Run("overrides", func(t *testing.T) { useOverrides(t, open(t)) })
	if log := refusals(t, server); fmt.Sprint(log) != "[]" {
		t.Errorf("Redis has refused: %v", log)
	}
	if err := rdb.Get(t.Context(), "other:key").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("got %v for a key of another program, want NOPERM", err)
	}
}

// useLimiter sends requests through a Limiter that uses most of its features, and resets a key.
func useLimiter(t *testing.T, store weir.Store) {
	t.Helper()
	limiter := weirtest.New(t, store, weir.Options{
		OnError: func(_ *http.Request, err error) error { t.Error(err); return err },
		Rules: []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.LeakyBucket(5, 1, time.Hour), algorithms.Calendar(20, algorithms.Day, nil), algorithms.InFlight(3, time.Minute)},
				Cost: func(*http.Request) int64 { return 2 }, Settle: func(weir.Outcome) int64 { return 1 }},
			{Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(3, time.Hour)},
				Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Minute), Duration: time.Minute}},
		},
	})
	h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 10 {
		weirtest.Do(h, weirtest.Ask("/", "192.0.2.1:1"))
	}
	charge := quota.Charge{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(5, time.Minute), Cost: 1}
	if r, err := quota.Reserve(t.Context(), store, time.Hour, charge); err != nil {
		t.Error(err)
	} else if err := r.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := quota.Peek(t.Context(), store, charge); err != nil {
		t.Error(err)
	}
	if _, _, err := quota.AllowAtMost(t.Context(), store, charge); err != nil {
		t.Error(err)
	}
}

// useOverrides sets, replaces and removes overrides, bans a network, and fills the table.
func useOverrides(t *testing.T, keeper overrides.Keeper) {
	t.Helper()
	live := overrides.NewLive(overrides.LiveOptions{Keeper: keeper})
	if err := live.Refresh(t.Context()); err != nil || !live.Ready() {
		t.Fatalf("got error %v, Ready %v", err, live.Ready())
	}
	set := func(key string, d time.Duration) error {
		return live.Set(t.Context(), "api", overrides.Entry{Key: key, Denied: true}, d, "")
	}
	for _, err := range []error{set("mallory", time.Minute), set("mallory", 0), set("192.0.2.0/24", time.Minute), set("ended", time.Millisecond)} {
		if err != nil {
			t.Error(err)
		}
	}
	for range 2 { // the second finds the table full
		if _, err := keeper.SaveOverride(t.Context(), "api\x00more", `{"denied":true}`, 0, 1); err != nil {
			t.Error(err)
		}
	}
	if found, err := live.Remove(t.Context(), "api", overrides.Entry{Key: "mallory"}); !found || err != nil {
		t.Errorf("Remove: %v, %v", found, err)
	}
	other := overrides.NewLive(overrides.LiveOptions{Keeper: keeper})
	if err := other.Refresh(t.Context()); err != nil || len(other.All()) == 0 {
		t.Errorf("another process: got %d overrides, %v", len(other.All()), err)
	}
}

// TestACLCommands: the user of docs/security.md may run every command that a script in a file
// of redisstore calls, also in branches that TestACL does not reach, and probe.lua calls each of
// these commands.
func TestACLCommands(t *testing.T) {
	user, _ := acl(t)
	commands := regexp.MustCompile(`call\('([A-Z]+)'`)
	probe, err := os.ReadFile(filepath.Join(root, "redisstore", "probe.lua"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"redisstore/*.lua", "redisstore/overrides.go", "algorithms/*.lua"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range commands.FindAllStringSubmatch(string(text), -1) {
				if right := "+" + strings.ToLower(m[1]); !slices.Contains(user, right) {
					t.Errorf("%s calls %s, but the user lacks %s", filepath.Base(file), m[1], right)
				}
				if !strings.Contains(string(probe), "call('"+m[1]+"'") {
					t.Errorf("%s calls %s, but probe.lua does not", filepath.Base(file), m[1])
				}
			}
		}
	}
}

// TestACLCluster: with the rights for a cluster in docs/security.md, a store can charge
// keys on all nodes, one key alone and several together, and do the rest of TestACL. No node
// refuses a command.
func TestACLCluster(t *testing.T) {
	rounds.Slow(t, "a cluster takes seconds to begin")
	user, cluster := acl(t)
	nodes := redistest.Cluster(t, 3, 0).Nodes
	rdb := as(t, append(user, cluster...), nodes...)
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		tx := quota.Transaction{Charges: []quota.Charge{
			{Rule: "r", Key: fmt.Sprint(i), Limit: algorithms.GCRA(10, time.Hour), Cost: 1},
			{Rule: "r", Key: fmt.Sprint(-i), Limit: algorithms.SlidingLog(10, time.Hour), Cost: 1},
		}}
		if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
			t.Fatalf("keys %d and %d: got %v, %+v", i, -i, err, tx.Decisions)
		}
	}
	production, err := stack.New(rdb, stack.Options{Replicas: 1, Redis: redisstore.Options{Timeout: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer production.Close()
	if err := production.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	useLimiter(t, production)
	useOverrides(t, store)
	for _, node := range nodes {
		if log := refusals(t, node); fmt.Sprint(log) != "[]" {
			t.Errorf("%v has refused: %v", node, log)
		}
	}
}
