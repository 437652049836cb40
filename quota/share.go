package quota

import (
	"context"
	"fmt"
	"sync"
)

// Share returns a store that has next decide under one replica's share of each limit: Quota
// and Burst divided by replicas and rounded down. If each replica has a store of its own,
// all replicas together then admit no more than the limit. Charges stay as they are:
// headers show the whole limit, and the Remaining of the share. If all requests of a client
// reach one replica, the client gets only the share of that replica.
//
// A share is at least 1. If Quota, or a Burst that is not 0, is below replicas, the
// replicas together can exceed the limit. For GCRA and the buckets, write a low Quota over
// a longer period: 1 per second is 60 per minute with the same Burst. If a share of Quota
// cannot be counted exactly, it is rounded down to tens, hundreds and so on. Costs are not
// divided: a cost above the share is refused with Never. Share panics if next is nil or
// replicas is below 1.
func Share(next Store, replicas int) *SharedStore {
	switch {
	case next == nil:
		panic("weir: Share: the store is nil")
	case replicas < 1:
		panic(fmt.Sprintf("weir: Share: there are %d replicas", replicas))
	}
	return &SharedStore{next, int64(replicas), sync.Pool{New: func() any { return new(Transaction) }}}
}

// A SharedStore is what Share returns.
type SharedStore struct {
	next     Store
	replicas int64
	pool     sync.Pool // of *Transaction, with the divided limits
}

// Take implements Store.
func (s *SharedStore) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil { // the share of an invalid limit may be valid
		return err
	}
	part := s.pool.Get().(*Transaction)
	part.SetQuestion(t)
	for i := range part.Charges {
		s.divide(&part.Charges[i].Limit)
	}
	err := s.next.Take(ctx, part)
	if err == nil {
		t.SetResult(&part.Result)
	}
	clear(part.Charges) // they hold keys
	s.pool.Put(part)
	return err
}

func (s *SharedStore) divide(l *Limit) {
	l.Quota = max(1, l.Quota/s.replicas)
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/s.replicas)
	}
	for d := int64(10); 0 < d && d <= l.Quota && l.Fault() != nil; d *= 10 {
		l.Quota -= l.Quota % d
	}
}
