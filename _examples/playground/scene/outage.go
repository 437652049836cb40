package scene

import (
	"context"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// An Outage simulates replicas that share a store, which can be stopped. Each replica has a
// Limiter for the same limit: 10 requests in any 10 s.
type Outage struct {
	store    *stoppable
	replicas []http.Handler
}

// A stoppable store refuses connections while it is down.
type stoppable struct {
	quota.Store
	down bool
	n    int // calls that it has answered
}

func (s *stoppable) Take(ctx context.Context, t *quota.Transaction) error {
	if s.down {
		return syscall.ECONNREFUSED
	}
	s.n++
	return s.Store.Take(ctx, t)
}

// NewOutage returns n replicas. The policy says who decides while the store is down: "open",
// "closed" or "memory".
func NewOutage(n int, policy string) *Outage {
	o := &Outage{store: &stoppable{Store: memstore.New(memstore.Options{})}}
	quiet := slog.New(slog.DiscardHandler) // the page shows what happens
	for range n {
		options := weir.Options{
			Logger: quiet,
			Rules:  []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.SlidingLog(10, 10*time.Second)}}},
		}
		var store quota.Store = o.store
		switch policy {
		case "closed":
			options.OnError = weir.FailClosed
		case "memory":
			memory := quota.Share(memstore.New(memstore.Options{}), n)
			store = quota.Fallback(quota.Breaker(store, quota.BreakerOptions{Logger: quiet}), memory, quota.FallbackOptions{Logger: quiet})
		}
		limiter, err := weir.New(store, options)
		if err != nil {
			panic(err) // a mistake in the lines above
		}
		o.replicas = append(o.replicas, limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	return o
}

// Stop stops the store, or starts it again.
func (o *Outage) Stop(down bool) { o.store.down = down }

// Request sends a request to replica i, counting from 0. It returns the status of the
// response, and whether the store decided.
func (o *Outage) Request(i int) (status int, asked bool) {
	before, r := o.store.n, recorder{header: http.Header{}, status: http.StatusOK}
	request, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	o.replicas[i].ServeHTTP(&r, request)
	return r.status, o.store.n > before
}
