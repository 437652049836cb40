package scene

import (
	"context"
	"log/slog"
	"syscall"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// An Outage simulates replicas that share a store, which can be stopped. Each replica has
// the same limit: 10 requests in any 10 s. It answers as a Limiter does, but without net/http.
type Outage struct {
	store    *stoppable
	replicas []quota.Store
	closed   bool // requests are refused if the store fails
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

var outageLimit = algorithms.SlidingLog(10, 10*time.Second)

// NewOutage returns n replicas. The policy says who decides while the store is down: "open",
// "closed" or "memory".
func NewOutage(n int, policy string) *Outage {
	o := &Outage{store: &stoppable{Store: memstore.New(memstore.Options{})}, closed: policy == "closed"}
	for range n {
		o.replicas = append(o.replicas, replica(o.store, n, policy))
	}
	return o
}

// replica returns the store of one of n replicas.
func replica(shared quota.Store, n int, policy string) quota.Store {
	if policy != "memory" {
		return shared
	}
	quiet := slog.New(slog.DiscardHandler) // the page shows what happens
	memory := quota.Share(memstore.New(memstore.Options{}), n)
	return quota.Fallback(quota.Breaker(shared, quota.BreakerOptions{Logger: quiet}), memory, quota.FallbackOptions{Logger: quiet})
}

// Stop stops the store, or starts it again.
func (o *Outage) Stop(down bool) { o.store.down = down }

// Request sends a request to replica i, counting from 0. It returns the status of the
// response, and whether the store decided.
func (o *Outage) Request(i int) (status int, asked bool) {
	before := o.store.n
	d, err := quota.Allow(context.Background(), o.replicas[i], quota.Charge{Rule: "api", Limit: outageLimit, Cost: 1})
	switch {
	case err != nil && o.closed:
		status = 503
	case err != nil || d.Allowed:
		status = 200
	default:
		status = 429
	}
	return status, o.store.n > before
}
