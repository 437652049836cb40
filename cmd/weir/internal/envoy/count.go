package envoy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

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
	before := time.Now()
	for i := range asks {
		a := &asks[i]
		if a.limit == nil || s.over.recall(a, before) {
			continue
		}
		cost := int64(a.hits)
		if a.giveBack {
			cost = -cost
		}
		a.t.Charges = []quota.Charge{{Rule: "envoy", Key: string(a.key), Cost: cost, Limit: algorithms.FixedWindow(ceiling, periods[a.proto.Unit])}}
		ts = append(ts, &a.t)
	}
	if err := s.take(ctx, ts); err != nil {
		return err
	}
	for i := range asks {
		if a := &asks[i]; a.limit != nil && !a.remembered {
			a.decided()
			s.over.keep(a, before)
		}
	}
	return nil
}

// take makes the store decide every transaction. It returns the errors, joined.
func (s *Service) take(ctx context.Context, ts []*quota.Transaction) error {
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

// decided sets the fields of the ask that the decision of the store says.
func (a *ask) decided() {
	a.used = ceiling // if the counter is full
	if d := &a.t.Decisions[0]; d.Allowed {
		a.used = uint64(ceiling - d.Remaining)
	}
	period := int64(periods[a.proto.Unit] / time.Second)
	a.reset = period - a.t.At.Unix()%period
}
