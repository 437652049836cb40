package quota

import (
	"context"
	"fmt"
	"sync"
)

// Share returns a store that has next decide under one replica's share of each limit: Quota
// and Burst divided by replicas and rounded down. If each replica has its own store,
// all replicas together then admit no more than the limit. Charges stay as they are:
// headers show the whole limit, and the Remaining of the share. If all requests of a client
// reach one replica, the client gets only the share of that replica.
//
// A share is at least 1: see Limit.Divide. If Quota, or a Burst that is not 0, is below
// replicas, the replicas together can exceed the limit. For GCRA and the buckets, write a low
// Quota over a longer period: 1 per second is 60 per minute with the same Burst. Costs are not
// divided: a cost above the share is refused with Never. Share panics if next is nil or
// replicas is below 1.
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

// ShareFunc returns a store that has next decide under other limits: change gets a copy of the
// charges of each valid transaction, and changes their limits. It is called by several
// goroutines at once, and must not keep the slice. The decisions are those of next, and the
// charges of the transaction stay as they are. ShareFunc panics if an argument is nil.
func ShareFunc(next Store, change func(charges []Charge)) *SharedStore {
	switch {
	case next == nil:
		panic("quota: ShareFunc: the store is nil")
	case change == nil:
		panic("quota: ShareFunc: change is nil")
	}
	return &SharedStore{next, change, sync.Pool{New: func() any { return new(Transaction) }}}
}

// A SharedStore is what Share and ShareFunc return.
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
