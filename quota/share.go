package quota

import (
	"context"
	"fmt"
	"sync"
)

// Share wraps a store, and divides the Quota and Burst of each limit by the number of replicas. If
// each replica has a separate store, all of them together then admit at most the limit. The
// caller's charges are not modified. Response headers therefore show the whole limit, whereas
// Remaining covers only this replica's share. A client whose requests all reach the same replica
// gets only one share.
//
// The results are rounded down, but are never below 1 (see Limit.Divide). If the Quota is smaller
// than the number of replicas, all replicas together can therefore exceed the limit; the same is
// true of a Burst, unless it is 0. For GCRA and the buckets, avoid this by expressing a small Quota
// over a longer Period with the same Burst, such as 60 per minute instead of 1 per second. Costs
// are not divided, so a charge whose Cost exceeds the share is always refused. Share panics if next
// is nil or replicas is below 1.
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

// ShareFunc is like Share, but uses a function to change the limits. For each valid transaction,
// ShareFunc passes a copy of the charges to this function, which may replace the limits in that
// copy. The function must be safe for concurrent use and must not retain the slice. The Result is
// the one that the wrapped store returns, and the caller's charges are not modified. ShareFunc
// panics if an argument is nil.
func ShareFunc(next Store, change func(charges []Charge)) *SharedStore {
	switch {
	case next == nil:
		panic("quota: ShareFunc: the store is nil")
	case change == nil:
		panic("quota: ShareFunc: change is nil")
	}
	return &SharedStore{next, change, sync.Pool{New: func() any { return new(Transaction) }}}
}

// A SharedStore is a Store that modifies the limits in each transaction before it calls the wrapped
// store: see Share and ShareFunc.
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
