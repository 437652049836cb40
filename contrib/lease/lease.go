// Package lease spends units for busy keys in advance, and then allows requests without calling
// Redis. A single call to Redis thus serves many requests.
//
//	leases := lease.New(quota.Coalesce(store), lease.Options{})
//	defer leases.Close(ctx) // returns the unused units
//	limit := weir.Middleware(leases, "all", weir.Global(), algorithms.GCRA(10_000, time.Second))
//
// Use this package if a single key, such as the key of weir.Global(), gets more requests than Redis
// can handle one by one.
//
// # What it costs
//
// Limits are never exceeded. However, other processes cannot use a lease's units until the lease
// expires (after 100 ms by default), and Remaining may be out of date. Every request for a key with
// little traffic, or for a key near its limit, still causes a call to Redis.
//
// # Vocabulary
//
// A lease consists of units that have already been spent in the wrapped store. Until the lease
// expires, this process can use them for requests.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A Leaser is a quota.Algorithm whose units can be spent in advance and used later. The limit must
// hold as if each unit were spent at the instant at which it is used. A Leaser must have a
// comparable type. An algorithm can implement Leaser without importing this package.
type Leaser interface {
	optional.Canceler

	// Usable returns how many of n leased units can still be used now without exceeding the limit.
	// The units were spent by the decision d at an earlier instant. Both instants, at and now, are
	// in µs since 1970. The caller never uses more units than the result. In the next call, n is
	// therefore at most this result minus the number of units used since then.
	Usable(l *quota.Limit, d quota.Decision, at, now, n int64) int64

	// Drains reports whether unused units become available again by themselves, at the rate of the
	// limit. If they do, the caller does not return unused units, because other requests may
	// already have been admitted in their place. Otherwise, the caller returns unused units by
	// Cancel.
	Drains() bool
}

// Options are the options for New. The zero value is ready to use.
type Options struct {
	// TTL is the maximum lifetime of a lease, at least 1 ms; 0 means 100 ms. Until a lease expires,
	// other processes cannot use the leased units, and Remaining may be out of date.
	TTL time.Duration

	// Fraction is the maximum fraction of the remaining units that a lease may take, above 0 and at
	// most 1; 0 means an eighth.
	Fraction float64

	// MaxKeys is the maximum number of keys whose calls the Store counts. Only these keys can
	// have a lease. 0 means 10,000 keys, which take about 5 MB. Counting begins with the second
	// call for a key, so made-up keys that occur only once take no memory.
	MaxKeys int
}

// New wraps a store in one that leases units for busy keys. When the Store calls the wrapped store
// for a busy key, it may take more units than the call needs. It then allows later calls from
// memory until these units are used up or the lease expires.
//
// A lease covers as many calls as there were for the key during the previous TTL, but never takes
// more than Options.Fraction of the remaining units. If these units are not enough for two calls,
// no lease is taken, and each call goes to the wrapped store. A key near its limit therefore has no
// leases, and its last units go to whichever process calls first. Every refusal comes from the
// wrapped store. Under GCRA, TokenBucket and LeakyBucket, a lease contains at most as many units as
// drain in one TTL. With a TTL of 100 ms, limits of fewer than 20 units per second therefore have
// no leases.
//
// The limit is never exceeded, because leased units have already been spent in the wrapped store,
// and the Store uses these units only while they still count in that store. However, if n leased
// units are refunded or forgotten (by a negative cost, Reset or ModeForget), up to n extra units
// may be admitted.
//
// When a lease expires, the Store returns unused units with one more call to the wrapped store. If
// Leaser.Drains returns true, this call is not needed, because the units become available again
// within one more TTL. If the process dies or the call fails, the unused units stay unavailable
// until their window ends. For each combination of process, key and cost, these are at most
// Options.Fraction of the remaining units.
//
// Calls share a lease only if they have the same list of charges, including costs and limits. The
// Store passes a transaction directly to the wrapped store if its Mode is not ModeSpend or its
// Within is set. It does the same if a charge has a Cost of 0 or less, a Key longer than 128 bytes,
// or an algorithm that is not a Leaser, such as SlidingLog. A call that arrives while a lease is
// being fetched waits for the fetch to finish. If the fetch fails, the waiting call returns the
// same error.
//
// If a decision is made from a lease, its Allowed field is still exact. The other fields are based
// on the last call to the wrapped store, which was at most one TTL ago, and on the units that this
// Store has used since that call.
//
// Put quota.Fallback around the Store; otherwise, units taken from one store could be returned to
// the other. If you use quota.Share, put it inside the Store:
//
//	leases := lease.New(quota.Coalesce(redis), lease.Options{})
//	store := quota.Fallback(quota.Breaker(leases, quota.BreakerOptions{}), memory, quota.FallbackOptions{})
//
// Close the Store before the process exits; otherwise, the unused units of its leases stay
// unavailable. New panics if next is nil or an option is out of range.
func New(next quota.Store, o Options) *Store {
	switch {
	case safe.Nil(next):
		panic("lease: the store is nil")
	case o.TTL < 0:
		panic(fmt.Sprintf("lease: TTL is %v; want at least 0", o.TTL))
	case !(o.Fraction >= 0 && o.Fraction <= 1):
		panic(fmt.Sprintf("lease: Fraction is %v; want 0 to 1", o.Fraction))
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("lease: MaxKeys is %d; want at least 0", o.MaxKeys))
	}
	if err := period.CheckUnit("lease: TTL", o.TTL); err != nil {
		panic(err.Error())
	}
	switch next.(type) {
	case *quota.FallbackStore:
		slog.Warn("lease: store is around a Fallback",
			"effect", "units of one store may be refunded to the other", "fix", "put Fallback around the lease store")
	case optional.Watcher: // a HybridStore, or a store of package stack
		slog.Warn("lease: store is around a Hybrid or a stack", "effect", "around a stack, units of one store may be refunded to the other",
			"fix", "put Fallback and Hybrid around the lease store, and the lease store around the redisstore")
	}
	o.TTL = cmp.Or(o.TTL, 100*time.Millisecond)
	o.Fraction = cmp.Or(o.Fraction, 1.0/8)
	o.MaxKeys = cmp.Or(o.MaxKeys, 10_000)
	return &Store{next: next, o: o, seed: maphash.MakeSeed(), start: time.Now(), known: map[uint64]*lease{}}
}

