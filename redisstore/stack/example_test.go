package stack_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// All processes that use this handler share one limit. While Redis is down, as in this
// example, each of the four processes admits a quarter of the limit.
func ExampleNew() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:1")) // there is no Redis at this address
	defer rdb.Close()
	store, err := stack.New(rdb, stack.Options{
		Replicas: 4,
		Logger:   slog.New(slog.DiscardHandler), // nil, the default, logs that Redis is down
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit := weir.Middleware(store, "api", weir.ByHeader("X-Api-Key"), algorithms.GCRA(100, time.Minute))
	http.Handle("/", limit(http.NotFoundHandler()))

	fmt.Println(store.Replicas())
	got, _, err := quota.AllowAtMost(context.Background(), store, quota.Charge{Rule: "api", Key: "alice", Limit: algorithms.GCRA(100, time.Minute), Cost: 100})
	fmt.Println(got, err)
	// Output:
	// 4
	// 25 <nil>
}

// This program refuses logins while Redis is down, and counts all other requests in memory.
// Overrides that are set while the program runs are kept in Redis.
func ExampleStore() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
	defer rdb.Close()
	store, err := stack.New(rdb, stack.Options{
		Redis:  redisstore.Options{Prefix: "shop:", Timeout: 20 * time.Millisecond},
		Memory: memstore.Options{MaxKeys: 100_000},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	live := overrides.NewLive(overrides.LiveOptions{Keeper: store.Redis()})
	api, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, ForKey: live.Of("api", nil),
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	login, err := weir.New(store.WithoutFallback(), weir.Options{OnError: weir.FailClosed, Rules: []weir.Rule{{
		Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, time.Minute)},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	http.Handle("/", api.Handler(http.NotFoundHandler()))
	http.Handle("/login", login.Handler(http.NotFoundHandler()))
}

// A tool checks a Redis server before a program uses it.
func ExampleStore_CheckSettings() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
	defer rdb.Close()
	store, err := stack.New(rdb, stack.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if err := store.Probe(context.Background()); err != nil {
		fmt.Println("not usable:", err)
		return
	}
	store.CheckSettings(context.Background(), slog.Default())
}
