package stack_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// ready answers a health check. A Redis that is down is no reason to stop the process, because the
// store then counts in memory. A Redis that cannot work as it is set up is one.
func ready(store *stack.Store) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := store.Err(); errors.Is(err, quota.ErrUnusable) {
			http.Error(w, "Redis: "+err.Error(), http.StatusServiceUnavailable)
		}
	}
}

// All four processes that use this Redis share one limit. While Redis is down, as in this example,
// each admits a quarter of it: 1 of 4.
func Example() {
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
	defer store.Close()
	limit := weir.Middleware(store, "search", weir.ByIP(), algorithms.GCRA(4, time.Hour))
	mux := http.NewServeMux()
	mux.Handle("/search", limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	mux.Handle("/readyz", ready(store))

	for _, path := range []string{"/search", "/search", "/readyz"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /search 200
	// /search 429
	// /readyz 200
}
