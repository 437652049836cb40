package quota

import (
	"context"
	"fmt"
	"sync"

	"github.com/seed83679106/weir/internal/safe"
)

// Share wraps a store, and divides the Quota and Burst of each limit, and the Headroom of each
// charge, by the number of replicas. If each replica has a separate store, all replicas together
// then admit at most the limit. The caller's charges are not modified, but Result.Replicas shows
// that the limits were divided. Remaining, and the limit in response headers, are those of the
// replica's share. A client whose requests all reach the same replica gets only one share.
//
// The results are rounded down, but are never below 1 (see Limit.Divide). If the Quota, or a Burst
// other than 0, is smaller than the number of replicas, all replicas together can therefore exceed
// the limit. For GCRA and the buckets, avoid this by expressing a small Quota over a longer Period
// with the same Burst, such as 60 per minute instead of 1 per second. A Headroom is rounded up, but
// never to the whole share, so that no class is refused forever unless the whole limit would refuse
// it forever. Costs are not divided, so a charge whose Cost exceeds the share is always refused.
// Share panics if next is nil or replicas is below 1.
func Share(next Store, replicas int) Store {
	switch {
	case safe.Nil(next):
		panic("quota: Share: the store is nil")
	case replicas < 1:
		panic(fmt.Sprintf("quota: Share: replicas is %d; want at least 1", replicas))
	}
	if _, ok := next.(*FallbackStore); ok {
		warnOrder(nil, "Share is around Fallback, so it divides the limits of the first store too")
	}
	return &shared{next, replicas, sync.Pool{New: func() any { return new(Transaction) }}}
}

// shared is the store that Share returns.
type shared struct {
	next     Store
	replicas int
	pool     sync.Pool // of *Transaction, which have the divided limits
}

// Take implements Store.
func (s *shared) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil { // dividing the limits may make an invalid transaction valid
		return err
	}
	part := s.pool.Get().(*Transaction)
	part.SetQuestion(t)
	for i := range part.Charges {
		c := &part.Charges[i]
		whole := c.Headroom > 0 && c.Headroom < c.Limit.Capacity()
		c.Limit.Divide(s.replicas)
		if c.Headroom = (c.Headroom + int64(s.replicas) - 1) / int64(s.replicas); whole {
			// If a small headroom were rounded up to the whole capacity, the class would be refused
			// forever.
			c.Headroom = min(c.Headroom, c.Limit.Capacity()-1)
		}
	}
	err := s.next.Take(ctx, part)
	if err == nil {
		t.SetResult(&part.Result)
		t.Replicas = s.replicas
	}
	clear(part.Charges) // releases the memory of keys
	s.pool.Put(part)
	return err
}
