package quota

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/traced"
)

// FallbackOptions are the options of Fallback. The zero FallbackOptions are ready to use.
type FallbackOptions struct {
	// OnChange is called after secondary has begun to decide, with the error of primary, and
	// after primary has decided for a second without an error, with nil. It may be nil.
	// OnChange runs under no lock, in the goroutine of the request that made the change.
	OnChange func(active bool, err error)

	// Logger gets a warning when secondary begins to decide, with the error of primary,
	// and a line when primary has decided for a second without an error; nil means
	// slog.Default(). If only one call of primary has failed, there is no second line. An
	// ErrUnusable does not end by itself, so it is logged as an error, and again every
	// minute.
	Logger *slog.Logger
}

// Fallback returns a store that asks secondary if primary fails, and returns both errors if
// both fail. If the context has ended or the transaction is invalid, secondary is not
// asked, and the error is the error of the context or of Validate. With a Breaker around
// primary, requests do not wait while primary is down:
//
//	quota.Fallback(quota.Breaker(redis, quota.BreakerOptions{}), quota.Share(memory, replicas), quota.FallbackOptions{})
//
// Counts do not move between the stores. During an outage only secondary decides, and
// continues with its counts of earlier outages. If secondary is in memory, each process
// counts for itself: see Share. After the outage primary continues with its own counts.
// Each store keeps the limits all the time, so a period in which an outage begins or ends
// admits at most what the two stores allow together: with Share, twice the limit.
//
// A primary that fails may have spent the units, if only its answer was lost. The charge
// then counts in both stores, or in primary alone if secondary refuses it: less is admitted
// later, never more. Negative costs, such as the costs of Reset, go to the store that
// answers, or to both if only the answer of primary was lost. If the units had been spent
// in the other store, that number of units may be admitted beyond the limit. ModeForget also
// goes to the store that answers.
//
// A line is logged when secondary begins to decide, with the Cause, and another when primary
// has decided for a second without an error: see FallbackOptions. FallbackStore.Stats
// counts what secondary decides. Fallback panics if a store is nil, or if both are the same
// store.
func Fallback(primary, secondary Store, o FallbackOptions) *FallbackStore {
	switch {
	case primary == nil:
		panic("quota: Fallback: primary is nil")
	case secondary == nil:
		panic("quota: Fallback: secondary is nil")
	case compare.Equal(primary, secondary):
		panic("quota: Fallback: secondary is primary; want another store")
	}
	if o.OnChange == nil {
		o.OnChange = func(bool, error) {}
	}
	return &FallbackStore{primary: primary, secondary: secondary, o: o, loud: sparse.Gate{Every: time.Minute}}
}

// A FallbackStore is what Fallback returns.
type FallbackStore struct {
	primary, secondary Store
	o                  FallbackOptions

	began   atomic.Int64 // when secondary began to decide, in ns since 1970; 0 if primary decides
	last    atomic.Int64 // when secondary was last asked
	loud    sparse.Gate  // of the lines of an ErrUnusable
	decided [storeCauses]atomic.Int64
	before  atomic.Int64 // how much secondary had decided when the last outage was over
}

// FallbackStats are what a FallbackStore has counted.
type FallbackStats struct {
	// Active says that secondary decides now: primary has failed, and has not decided for
	// a second without an error since.
	Active bool

	// Decided is how many transactions secondary has decided, by the Cause of the error of
	// primary. It has every cause that a store can have, also those that have not occurred.
	Decided map[string]int64
}

// Stats returns what the store has counted since Fallback returned it.
func (f *FallbackStore) Stats() FallbackStats {
	s := FallbackStats{f.began.Load() != 0, make(map[string]int64, storeCauses)}
	for i := range f.decided {
		s.Decided[causes[i]] = f.decided[i].Load()
	}
	return s
}

// total returns how many transactions secondary has decided.
func (f *FallbackStore) total() (n int64) {
	for i := range f.decided {
		n += f.decided[i].Load()
	}
	return n
}

// settled is how long primary must decide without an error before an outage is over.
const settled = time.Second

// degraded notes that secondary is asked because of err.
func (f *FallbackStore) degraded(ctx context.Context, cause int, err error) {
	now := time.Now().UnixNano()
	f.last.Store(now)
	begins := f.began.Load() == 0 && f.began.CompareAndSwap(0, now)
	level, text, logs := slog.LevelWarn, "quota: primary store failed", begins
	if cause == causeUnusable {
		level, text = slog.LevelError, "quota: primary store unusable until its setup is changed"
		_, logs = f.loud.Pass()
	}
	if logs {
		cmp.Or(f.o.Logger, slog.Default()).Log(ctx, level, text, "err", err, "cause", causes[cause], "effect", "the secondary decides")
	}
	if begins {
		f.o.OnChange(true, err)
	}
}

// recovered notes that primary has decided. If the outage is over, it logs a line, unless
// only one call failed: one late decision is one line.
func (f *FallbackStore) recovered(ctx context.Context, began int64) {
	now, last := time.Now().UnixNano(), f.last.Load()
	if now-last < int64(settled) || !f.began.CompareAndSwap(began, 0) {
		return
	}
	f.loud.Reset() // a new outage is logged at once
	n := f.total()
	n -= f.before.Swap(n)
	if last != began {
		cmp.Or(f.o.Logger, slog.Default()).InfoContext(ctx, "quota: primary store decides again", "after", period.Rounded(time.Duration(now-began)), "decided", n)
	}
	f.o.OnChange(false, nil)
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
	cause := causeOf(err)
	f.degraded(ctx, cause, err)
	if call := traced.Of(ctx); call != nil {
		call.FellBack(causes[cause])
	}
	t.SetResult(&Result{}) // primary may have filled in some of it
	if second := f.secondary.Take(ctx, t); second != nil {
		return errors.Join(err, second)
	}
	f.decided[cause].Add(1)
	return nil
}
