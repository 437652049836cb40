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
// units than needed. Close refunds the units that were taken but not drawn:
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
	err    error          // returned by every Draw: a charge is invalid, or the Stream is closed
	lease  Transaction    // the newest lease, that is, the last transaction that took units
	sent   time.Time      // when the store was called for the lease
	unused int64          // how many units of the lease can still be drawn
	taken  int64          // how many units of the lease were drawn
	back   int64          // how many units were refunded since the lease was taken
	drawn  int64          // how many units were drawn in all
	spent  [][]drawnLease // for each lease, oldest first, one element for each charge
}

// A drawnLease records how many units of one lease were drawn under a charge and not refunded. It
// also identifies these units: see Charge.Spent and Charge.FellBack.
type drawnLease struct {
	at       int64
	fellBack bool
	units    int64
}

// NewStream returns a Stream. Each unit that is drawn from the Stream spends the Cost of every
// charge. For example, if Draw counts tokens, use a Cost of 1 for a limit on tokens, and use the
// price of a token as the Cost for a limit on money. If a charge has a Cost of 0 or less, every
// call to Draw returns an error.
func NewStream(store Store, charges ...Charge) *Stream {
	lease := Transaction{Charges: slices.Clone(charges), Mode: ModeAtMost}
	return &Stream{store: store, err: checkSpends(charges...), lease: lease}
}

// Draw draws up to n units and returns how many the caller may use. If drawn is less than n, no
// more units are available now. If no unit is available, drawn is 0 and err is a *LimitedError,
// whose RetryAfter is the time to wait before calling Draw again.
//
// If ctx is done, Draw draws nothing and returns ctx.Err(). Draw does not interrupt its call to the
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
	usable := s.usable(s.unused)
	drawn = min(n, usable)
	s.hand(drawn)
	s.unused = usable - drawn // units that are no longer usable never become usable again: see lease.Leaser
	if drawn < n {
		var more int64
		more, err = s.fetch(context.WithoutCancel(ctx), n-drawn)
		drawn += more
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
	if s.err == nil {
		s.err = errors.New("quota: the Stream is closed")
	}
	if s.unused == 0 {
		return nil
	}
	// Suppose that the units that are no longer usable are drawn ones, so that all other units can
	// be refunded.
	back := min(s.unused, s.usable(s.lease.Granted)-s.taken)
	if back <= 0 {
		return nil
	}
	s.unused = 0
	t := Transaction{Charges: make([]Charge, len(s.lease.Charges))}
	for i := range t.Charges {
		t.Charges[i] = s.lease.refunds(i)
		t.Charges[i].Cost *= back
	}
	return s.store.Take(context.WithoutCancel(ctx), &t)
}

// mostSpent is the number of leases that a Stream remembers for Refund.
const mostSpent = 64

// Refund refunds drawn units. Use Refund, for example, if the work has failed. For each charge of
// the Stream, units contains the number of units to refund; no more are refunded than were drawn.
// The units that were drawn last are refunded first. Units that have expired are not refunded. If
// the Stream has called the store more than 64 times, some of the oldest units are not refunded
// either. Refund calls the store once for each call that has spent some of the units. Refund may be
// called after Close, and works even if ctx is done.
func (s *Stream) Refund(ctx context.Context, units ...int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(units) != len(s.lease.Charges) {
		return fmt.Errorf("quota: Refund: got %d numbers of units; want %d, one for each charge",
			len(units), len(s.lease.Charges))
	}
	units = slices.Clone(units)
	for _, lease := range slices.Backward(s.spent) {
		t, back := Transaction{}, int64(0)
		for i := range lease {
			if n := min(units[i], lease[i].units); n > 0 {
				back = max(back, n)
				units[i] -= n
				lease[i].units -= n
				c := s.lease.Charges[i]
				c.Cost, c.Spent, c.FellBack = -c.Cost*n, lease[i].at, lease[i].fellBack
				t.Charges = append(t.Charges, c)
			}
		}
		if s.back += back; back > 0 {
			if err := s.store.Take(context.WithoutCancel(ctx), &t); err != nil {
				return err
			}
		}
	}
	return nil
}

// hand records that n units of the newest lease are drawn.
func (s *Stream) hand(n int64) {
	if s.taken += n; n > 0 {
		last := s.spent[len(s.spent)-1]
		for i := range last {
			last[i].units += n
		}
	}
}

// remember adds an element to spent for the newest lease. If there are too many leases, the units
// of the second-oldest lease count as spent at the same time as those of the oldest. Fewer units
// may then be refunded, but never more. If different stores have spent the units of these two
// leases, those of the second-oldest are dropped.
func (s *Stream) remember() {
	if len(s.spent) == mostSpent {
		for i := range s.spent[0] {
			if s.spent[0][i].fellBack == s.spent[1][i].fellBack {
				s.spent[0][i].units += s.spent[1][i].units
			}
		}
		s.spent = slices.Delete(s.spent, 1, 2)
	}
	lease := make([]drawnLease, len(s.lease.Charges))
	for i := range lease {
		lease[i] = drawnLease{at: s.lease.Decisions[i].At, fellBack: s.lease.Decisions[i].FellBack}
	}
	s.taken, s.back, s.spent = 0, 0, append(s.spent, lease)
}

// usable returns how many of n units of the lease may be used now.
func (s *Stream) usable(n int64) int64 {
	if n == 0 || !s.leases() {
		return n
	}
	since := time.Since(s.sent)/time.Microsecond + 1 // at most this many µs have passed in the store
	for i := range s.lease.Charges {
		c, d := &s.lease.Charges[i], s.lease.Decisions[i]
		// Other callers may have spent the refunded units, so these units are not usable.
		left := c.Limit.Algorithm.(leaser).Usable(&c.Limit, d, d.At, d.At+int64(since), (n+s.back)*c.Cost)
		n = max(0, min(n, left/c.Cost-s.back))
	}
	return n
}

// A leaser has one of the methods of lease.Leaser, which documents it.
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

// fetch takes n units, or as many as fit, and a few more in advance. It returns how many of the n
// units it has taken. The units of the previous lease must have been used or no longer be usable.
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
	n = min(n, s.lease.Granted) // these units are used now, so usable need not be called
	s.remember()
	s.hand(n)
	s.unused = s.lease.Granted - n
	return n, nil
}

// remaining returns an upper bound on the units that the store had left after the newest lease, or
// 0 if no lease was taken.
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
