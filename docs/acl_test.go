package docs_test

import (
	"fmt"
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
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/storetest"
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

// TestACL: with the rights of docs/security.md the conformance suite of stores passes, and
// keys of other programs are out of reach.
func TestACL(t *testing.T) {
	user, _ := acl(t)
	server := redistest.Server(t)
	rdb := as(t, user, server)
	if err := rdb.Get(t.Context(), "other:key").Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("got %v for a key of another program, want NOPERM", err)
	}
	n := 0
	storetest.Run(t, func(t *testing.T) weir.Store {
		n++
		store, err := redisstore.New(rdb, redisstore.Options{Prefix: fmt.Sprintf("weir:%d:", n), Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return store
	})
}

// TestACLCommands: the user of docs/security.md may run every command that a script of
// redisstore calls.
func TestACLCommands(t *testing.T) {
	user, _ := acl(t)
	commands := regexp.MustCompile(`call\('([A-Z]+)'`)
	for _, dir := range []string{"redisstore", "algorithms"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.lua"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files, %v", dir, len(files), err)
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
			}
		}
	}
}

// TestACLCluster: with the rights for a cluster in docs/security.md, a store can charge
// keys on all nodes, one key alone and several together.
func TestACLCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster takes seconds to begin")
	}
	user, cluster := acl(t)
	rdb := as(t, append(user, cluster...), redistest.Cluster(t, 3, 0).Nodes...)
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		tx := weir.Transaction{Charges: []weir.Charge{
			{Rule: "r", Key: fmt.Sprint(i), Limit: algorithms.GCRA(10, time.Hour), Cost: 1},
			{Rule: "r", Key: fmt.Sprint(-i), Limit: algorithms.SlidingLog(10, time.Hour), Cost: 1},
		}}
		if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
			t.Fatalf("keys %d and %d: got %v, %+v", i, -i, err, tx.Decisions)
		}
	}
}
