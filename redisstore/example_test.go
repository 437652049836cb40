package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/redisstore"
)

// Two replicas of a server admit together what one would.
func ExampleNew() {
	server, err := miniredis.Run() // in production, a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	replica := func() http.Handler {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second}) // miniredis is slow
		if err != nil {
			panic(err)
		}
		limit := weir.Middleware(store, "api", weir.ByHeader("X-Api-Key"), algorithms.GCRA(3, time.Hour))
		return limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}
	a, b := replica(), replica()
	for _, h := range []http.Handler{a, b, a, b, a} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Api-Key", "k1")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 2
	// 200 1
	// 200 0
	// 429 0
	// 429 0
}

// A client that serves a limiter gives up in time and sends nothing twice.
func ExampleClientOptions() {
	options := redisstore.ClientOptions(20*time.Millisecond, "127.0.0.1:1")
	options.Password = "secret" // and whatever else the server asks for
	rdb := redis.NewUniversalClient(options)
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(store.Warnings()), "warnings")
	// Output:
	// 0 warnings
}

// Go-redis' own settings work too; what they cost is said.
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
	// DialTimeout is 5s: a connection that is never made holds a place in the pool as long
}

// A Take is a decision, a refusal among them, or an error: then nothing is
// known, and the caller says which way to fail.
func ExampleStore_Take() {
	server, err := miniredis.Run()
	if err != nil {
		fmt.Println(err)
		return
	}
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, server.Addr()))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	t := weir.Transaction{Charges: []weir.Charge{
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(20, time.Hour).Named("hour"), Cost: 1},
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(2, time.Minute).Named("minute"), Cost: 1},
	}}
	for range 3 {
		if err := store.Take(context.Background(), &t); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(t.Allowed(), t.Decisions[0].Remaining, t.Decisions[1].Remaining)
	}
	server.Close()
	err = store.Take(context.Background(), &t)
	fmt.Println(err != nil, errors.Is(err, redisstore.ErrTimeout))
	// Output:
	// true 19 1
	// true 18 0
	// false 18 0
	// true false
}
