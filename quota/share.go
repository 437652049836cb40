package quota

import (
	"context"
	"fmt"
	"sync"
)

// Share returns a store that divides each limit by replicas before it calls next. If each replica
// has a separate store, all replicas together then admit at most the limit. The caller's charges
// are not modified, so response headers show the whole limit, but only one share's Remaining. A
// client whose requests all reach the same replica gets only one share.
//
// Quota and Burst are rounded down, but are never below 1 (see Limit.Divide). If Quota, or a Burst
// other than 0, is smaller than replicas, all replicas together can therefore exceed the limit. To
// avoid this for GCRA and the buckets, express a small Quota over a longer Period with the same
// Burst, such as 60 per minute instead of 1 per second. Costs are not divided, so a charge whose
// Cost exceeds the share is always refused. Share panics if next is nil or replicas is below 1.
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

// ShareFunc is like Share, but calls the function change to determine the limits. For each valid
// transaction, ShareFunc calls change with a copy of the charges, in which change may replace the
// limits. The function must be safe for concurrent use and must not retain the slice. The Result
// comes from next, and the caller's charges are not modified. ShareFunc panics if an argument is
// nil.
func ShareFunc(next Store, change func(charges []Charge)) *SharedStore {
	switch {
	case next == nil:
		panic("quota: ShareFunc: the store is nil")
	case change == nil:
		panic("quota: ShareFunc: change is nil")
	}
	return &SharedStore{next, change, sync.Pool{New: func() any { return new(Transaction) }}}
}

// A SharedStore is a Store that modifies limits before it calls another Store: see Share and
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
