package lease_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// shared is the store that all processes use. In a program, this is a redisstore.
var shared = memstore.New(memstore.Options{})

// All requests share one key, so they would all wait for the same key in Redis. With leases most
// of them are decided in this process.
func Example() {
	leases := lease.New(quota.Coalesce(shared), lease.Options{})
	defer leases.Close(context.Background()) // returns the unused units
	limit := weir.Middleware(leases, "all", weir.Global(), algorithms.FixedWindow(1_000_000_000, 24*time.Hour))
	handler := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	for leases.Stats().Hits < 1000 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	fmt.Println("1000 requests were decided without Redis")
	// Output: 1000 requests were decided without Redis
}
