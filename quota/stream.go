package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A Stream spends units for work whose cost is not known in advance, such as a language model's
// answer. Call Draw whenever the work needs more units, and stop the work when Draw returns fewer
// units than it needs. Close refunds the units that were taken but not drawn:
//
//	stream := quota.NewStream(store, charge)
//	defer stream.Close(ctx)
//	for token := range tokens {
//		if n, err := stream.Draw(ctx, 1); n == 0 {
//			return err
//		}
//		send(token)
//	}
//
// All Streams for the same key, in all processes that share the store, together draw no more than
// the key's limits allow. To save calls to the store, a Stream takes units in advance, but never
// more than it has drawn so far, and never more than an eighth of the remaining units. If the
// process dies, units that were taken but not drawn still count as spent until they expire. If the
// algorithm of a limit is not a lease.Leaser (SlidingLog, for example, is not one), a Stream takes
// nothing in advance.
//
// A Stream is safe for concurrent use. While one call to Draw is waiting for the store, other calls
// to Draw block.
type Stream struct {
	store Store

	mu     sync.Mutex
	err    error       // of every Draw: a charge is wrong, or the Stream is closed
	lease  Transaction // the newest one
	sent   time.Time   // when the store was asked for it
	unused int64       // how many of its units are left
	drawn  int64       // in all
}

// NewStream returns a Stream. Drawing one unit from it spends the Cost of every charge. For
// example, if Draw counts tokens, use a Cost of 1 for a limit on tokens, and use the price of a
// token as the Cost for a limit on money. If a charge has a Cost of 0 or less, every call to Draw
// returns an error.
func NewStream(store Store, charges ...Charge) *Stream {
	return &Stream{store: store, err: spends(charges...), lease: Transaction{Charges: slices.Clone(charges), Mode: ModeAtMost}}
}

// Draw draws up to n units and returns how many the caller may use. If drawn is less than n, no
// more units are available now. If no unit is available, drawn is 0 and err is a *LimitedError,
// whose RetryAfter says how long to wait before calling Draw again.
//
// If ctx is done, Draw draws nothing and returns ctx.Err(). It does not interrupt its call to the
// store, because only the store's answer shows how many units the Stream has obtained. Errors from
// the store are returned unchanged. After such an error, units may have been spent. The error is
// nil if drawn is positive or n is 0. A negative n is an error.
func (s *Stream) Draw(ctx context.Context, n int64) (drawn int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return 0, s.err
	case n < 0:
		return 0, fmt.Errorf("quota: Draw: n is %d; want at least 0", n)
	case ctx.Err() != nil:
		return 0, ctx.Err()
	}
	if drawn = min(n, s.usable(s.unused)); drawn < n {
		var more int64
		more, err = s.fetch(context.WithoutCancel(ctx), n-drawn)
		drawn += more
	} else {
		s.unused -= n
	}
	s.drawn = min(s.drawn, math.MaxInt64-drawn) + drawn
	if drawn > 0 {
		err = nil
	}
	return drawn, err
}

// Close refunds unused units that have not expired, even if ctx is done. If Close returns an error,
// these units may still count as spent until they expire. After Close, Draw returns an error. A
// second call to Close does nothing.
func (s *Stream) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	used, back := s.lease.Granted-s.unused, s.unused
	if s.err == nil {
		s.err = errors.New("quota: the Stream is closed")
	}
	if s.unused == 0 {
		return nil
	}
	// If the used units were used a moment ago, what has drained in the meantime was theirs.
	if back = min(back, s.usable(s.lease.Granted)-used); back <= 0 {
		return nil
	}
	s.unused = 0
	t := Transaction{Charges: slices.Clone(s.lease.Charges)}
	for i := range t.Charges {
		c := &t.Charges[i]
		c.Cost, c.Spent = -c.Cost*back, s.lease.Decisions[i].At
	}
	return s.store.Take(context.WithoutCancel(ctx), &t)
}

// usable returns how many of n units of the lease may be used now.
func (s *Stream) usable(n int64) int64 {
	if n == 0 || !s.leases() {
		return n
	}
	since := time.Since(s.sent)/time.Microsecond + 1 // at most so many µs have passed in the store
	for i := range s.lease.Charges {
		c, d := &s.lease.Charges[i], s.lease.Decisions[i]
		n = min(n, c.Limit.Algorithm.(leaser).Usable(&c.Limit, d, d.At, d.At+int64(since), n*c.Cost)/c.Cost)
	}
	return n
}

// A leaser is a lease.Leaser, where the comments are.
type leaser interface {
	Usable(l *Limit, d Decision, at, now, n int64) int64
}

// leases reports whether units may be taken in advance.
func (s *Stream) leases() bool {
	for i := range s.lease.Charges {
		if _, ok := s.lease.Charges[i].Limit.Algorithm.(leaser); !ok {
			return false
		}
	}
	return true
}

// fetch takes n units, or as many as fit, and a few in advance, and returns how many of the n it
// has got. What is left of the last lease has been used, or is no longer usable.
func (s *Stream) fetch(ctx context.Context, n int64) (int64, error) {
	s.unused, s.lease.Most = 0, n
	if ahead := min(s.drawn, s.remaining()/8, math.MaxInt64-n); ahead > 0 && s.leases() {
		s.lease.Most += ahead
	}
	s.sent = time.Now()
	if err := s.store.Take(ctx, &s.lease); err != nil {
		return 0, err
	}
	if s.lease.Granted == 0 {
		return 0, &LimitedError{Transaction: &Transaction{Charges: s.lease.Charges, Mode: ModeAtMost, Most: n,
			Result: Result{Decisions: slices.Clone(s.lease.Decisions), At: s.lease.At}}}
	}
	n = min(n, s.lease.Granted) // used now, whatever the clock says
	s.unused = s.lease.Granted - n
	return n, nil
}

// remaining returns how many more units the store had after the newest lease, at most; 0 if
// unknown.
func (s *Stream) remaining() int64 {
	if len(s.lease.Decisions) == 0 {
		return 0
	}
	least := int64(math.MaxInt64)
	for i := range s.lease.Decisions {
		least = min(least, s.lease.Decisions[i].Remaining/s.lease.Charges[i].Cost)
	}
	return least
}
