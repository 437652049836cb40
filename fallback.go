package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Fallback asks secondary where primary errs, and returns both errors if that
// errs too. It does not where no store could have decided: if the caller has
// hung up, or the transaction is invalid, that error is returned. Around a
// Breaker a primary that is down costs no wait:
//
//	weir.Fallback(weir.Breaker(redis, weir.BreakerOptions{}), weir.Share(memory, replicas))
//
// Counts don't move between the stores. During an outage secondary alone decides,
// in each process if it is in memory: see Share. It begins with what it has seen
// in outages before, as primary goes on afterwards. Each keeps to its limits all
// the time, so that a span with one edge in it, or many, admits at most what both
// allow: with Share, twice the limit.
//
// A primary that errs may have spent all the same, if only its answer was lost.
// That charge counts in both stores then, or in primary alone where secondary
// refuses it: less is admitted later, never more. But costs below 0, as of Reset,
// go back to the store that answers, or to both: if their units were spent in the
// other, so many more are admitted. Forget, too, is told to the store that answers.
//
// A line is logged when secondary begins to decide, with the cause, and when primary has
// decided for a second: see FallbackStore.Logger. Fallback panics if a store is nil.
func Fallback(primary, secondary Store) *FallbackStore {
	if primary == nil || secondary == nil {
		panic("weir: Fallback: a store is nil")
	}
	return &FallbackStore{primary: primary, secondary: secondary}
}

// A FallbackStore is what Fallback returns.
type FallbackStore struct {
	// Logger gets a line when secondary begins to decide, with the error of primary,
	// and one when primary has decided for a second without an error; nil means
	// slog.Default(). Set it before the first Take.
	Logger *slog.Logger

	primary, secondary Store

	began atomic.Int64 // since when secondary decides, in ns since 1970; 0 if it does not
	last  atomic.Int64 // when it last did
	asked atomic.Int64 // how often it did since then
}

const settled = time.Second // without an error: the primary is well

// degraded notes that secondary is asked, because of err.
func (f *FallbackStore) degraded(ctx context.Context, err error) {
	now := time.Now().UnixNano()
	f.last.Store(now)
	f.asked.Add(1)
	if f.began.Load() == 0 && f.began.CompareAndSwap(0, now) {
		loggerOr(f.Logger).WarnContext(ctx, "weir: the primary store fails: the secondary decides", "err", err)
	}
}

// recovered notes that primary has decided, after it did not.
func (f *FallbackStore) recovered(ctx context.Context, began int64) {
	now := time.Now().UnixNano()
	if now-f.last.Load() < int64(settled) || !f.began.CompareAndSwap(began, 0) {
		return
	}
	loggerOr(f.Logger).InfoContext(ctx, "weir: the primary store decides again", "after", time.Duration(now-began), "decided", f.asked.Swap(0))
}

// Take implements Store.
func (f *FallbackStore) Take(ctx context.Context, t *Transaction) error {
	err := f.primary.Take(ctx, t)
	if err == nil {
		if began := f.began.Load(); began != 0 {
			f.recovered(ctx, began)
		}
		return nil
	}
	if fault := callerError(ctx, t); fault != nil {
		return fault
	}
	f.degraded(ctx, err)
	clear(t.Decisions) // it may have been at work
	t.At, t.Wait = time.Time{}, 0
	if second := f.secondary.Take(ctx, t); second != nil {
		return errors.Join(err, second)
	}
	return nil
}

// Share asks next for a replica's share of each limit: Quota and Burst divided by
// replicas and rounded down, so that the replicas, each with a store of its own,
// together admit no more than the limit. Charges stay as they are: headers show
// the whole limit, and Remaining of the share. A client whose requests all come to
// one replica has its share only.
//
// A share is at least 1. Where Quota is below replicas, or a Burst that is not 0,
// the sum is replicas and exceeds the limit. For the rate of GCRA and the buckets
// there is a way out: 1 per second is 60 per minute of the same Burst. A share that
// could not be counted exactly is rounded down to more zeros. Costs are not
// divided: one above the share is refused with Never. Share panics if next is nil
// or replicas below 1.
func Share(next Store, replicas int) Store {
	switch {
	case next == nil:
		panic("weir: Share: the store is nil")
	case replicas < 1:
		panic(fmt.Sprintf("weir: Share: there are %d replicas", replicas))
	}
	return &shared{next, int64(replicas), sync.Pool{New: func() any { return new(Transaction) }}}
}

type shared struct {
	next     Store
	replicas int64
	pool     sync.Pool // of *Transaction, for what next is asked
}

func (s *shared) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil { // a share may be valid where the limit is not
		return err
	}
	part := s.pool.Get().(*Transaction)
	whole, divided := t.Charges, append(part.Charges, t.Charges...)
	*part = *t
	part.Charges = divided
	for i := range divided {
		s.divide(&divided[i].Limit)
	}
	err := s.next.Take(ctx, part)
	*t = *part
	t.Charges = whole
	clear(divided) // they hold keys
	*part = Transaction{Charges: divided[:0]}
	s.pool.Put(part)
	return err
}

func (s *shared) divide(l *Limit) {
	l.Quota = max(1, l.Quota/s.replicas)
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/s.replicas)
	}
	for d := int64(10); 0 < d && d <= l.Quota && l.fault() != nil; d *= 10 {
		l.Quota -= l.Quota % d
	}
}
