package quota

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/traced"
)

// FallbackOptions are the options for Fallback. The zero value is ready to use.
type FallbackOptions struct {
	// OnChange, if not nil, is called with primary's error after secondary has taken over, and with
	// a nil error after primary has worked for a second without an error. It runs without a lock in
	// the goroutine of the request that caused the change.
	OnChange func(active bool, err error)

	// Logger receives a warning with primary's error when secondary takes over; nil means
	// slog.Default(). After primary has worked for a second without an error, another line is
	// logged. ErrUnusable does not go away by itself, so it is logged as an error, and again every
	// minute.
	Logger *slog.Logger
}

// Fallback returns a store that calls the primary store first, and calls the secondary store if the
// primary fails. If both stores fail, Take returns both errors. In three cases the secondary store
// is not called: the context is done, the transaction is invalid, or the primary store returns
// ErrUsedUp and is not known to be down. Wrap the primary store in a Breaker, so that requests do
// not wait for a store that is down:
//
//	quota.Fallback(quota.Breaker(redis, quota.BreakerOptions{}), quota.Share(memory, replicas), quota.FallbackOptions{})
//
// Each store enforces the limits separately, and counts are never copied between the stores. When
// an outage begins or ends, the two stores together may therefore admit more than the limit in one
// period. If the secondary store keeps its counts in memory, wrap it in Share, so that all replicas
// together admit at most twice the limit.
//
// A failed call to the primary store may still have spent the units, for example if only the answer
// was lost. The charge may then count in both stores, so later fewer units may be admitted, but
// never more. Units are refunded only in the store that has spent them. Charge.FellBack identifies
// this store, and must be the same for all charges of a transaction. If the primary store fails to
// refund units, Take returns the error, so that Hold and weir.Limiter can release units of
// concurrency limits later. A refund without Spent, or a call with ModeForget, takes effect in the
// store that answers. If only the primary store's answer was lost, it takes effect in both stores.
// The secondary store keeps its counts between outages.
//
// Fallback panics if a store is nil, or if both are the same store. It logs a warning if primary is
// a store in memory, such as a memstore.Store. Such a store does not fail, so the two stores are
// probably in the wrong order.
func Fallback(primary, secondary Store, o FallbackOptions) *FallbackStore {
	switch {
	case safe.Nil(primary):
		panic("quota: Fallback: primary is nil")
	case safe.Nil(secondary):
		panic("quota: Fallback: secondary is nil")
	case safe.Equal(primary, secondary):
		panic("quota: Fallback: secondary is primary; want another store")
	}
	if isInstant(primary) {
		warnOrder(o.Logger, "Fallback has a primary in memory, which does not fail, so the secondary store is not used")
	}
	for _, s := range []Store{primary, secondary} {
		if _, ok := s.(*FallbackStore); ok {
			warnOrder(o.Logger, "Fallback is around another Fallback, so units of one store may be refunded to another")
		}
	}
	if _, ok := secondary.(watcher); ok {
		warnOrder(o.Logger, "Fallback has Hybrid around its second store, so it saves calls only in an outage")
	}
	if o.OnChange == nil {
		o.OnChange = func(bool, error) {}
	}
	return &FallbackStore{primary: primary, secondary: secondary, o: o, loud: sparse.Gate{Every: time.Minute}}
}

// A FallbackStore is a Store that uses a second Store when the first one fails: see Fallback.
type FallbackStore struct {
	primary, secondary Store
	o                  FallbackOptions

	began   atomic.Int64 // when the last outage began, in ns since 1970; negative after the outage; 0 before the first one
	last    atomic.Int64 // when secondary was last called; stored after began
	cause   atomic.Int64 // 1 + the cause of primary's last error, except errors of an open breaker; 0 if there was none
	loud    sparse.Gate  // limits how often an ErrUnusable is logged
	decided [storeCauses]atomic.Int64
	before  atomic.Int64 // how many transactions secondary had evaluated when the last outage was over
	worked  atomic.Bool  // primary has made at least one decision
}

// FallbackStats contains the statistics of a FallbackStore.
type FallbackStats struct {
	// Active reports whether secondary is in use, that is, whether primary has failed and has not
	// yet worked for a second without an error.
	Active bool

	// Since is the time at which the current outage began or, if Active is false, the last one.
	// Last is the time at which primary last failed. Both are zero if primary has never failed.
	// After a single failure, Last equals Since.
	Since, Last time.Time

	// Cause is the Cause of primary's last error, or "" if primary has never failed. It is never
	// "open": while a breaker around primary is open, Cause does not change.
	Cause string

	// Decided counts the transactions that secondary has evaluated, by the Cause of primary's
	// error. The map has an entry for every Cause that a store's error can have, even if the count
	// is 0.
	Decided map[string]int64
}