// A Store is a quota.Store that leases units, and allows requests from these leases without calling
// the wrapped store. See New.
type Store struct {
	next   quota.Store
	o      Options
	seed   maphash.Seed
	start  time.Time // all instants in this package are in ns since start, by the monotonic clock
	misses atomic.Int64
	calls  sync.WaitGroup // calls to the wrapped store in goroutines of this Store

	mu     sync.Mutex // guards the rest, and all leases
	closed bool
	known  map[uint64]*lease // the key is the fingerprint of the charges
	once   [4096]uint64      // recent fingerprints that were seen once
	hits   int64
}

// Server implements optional.Server if the wrapped store does.
func (l *Store) Server(t *quota.Transaction) string {
	if next, ok := l.next.(optional.Server); ok {
		return next.Server(t)
	}
	return ""
}

func (l *Store) now() int64 { return int64(time.Since(l.start)) }

// Stats returns the statistics since l was created. Each hit saves a call to the wrapped store.
func (l *Store) Stats() quota.CacheStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return quota.CacheStats{Kind: "lease", Hits: l.hits, Misses: l.misses.Load()}
}

// Take implements quota.Store.
func (l *Store) Take(ctx context.Context, t *quota.Transaction) error {
	id, ok := l.id(t)
	if !ok {
		return l.call(ctx, t)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	now := l.now()
	l.mu.Lock()
	e := l.find(id, t, now)
	if e == nil {
		l.mu.Unlock()
		return l.call(ctx, t)
	}
	e.tick(now, int64(l.o.TTL))
	if e.serve(t, now) {
		l.hits++
		l.mu.Unlock()
		return nil
	}
	f, own := e.fetch, false
	if f == nil {
		if k := e.want(now, &l.o); k > 0 {
			f, own = l.begin(ctx, e, k), true
		}
	}
	l.mu.Unlock()
	if f != nil {
		if decided, err := l.await(ctx, e, f, own, t); decided || err != nil {
			return err
		}
	}
	return l.passThrough(ctx, e, t)
}

// call passes t to the wrapped store.
func (l *Store) call(ctx context.Context, t *quota.Transaction) error {
	l.misses.Add(1)
	return l.next.Take(ctx, t)
}

// passThrough passes t to the wrapped store, and records the decisions, from which the size of the
// next lease is computed.
func (l *Store) passThrough(ctx context.Context, e *lease, t *quota.Transaction) error {
	err := l.call(ctx, t)
	if err == nil {
		now := l.now()
		l.mu.Lock()
		e.note(t, now)
		l.mu.Unlock()
	}
	return err
}

// Close returns the unused units of all leases to the wrapped store. It waits for calls that are
// taking or returning leased units. Later calls to Take go to the wrapped store. If ctx is done
// before these calls end, Close returns ctx.Err(). Otherwise, it returns all errors that occurred
// while units were being returned. Units that could not be returned stay unavailable until their
// window ends.
func (l *Store) Close(ctx context.Context) error {
	const atOnce = 64 // a store can send concurrent calls in one round trip
	errs := make(chan error, atOnce)
	var backs []*quota.Transaction
	l.mu.Lock()
	l.closed = true
	for _, e := range l.known {
		backs = append(backs, e.end())
		if e.timer != nil {
			e.timer.Stop()
		}
	}
	clear(l.known)
	l.mu.Unlock()
	for some := range slices.Chunk(backs, len(backs)/atOnce+1) {
		l.calls.Go(func() { errs <- l.refund(ctx, some...) })
	}
	done := make(chan struct{})
	go func() {
		l.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// id returns the fingerprint of the charges of t. It returns false if t must be passed to the
// wrapped store.
func (l *Store) id(t *quota.Transaction) (id uint64, ok bool) {
	if t.Mode != quota.ModeSpend || t.Within > 0 || len(t.Charges) == 0 {
		return 0, false
	}
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || storedkey.Of(c.Key) != c.Key { // a key this long does not come from a Limiter, which sends a digest instead
			return 0, false
		}
		key, rule := maphash.String(l.seed, c.Key), maphash.String(l.seed, c.Rule)
		for _, part := range [...]uint64{key, rule, uint64(c.Limit.Quota), uint64(c.Limit.Period), uint64(c.Cost), uint64(c.Headroom)} {
			id = (bits.RotateLeft64(id, 21) ^ part) * 0x9e3779b97f4a7c15
		}
	}
	return id, true
}
