package quota

import (
	"context"
	"fmt"
	"sync"
)

// Share returns a store that calls next with one replica's share of each limit: Quota and Burst
// divided by replicas, rounded down. If each replica has its own store, all replicas together
// admit at most the limit. The caller's charges are not changed, so headers show the whole limit,
// but the Remaining of the share. If all requests from a client reach the same replica, the client
// gets only the share of that replica.
//
// A share is at least 1: see Limit.Divide. If Quota, or a Burst that is not 0, is below replicas,
// the replicas together can exceed the limit. For GCRA and the buckets, express a low Quota over a
// longer period, such as 60 per minute instead of 1 per second, with the same Burst. Costs are not
// divided, so a cost above the share is refused with RetryAfter Never. Share panics if next is nil
// or replicas is below 1.
func Share(next Store, replicas int) *SharedStore {
	switch {
	case next == nil:
		panic("quota: Share: the store is nil")
	case replicas < 1:
		panic(fmt.Sprintf("quota: Share: replicas is %d; want at least 1", replicas))
	}
	return ShareFunc(next, func(charges []Charge) {
		for i := range charges {
			charges[i].Limit.Divide(replicas)
		}
	})
}

// ShareFunc returns a store that calls next with changed limits. For each valid transaction, it
// passes a copy of the charges to the function change, which replaces their limits. That function
// may be called from several goroutines at once, and must not keep the slice. The decisions are
// those of next, and the charges of the transaction itself are not changed. ShareFunc panics if an
// argument is nil.
func ShareFunc(next Store, change func(charges []Charge)) *SharedStore {
	switch {
	case next == nil:
		panic("quota: ShareFunc: the store is nil")
	case change == nil:
		panic("quota: ShareFunc: change is nil")
	}
	return &SharedStore{next, change, sync.Pool{New: func() any { return new(Transaction) }}}
}

// A SharedStore is a Store that changes limits before it calls the next Store: see Share and
// ShareFunc.
type SharedStore struct {
	next   Store
	change func([]Charge)
	pool   sync.Pool // of *Transaction, with the changed limits
}

// Take implements Store.
func (s *SharedStore) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil { // with other limits, an invalid transaction may be valid
		return err
	}
	part := s.pool.Get().(*Transaction)
	part.SetQuestion(t)
	s.change(part.Charges)
	err := s.next.Take(ctx, part)
	if err == nil {
		t.SetResult(&part.Result)
	}
	clear(part.Charges) // they hold keys
	s.pool.Put(part)
	return err
}
