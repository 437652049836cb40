// Package lease is a weir.Store that takes units of a limit in advance and serves
// them from memory, for keys that are asked for all the time.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
)

// A Leaser is a weir.Algorithm whose units can be spent in advance and used later,
// without admitting more at any time than if they had been spent when they were
// used. Its type is comparable. An algorithm needs not import this package.
type Leaser interface {
	weir.Canceler

	// Usable returns how many of n leased units may still be used at the instant
	// now without exceeding the limit. The units were spent at the instant at, and
	// d is the decision that spent them. Units beyond the result are never used: n
	// is at most the result of the call before, less what was used since. Instants
	// are in µs since 1970.
	Usable(l *weir.Limit, d weir.Decision, at, now, n int64) int64

	// Drains reports that unused units become free again by themselves, at the rate
	// of the limit. They must not be given back, because units that others hold may
	// rest on them. Units of other algorithms are given back by Cancel.
	Drains() bool
}

// Options are ready to use as they are.
type Options struct {
	// TTL is how long a lease is used at most; 0 means 100 ms. Remaining may be
	// that old, and unused units are kept from other processes for that long.
	TTL time.Duration

	// Fraction is the part of what remains that a lease takes at most, above 0 and
	// at most 1; 0 means an eighth.
	Fraction float64

	// MaxKeys bounds how many keys are watched, and so may have a lease; 0 means
	// 10,000, which take some 5 MB. A key is watched from the second call on, so
	// that keys made up to be asked once take no room.
	MaxKeys int
}

// New returns a Store that serves the keys in frequent use from this process. It
// takes units in advance, with a call that it has to make anyway, and allows what
// comes next from memory until they are used up: one call of next serves many.
//
// A lease covers as many calls as the last TTL had, and at most Fraction of what
// remained; if that is fewer than two, each call goes to next. So leases vanish
// near the limit, and the last units go to the process that asks first. A refusal
// always comes from next. Under GCRA and the buckets a lease holds at most what
// drains in a TTL, so a limit below 20 a second has none.
//
// The limit is never exceeded. What a lease serves is spent in next already, and a
// Leaser says for how long that is as good as if it were spent when it is used: in
// a window, until the window ends; under GCRA and the buckets, as long as next
// still owes it. Both are measured on the clock of next, from before next was
// asked. If units are given back or forgotten while they are leased (a negative
// cost, Reset, Forget), as many more may be admitted, once.
//
// Units that are unused when the TTL is over go back by another call, or drain
// within another TTL, whichever the Leaser says. Other processes cannot use them
// until then. If this process or that call fails they are lost until their window
// ends: at most Fraction of what remained, for each process, key and cost.
//
// A lease belongs to all charges of a transaction together, each with its cost and
// limit. Calls that must be exact go to next: those with Within or Delay, costs of
// 0 and below, keys that are not a weir.StoredKey, and algorithms that are no
// Leaser, such as SlidingLog, which dates each unit. A call that arrives while a
// lease is being fetched waits for that fetch, which returns sooner than a call of
// its own would, and shares its error.
//
// A decision from memory is right in Allowed. Remaining and the durations are those
// that next reported, at most a TTL ago, less what was used here.
//
// The Store stands inside weir.Fallback, so that units of one store are not given
// back to another, and outside weir.Share, which changes the limits:
//
//	leases := lease.New(weir.Coalesce(redis), lease.Options{})
//	store := weir.Fallback(weir.Breaker(leases, weir.BreakerOptions{}), memory)
//
// Close it when the process ends, or its leases are lost. New panics if next is nil
// or an option out of range.
func New(next weir.Store, o Options) *Store {
	switch {
	case next == nil:
		panic("lease: the store is nil")
	case o.TTL < 0:
		panic(fmt.Sprintf("lease: TTL is %v", o.TTL))
	case !(o.Fraction >= 0 && o.Fraction <= 1):
		panic(fmt.Sprintf("lease: Fraction is %v", o.Fraction))
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("lease: MaxKeys is %d", o.MaxKeys))
	}
	o.TTL = cmp.Or(o.TTL, 100*time.Millisecond)
	o.Fraction = cmp.Or(o.Fraction, 1.0/8)
	o.MaxKeys = cmp.Or(o.MaxKeys, 10_000)
	l := &Store{next: next, o: o, seed: maphash.MakeSeed(), start: time.Now()}
	l.shards = make([]shard, min(64, o.MaxKeys))
	for i := range l.shards {
		l.shards[i].most = (o.MaxKeys + len(l.shards) - 1) / len(l.shards)
		l.shards[i].known = map[uint64]*lease{}
	}
	return l
}

// A Store serves leases. See New.
type Store struct {
	next   weir.Store
	o      Options
	seed   maphash.Seed
	start  time.Time // instants are ns since then, on the monotonic clock
	shards []shard
	misses atomic.Uint64
	calls  sync.WaitGroup // that run on goroutines of their own
}

// Stats says how many calls of next the leases save.
type Stats struct {
	Hits, Misses uint64 // transactions served from memory, and those that next decided
}

func (l *Store) now() int64 { return int64(time.Since(l.start)) }

