package envoy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/quota"
)

const (
	// ceiling is the quota of the windows in which hits are counted.
	ceiling = quota.MaxTicks

	// maxHits is the largest number of hits that one descriptor counts. It exceeds every
	// limit, because requests_per_unit is a uint32.
	maxHits = 1 << 32
)

// count counts the hits of every ask that has a limit, even if other asks are over their limit.
// It returns the errors of the store, joined.
func (s *Service) count(ctx context.Context, asks []ask) error {
	var ts []*quota.Transaction
	for i := range asks {
		a := &asks[i]
		if a.limit == nil {
			continue
		}
		cost := int64(a.hits)
		if a.giveBack {
			cost = -cost
		}
		a.t.Charges = []quota.Charge{{Rule: "envoy", Key: string(a.key), Cost: cost, Limit: algorithms.FixedWindow(ceiling, periods[a.proto.Unit])}}
		ts = append(ts, &a.t)
	}
	if len(ts) == 1 {
		return s.store.Take(ctx, ts[0])
	}
	if b, ok := s.store.(quota.Batcher); ok && len(ts) > 0 {
		return errors.Join(b.TakeEach(ctx, ts)...)
	}
	// A store can send concurrent calls in one round trip.
	const workers = 32
	errs := make([]error, len(ts))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, len(ts)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(ts)); i = next.Add(1) - 1 {
				_, errs[i] = panics.Call("envoy: the store panicked", func() error { return s.store.Take(ctx, ts[i]) })
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// after returns the number of hits in the window, including the hits of this ask.
func (a *ask) after() uint64 {
	d := &a.t.Decisions[0]
	if !d.Allowed { // the counter is full
		return ceiling
	}
	return uint64(ceiling - d.Remaining)
}
