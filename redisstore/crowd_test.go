package redisstore_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestCrowd: if more connections have requests than the processor can serve, what is not decided
// is refused, and does not pass without a decision. On a busy machine Redis itself may stop for
// longer than the Timeout again and again, and then requests pass as in an outage: up to a sixth of
// them beside twelve busy processes. If the lateness of this process counts as one, nearly all pass.
// How many are decided depends on the processor: _bench/load
// measures it, and TestSpike and TestManyProcesses prove it by a clock of their own.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of goroutines")
	}
	server := redistest.Server(t)
	store, err := redisstore.New(client(t, redis.NewUniversalClient(redisstore.ClientOptions(0, server.Addr()))), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limit := algorithms.GCRA(1_000_000, time.Second)
	eventually(t, "connected", func() error {
		return store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{{Rule: "crowd", Key: "k", Limit: limit, Cost: 1}}})
	})
	const connections = 2000
	var decided, refused, passed atomic.Int64
	path := func(r *http.Request) (string, bool) { return r.URL.Path, true }
	front := httptest.NewServer(weir.Middleware(store, "crowd", path, limit)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if weir.FromContext(r.Context()) == nil {
			passed.Add(1)
		} else {
			decided.Add(1)
		}
	})))
	defer front.Close()
	browser := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer browser.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for range 10 {
				res, err := browser.Get(fmt.Sprintf("%s/%d", front.URL, i%100))
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				if res.StatusCode == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d decided, %d refused, %d passed", decided.Load(), refused.Load(), passed.Load())
	if decided.Load() < connections/4 || passed.Load() > 10*connections/2 {
		t.Errorf("got %d decided, %d refused, %d passed; want some decided and hardly any passed", decided.Load(), refused.Load(), passed.Load())
	}
}