// Stats returns what was counted so far.
func (l *Store) Stats() Stats {
	st := Stats{Misses: l.misses.Load()}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		st.Hits += s.hits
		s.mu.Unlock()
	}
	return st
}

// Take implements Store.
func (l *Store) Take(ctx context.Context, t *weir.Transaction) error {
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

// call passes a transaction on.
func (l *Store) call(ctx context.Context, t *weir.Transaction) error {
	l.misses.Add(1)
	return l.next.Take(ctx, t)
}

// passThrough passes one on, and remembers what remained.
func (l *Store) passThrough(ctx context.Context, s *shard, e *lease, t *weir.Transaction) error {
	err := l.call(ctx, t)
	if err == nil {
		now := l.now()
		s.mu.Lock()
		e.note(t, now)
		s.mu.Unlock()
	}
	return err
}

// A fetch takes one unit for its caller and more for later ones. It is shared, so
// it does not stop if that caller gives up.
type fetch struct {
	t    weir.Transaction
	more int64 // asks
	done chan struct{}
	err  error
}

// begin begins to fetch a lease for k asks, and an ask besides.
func (l *Store) begin(ctx context.Context, s *shard, e *lease, k int64) *fetch {
	f := &fetch{t: weir.Transaction{Charges: e.times(1+k, nil)}, more: k, done: make(chan struct{})}
	e.fetch = f
	old := e.end() // its window is over
	l.calls.Add(1)
	go func() {
		defer l.calls.Done()
		sent := l.now()
		f.err = recovered(func() error { return l.call(context.WithoutCancel(ctx), &f.t) })
		rest := l.install(s, e, f, sent)
		close(f.done)
		l.giveBack(context.Background(), old, rest)
	}()
	return f
}

// await waits for a lease, and reports whether it decides t.
func (l *Store) await(ctx context.Context, s *shard, e *lease, f *fetch, own bool, t *weir.Transaction) (decided bool, err error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if f.err != nil {
		return false, f.err
	}
	if own {
		if !f.t.Allowed() { // one may fit yet
			return false, nil
		}
		f.answer(t)
		return true, nil
	}
	now := l.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.serve(t, now) {
		return false, nil
	}
	s.hits++
	return true, nil
}

// install begins a lease with what a call has brought. It returns what is to be
// given back at once.
func (l *Store) install(s *shard, e *lease, f *fetch, sent int64) (back *weir.Transaction) {
	answered := l.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	e.fetch = nil
	if f.err != nil {
		e.last = e.last[:0] // until it answers: no leases from a store that fails
		return nil
	}
	e.note(&f.t, answered)
	if !f.t.Allowed() {
		return nil
	}
	e.held, e.unused = f.more, f.more
	e.at, e.sent, e.answered, e.until = f.t.At, sent, answered, sent+int64(l.o.TTL)
	e.decisions = append(e.decisions[:0], f.t.Decisions...)
	left := time.Duration(e.until - answered)
	switch {
	case s.closed || left <= 0:
		return e.end()
	case e.timer == nil:
		e.timer = time.AfterFunc(left, func() { l.expire(s, e) })
	default:
		e.timer.Reset(left)
	}
	return nil
}

// answer decides the ask that the fetch was made for.
func (f *fetch) answer(t *weir.Transaction) {
	t.Decisions = append(t.Decisions[:0], f.t.Decisions...)
	t.At, t.Wait, t.Undo = f.t.At, f.t.Wait, t.Undo[:0]
	for i := range t.Decisions {
		if d := &t.Decisions[i]; d.Remaining >= 0 {
			d.Remaining += f.more * t.Charges[i].Cost
		}
	}
}

// expire ends a lease whose time is up.
func (l *Store) expire(s *shard, e *lease) {
	s.mu.Lock()
	var back *weir.Transaction
	if l.now() >= e.until { // or it is the time of one before
		back = e.end()
	}
	if back == nil {
		s.mu.Unlock()
		return
	}
	l.calls.Add(1)
	s.mu.Unlock()
	defer l.calls.Done()
	l.giveBack(context.Background(), back)
}

// giveBack gives back what was not used, once: if that fails nobody knows whether
// it was done, and units that are given back twice are others'.
func (l *Store) giveBack(ctx context.Context, backs ...*weir.Transaction) error {
	var errs []error
	for _, t := range backs {
		if t != nil {
			errs = append(errs, recovered(func() error { return l.next.Take(ctx, t) }))
		}
	}
	return errors.Join(errs...)
}

// recovered turns a panic of f into an error: on a goroutine of its own it would
// end the process.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("lease: the store panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// Close gives back all leases, waits for calls under way, and has asks go to next
// from then on. It returns the error of ctx if that ends first, or errors of next;
// what was not given back is lost.
func (l *Store) Close(ctx context.Context) error {
	errs := make(chan error, len(l.shards))
	for i := range l.shards {
		s := &l.shards[i]
		var backs []*weir.Transaction
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

// id returns the fingerprint of what is asked, and whether it may be served.
func (l *Store) id(t *weir.Transaction) (id uint64, ok bool) {
	if t.Within > 0 || t.Delay > 0 || t.Forget || len(t.Charges) == 0 {
		return 0, false
	}
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || weir.StoredKey(c.Key) != c.Key { // a Limiter sends the digest
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
