// Package lease takes units of busy keys in advance and serves them from memory, so that one
// call of Redis decides many requests.
//
//	leases := lease.New(quota.Coalesce(store), lease.Options{})
//	defer leases.Close(ctx) // returns the unused units
//	limit := weir.Middleware(leases, "all", weir.Global(), algorithms.GCRA(10_000, time.Second))
//
// Use the package if a single key, such as the key of weir.Global(), gets more requests than
// Redis should decide one by one.
//
// # What it costs
//
// The limit is never exceeded. While a lease lasts (Options.TTL, 100 ms by default), other
// processes cannot use its units, and Remaining may be out of date. Keys with few requests,
// and keys near their limit, are decided in Redis as before.
//
// # Vocabulary
//
// A lease is a number of units that are already spent in the store behind, and that this
// process may give to requests until the lease expires.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// A Leaser is a quota.Algorithm whose units can be spent in advance and used later. The limit
// must hold as if the units were spent when they are used. The type of a Leaser must be
// comparable with ==. An algorithm implements Leaser without importing this package.
type Leaser interface {
	quota.Canceler

	// Usable returns how many of n leased units may still be used now without exceeding
	// the limit. The decision d spent the units at an earlier instant, the argument at.
	// Both instants are in µs since 1970. The caller never uses units beyond the result:
	// in the following call, n is at most this result minus the units used since.
	Usable(l *quota.Limit, d quota.Decision, at, now, n int64) int64

	// Drains reports whether unused units become available again by themselves, at the rate of
	// the limit. The caller does not return such units, because other requests may
	// already have been admitted in their place. If Drains returns false, the caller returns
	// unused units with Cancel.
	Drains() bool
}

// Options of New. The zero Options are ready to use.
type Options struct {
	// TTL is the longest time for which a lease is used; 0 means 100 ms. Meanwhile, other
	// processes cannot use the units of the lease, and Remaining may be out of date.
	TTL time.Duration

	// Fraction is the largest part of the remaining units that a lease takes: above 0 and
	// at most 1. 0 means an eighth.
	Fraction float64

	// MaxKeys is the most keys whose calls the Store counts; only these keys can have a
	// lease. 0 means 10,000 keys, which take some 5 MB. Counting begins with the second
	// call of a key, so made-up keys that come once take no memory.
	MaxKeys int
}

// New returns a Store that leases units of busy keys from another store, the argument
// next. When the Store has to call next for a busy key, it may take more units than the
// call needs. It then admits later calls from memory, until the units are used up or the
// TTL is over.
//
// A lease covers as many calls as the key had in the last TTL, but at most Fraction of the
// remaining units. If that is fewer than two calls, there is no lease and each call goes to
// next. Near the limit there are therefore no leases, and the process that asks first
// gets the last units. Each refusal comes from next. Under GCRA and the buckets a lease
// holds at most the units that drain in a TTL, so with a TTL of 100 ms a limit below 20 per
// second has no leases.
//
// The limit is never exceeded. The units of a lease are already spent in next, and the
// Leaser says for how long they may be used. In a window they may be used until the
// window ends. Under GCRA and the buckets they may be used until they have drained in
// next. The Store assumes that the clock of next shows the At of the answer plus the time
// since the call. The clock shows that time or less, so the Store uses no unit too late.
// If units are refunded or forgotten while they are leased (a negative cost, Reset,
// ModeForget), the same number may be admitted once more.
//
// Units that are unused at the end of the TTL are returned by one more call of next, or
// drain within another TTL. Leaser.Drains says which of the two happens. Until then, other
// processes cannot use these units. If this process dies or the call fails, the units are
// lost until their window ends. For each process, key and cost, these units are at most
// Fraction of the units that remained.
//
// A lease belongs to all charges of a transaction together, each with its cost and limit.
// A call always goes to next if it has a Mode other than ModeSpend, Within, a cost of 0 or
// less, a key of more than 128 bytes, or an algorithm that is no Leaser, such as
// SlidingLog. A call that arrives while a lease is being fetched waits for that fetch,
// which takes less time than a separate call. If the fetch fails, the waiting call gets
// the error of the fetch.
//
// If a decision comes from memory, Allowed is exact. Remaining is the number in the
// answer of next, which is at most a TTL old, minus the units that this Store has used
// since. The durations are those of the same answer, minus the time since.
//
// The Store belongs inside quota.Fallback, so that the units of one store are not
// returned to the other. It belongs outside quota.Share, which changes the limits:
//
//	leases := lease.New(quota.Coalesce(redis), lease.Options{})
//	store := quota.Fallback(quota.Breaker(leases, quota.BreakerOptions{}), memory, quota.FallbackOptions{})
//
// Close the Store when the process ends; otherwise the units of its leases are lost. New
// panics if next is nil or an option is out of range.
func New(next quota.Store, o Options) *Store {
	switch {
	case next == nil:
		panic("lease: the store is nil")
	case o.TTL < 0:
		panic(fmt.Sprintf("lease: TTL is %v; want at least 0", o.TTL))
	case !(o.Fraction >= 0 && o.Fraction <= 1):
		panic(fmt.Sprintf("lease: Fraction is %v; want 0 to 1", o.Fraction))
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("lease: MaxKeys is %d; want at least 0", o.MaxKeys))
	}
	o.TTL = cmp.Or(o.TTL, 100*time.Millisecond)
	o.Fraction = cmp.Or(o.Fraction, 1.0/8)
	o.MaxKeys = cmp.Or(o.MaxKeys, 10_000)
	l := &Store{next: next, o: o, seed: maphash.MakeSeed(), start: time.Now()}
	l.shards = make([]shard, min(64, o.MaxKeys))
	for i := range l.shards {
		l.shards[i].most = (o.MaxKeys-1)/len(l.shards) + 1
		l.shards[i].known = map[uint64]*lease{}
	}
	return l
}

