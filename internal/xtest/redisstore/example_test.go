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
	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// Two replicas of a server share one limit through Redis: together they admit as much as
// one replica alone would.
func Example_replicas() {
	server, err := miniredis.Run() // in production this is a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	server.Server().SetPreHook(minilua.Add)

	replica := func() http.Handler {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second}) // the default of 50 ms is short for miniredis
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

// If Take returns nil, there is a decision, which may be a refusal. After an error the caller
// does not know what was spent, and must choose whether to go ahead.
func Example_take() {
	server, err := miniredis.Run()
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Server().SetPreHook(minilua.Add)
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, server.Addr()))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	t := quota.Transaction{Charges: []quota.Charge{
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