// Stats returns the statistics since f was created.
func (f *FallbackStore) Stats() FallbackStats {
	last, cause := f.last.Load(), f.cause.Load()
	began := f.began.Load() // loaded after last, so that last is not from a later outage
	s := FallbackStats{Active: began > 0, Decided: make(map[string]int64, storeCauses)}
	if since := max(began, -began); since != 0 {
		s.Since, s.Last = time.Unix(0, since), time.Unix(0, max(since, last))
	}
	if cause != 0 {
		s.Cause = causes[cause-1]
	}
	for i := range f.decided {
		s.Decided[causes[i]] = f.decided[i].Load()
	}
	return s
}

// total returns how many transactions secondary has evaluated.
func (f *FallbackStore) total() (n int64) {
	for i := range f.decided {
		n += f.decided[i].Load()
	}
	return n
}

// An outage is over once primary has worked for this time without an error.
const settled = time.Second

// degraded records that secondary is called because primary has returned err.
func (f *FallbackStore) degraded(ctx context.Context, cause int, err error) {
	now := time.Now().UnixNano()
	if cause != causeOpen {
		f.cause.Store(int64(cause) + 1)
	}
	over := f.began.Load()
	begins := over <= 0 && f.began.CompareAndSwap(over, now)
	f.last.Store(now)
	level, text, logs := slog.LevelWarn, "quota: primary store failed", begins
	if cause == causeUnusable {
		level, text = slog.LevelError, "quota: primary store unusable until its setup is changed"
		_, logs = f.loud.Pass()
	}
	if logs {
		loggerOr(f.o.Logger).Log(ctx, level, text,
			"err", err, "cause", causes[cause], "effect", "the secondary store is used")
	}
	if begins {
		f.o.OnChange(true, err)
	}
}

// recovered is called when primary has made a decision, and determines whether the outage is over.
// If so, it logs a line.
func (f *FallbackStore) recovered(ctx context.Context, began int64) {
	now, last := time.Now().UnixNano(), max(began, f.last.Load())
	if now-last < int64(settled) || !f.began.CompareAndSwap(began, -began) {
		return
	}
	f.loud.Reset() // so that the next outage is logged immediately
	n := f.total()
	n -= f.before.Swap(n)
	loggerOr(f.o.Logger).InfoContext(ctx, "quota: primary store works again",
		"after", period.Rounded(time.Duration(now-began)), "decided", n)
	f.o.OnChange(false, nil)
}

var errBothStores = errors.New("quota: Fallback: a transaction refunds units of both stores; want one for each")

// Take implements Store.
func (f *FallbackStore) Take(ctx context.Context, t *Transaction) error {
	refunds := len(t.Charges) > 0 && t.Charges[0].Cost < 0 && t.Refunds()
	if refunds && t.needsBothStores() {
		return errBothStores
	}
	if refunds && t.Charges[0].FellBack {
		err := f.secondary.Take(ctx, t)
		t.setFellBack(true)
		return err
	}
	err := f.primary.Take(ctx, t)
	if err == nil {
		t.setFellBack(false)
		if !f.worked.Load() {
			f.worked.Store(true)
		}
		if began := f.began.Load(); began > 0 {
			f.recovered(ctx, began)
		}
		return nil
	}
	switch fault := callerError(ctx, t); {
	case fault != nil:
		return fault
	case refunds && f.worked.Load(): // secondary has not spent the units
		return err
	case f.began.Load() <= 0 && errors.Is(err, ErrUsedUp): // primary works, but earlier calls of the request have used up the time
		return err
	}
	return f.fallBack(ctx, t, err)
}

// fallBack calls the secondary store after the primary store has failed.
func (f *FallbackStore) fallBack(ctx context.Context, t *Transaction, err error) error {
	cause := causeOf(err)
	f.degraded(ctx, cause, err)
	if call := traced.FromContext(ctx); call != nil {
		call.FellBack(causes[cause])
	}
	t.SetResult(&Result{}) // primary may have set some of the fields
	if second := f.secondary.Take(ctx, t); second != nil {
		return errors.Join(err, second)
	}
	t.setFellBack(true)
	f.decided[cause].Add(1)
	return nil
}

// needsBothStores reports whether some charges were spent in the secondary store and others were not.
func (t *Transaction) needsBothStores() bool {
	return slices.ContainsFunc(t.Charges, func(c Charge) bool { return c.FellBack != t.Charges[0].FellBack })
}

func (r *Result) setFellBack(fellBack bool) {
	for i := range r.Decisions {
		r.Decisions[i].FellBack = fellBack
	}
}
