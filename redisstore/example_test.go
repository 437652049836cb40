package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// If several replicas of a server use this handler, they share one limit.
func ExampleNew() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit := weir.Middleware(store, "api", weir.ByHeader("X-Api-Key"), algorithms.GCRA(3, time.Hour))
	http.Handle("/", limit(http.NotFoundHandler()))
}

// ClientOptions returns settings that suit a limiter, so the store has no warnings.
func ExampleClientOptions() {
	options := redisstore.ClientOptions(20*time.Millisecond, "127.0.0.1:1")
	options.Password = "secret" // and other settings that the server requires
	rdb := redis.NewUniversalClient(options)
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(store.Warnings()), "warnings, at", store.Addrs())
	// Output:
	// 0 warnings, at [127.0.0.1:1]
}

// A client with the defaults of go-redis works too. Warnings says which of its settings
// work against the store.
func ExampleStore_Warnings() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range store.Warnings() {
		fmt.Println(w)
	}
	// Output:
	// ContextTimeoutEnabled is off: commands go through a copy of the client that has the store's timeouts and none of the client's hooks
	// DialerRetries is 5: a refused connection is tried again before it is reported
	// DialTimeout is 5s: an attempt to connect that gets no answer holds a place in the pool for as long
}

// If Take returns nil, there is a decision, which may be a refusal. After an error the caller
// does not know what was spent, and must choose whether to go ahead.
func ExampleStore_Take() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, "localhost:1")) // there is no Redis at this address
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	t := quota.Transaction{Charges: []quota.Charge{
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(20, time.Hour).Named("hour"), Cost: 1},
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(2, time.Minute).Named("minute"), Cost: 1},
	}}
	if err := store.Take(context.Background(), &t); err != nil {
		fmt.Println("no decision; in time:", !errors.Is(err, redisstore.ErrTimeout))
		return
	}
	fmt.Println(t.Allowed(), t.Decisions[0].Remaining, t.Decisions[1].Remaining)
	// Output:
	// no decision; in time: true
}

// A program with a second store of its own lets that one decide alone while Redis is too slow, as package
// stack does: otherwise both would decide, each some requests.
func ExampleStore_Slow() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:1"))
	defer rdb.Close()
	first, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	second := memstore.New(memstore.Options{})
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(3, time.Hour), Cost: 1}}}
	err = first.Slow(context.Background(), &t)
	if err == nil {
		err = first.Take(context.Background(), &t)
	}
	fmt.Println(errors.Is(err, quota.ErrSlow))
	if err != nil {
		err = second.Take(context.Background(), &t)
	}
	fmt.Println(t.Allowed(), err)
	// Output:
	// false
	// true <nil>
}

// A request has two keys, which different servers of a cluster may have. Here, a store in memory
// decides on each of them, but none is charged unless both are allowed.
func ExampleStore_TakeParts() {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := memstore.New(memstore.Options{})
	for range 2 {
		t := quota.Transaction{Charges: []quota.Charge{
			{Rule: "users", Key: "ada", Limit: algorithms.GCRA(10, time.Hour), Cost: 1},
			{Rule: "addresses", Key: "192.0.2.1", Limit: algorithms.GCRA(1, time.Hour), Cost: 1},
		}}
		done, err := store.TakeParts(context.Background(), &t, memory.Take)
		fmt.Println(done, err, t.Allowed(), t.Decisions[0].Remaining)
	}
	// Output:
	// true <nil> true 9
	// true <nil> false 9
}
