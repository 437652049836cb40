package redisstore_test

import (
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
)

// newLimiter returns a limiter of one rule, whose counts are in Redis.
func newLimiter(store quota.Store, rule string, onError func(*http.Request, error) error) *weir.Limiter {
	l, err := weir.New(store, weir.Options{
		Rules:   []weir.Rule{{Name: rule, Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, time.Minute)}}},
		OnError: onError,
		Logger:  slog.New(slog.DiscardHandler), // nil, the default, logs that Redis is down
	})
	if err != nil {
		panic(err)
	}
	return l
}

// All processes that use this Redis share the limits. While Redis is down, as in this example,
// requests are allowed by default, and FailClosed refuses them. Package stack counts them in memory.
func Example() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, "localhost:1")) // there is no Redis at this address
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/search", newLimiter(store, "search", nil).Handler(served))
	mux.Handle("/login", newLimiter(store, "login", weir.FailClosed).Handler(served))

	for _, path := range []string{"/search", "/login"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /search 200
	// /login 503
}