// A Store serves leases. See New.
type Store struct {
	next   quota.Store
	o      Options
	seed   maphash.Seed
	start  time.Time // all instants of the package are ns since start, on the monotonic clock
	shards []shard
	misses atomic.Int64
	calls  sync.WaitGroup // calls of next on goroutines of the Store
}

func (l *Store) now() int64 { return int64(time.Since(l.start)) }

// Stats returns what the Store has counted since New. Each hit saves a call of next.
func (l *Store) Stats() quota.CacheStats {
	st := quota.CacheStats{Kind: "lease", Misses: l.misses.Load()}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		st.Hits += s.hits
		s.mu.Unlock()
	}
	return st
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
	s := l.shard(id)
	s.mu.Lock()
	e := s.find(id, t, now, l)
	if e == nil {
		s.mu.Unlock()
		return l.call(ctx, t)
	}
	e.tick(now, int64(l.o.TTL))
	if e.serve(t, now) {
		s.hits++
		s.mu.Unlock()
		return nil
	}
	f, own := e.fetch, false
	if f == nil {
		if k := e.want(now, &l.o); k > 0 {
			f, own = l.begin(ctx, s, e, k), true
		}
	}
	s.mu.Unlock()
	if f != nil {
		if decided, err := l.await(ctx, s, e, f, own, t); decided || err != nil {
			return err
		}
	}
	return l.passThrough(ctx, s, e, t)
}

// call has next decide t.
func (l *Store) call(ctx context.Context, t *quota.Transaction) error {
	l.misses.Add(1)
	return l.next.Take(ctx, t)
}

// passThrough has next decide t, and remembers the decisions for the next lease.
func (l *Store) passThrough(ctx context.Context, s *shard, e *lease, t *quota.Transaction) error {
	err := l.call(ctx, t)
	if err == nil {
		now := l.now()
		s.mu.Lock()
		e.note(t, now)
		s.mu.Unlock()
	}
	return err
}

// Close returns the unused units of all leases. It waits for the calls that take or
// return leased units. Later calls of Take go to next. If ctx ends first, Close
// returns the error of ctx. Otherwise it returns the errors of the calls that return
// units. Units that could not be returned are lost.
func (l *Store) Close(ctx context.Context) error {
	errs := make(chan error, len(l.shards))
	for i := range l.shards {
		s := &l.shards[i]
		var backs []*quota.Transaction
		s.mu.Lock()
		s.closed = true
		for _, e := range s.known {
			backs = append(backs, e.end())
			if e.timer != nil {
				e.timer.Stop()
			}
		}
		clear(s.known)
		s.mu.Unlock()
		if len(backs) > 0 {
			l.calls.Go(func() { errs <- l.giveBack(ctx, backs...) })
		}
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

// id returns the fingerprint of the charges of t. ok is false if only next may decide t.
func (l *Store) id(t *quota.Transaction) (id uint64, ok bool) {
	if t.Mode != quota.ModeSpend || t.Within > 0 || len(t.Charges) == 0 {
		return 0, false
	}
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || storedkey.Of(c.Key) != c.Key { // a long key; a Limiter sends its digest instead
			return 0, false
		}
		for _, part := range [...]uint64{maphash.String(l.seed, c.Key), maphash.String(l.seed, c.Rule), uint64(c.Limit.Quota), uint64(c.Limit.Period), uint64(c.Cost)} {
			id = (bits.RotateLeft64(id, 21) ^ part) * 0x9e3779b97f4a7c15
		}
	}
	return id, true
}

func (l *Store) shard(id uint64) *shard {
	hi, _ := bits.Mul64(id, uint64(len(l.shards)))
	return &l.shards[hi]
}
