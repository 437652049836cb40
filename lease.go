package weir

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
)

// A Leaser is an Algorithm whose units can be spent in advance and used later,
// without more being admitted at any time than if they had been spent when they
// were used. Its type is comparable.
type Leaser interface {
	Canceler

	// Held returns how many may still be used at the instant now of n units that
	// are left of those spent at the instant at, with the decision d. Those beyond
	// are never used: n is no more than it said before, less what was used since.
	// Instants are in µs since 1970.
	Held(l *Limit, d Decision, at, now, n int64) int64

	// Drains reports that units which nobody uses are free again by themselves, at
	// the rate of the limit. They must not be given back, for what others hold may
	// rest on them. Units of other algorithms are given back by Cancel.
	Drains() bool
}

// LeaseOptions are ready to use as they are.
type LeaseOptions struct {
	// Hold is how long a lease is used at most; 0 means 100 ms. It is how old
	// Remaining may be, and how long units that nobody asks for are kept from
	// others.
	Hold time.Duration

	// Share is the part of what remains that a lease takes at most, above 0 and at
	// most 1; 0 means an eighth.
	Share float64

	// MaxKeys bounds how many keys are watched, and so may have a lease; 0 means
	// 10,000, which take some 5 MB. A key is watched from the second ask on, so
	// that keys made up to be asked once take no room.
	MaxKeys int
}

// Lease serves keys that are asked often from this process. It takes units in
// advance, by the call that decides an ask anyway, and what comes next is allowed
// from memory until they are used up: one call of next for many asks.
//
// A lease is as large as the asks of the last Hold, and no larger than Share of
// what remained; if that is below two, each ask goes to next. So leases vanish
// near the limit, and the last units are for whoever comes first. A refusal always
// comes from next. Under GCRA and the buckets a lease is for what drains in a Hold,
// too, so that a limit below 20 a second has none.
//
// The limit is never exceeded. What a lease serves is spent in next already, and a
// Leaser says for how long that is as good as if it were spent when it is used: in
// a window, until it ends; under GCRA and the buckets, as long as next still owes
// it. Both are reckoned on the clock of next, counted from before next was asked.
// Only where units are given back or forgotten while they are leased (a negative
// cost, Reset, Forget) may as many more be admitted, once.
//
// What nobody asks for until the Hold is over goes back by another call, or drains
// by itself within a Hold, whichever the Leaser says. It is out of others' reach
// until then; lost, until its window ends, if the process or that call fails. That
// is Share of what remained at most, for each process, key and cost.
//
// A lease belongs to all charges of a transaction together, each with its cost and
// limit. Past it go all that must be exact: Within and Delay, costs of 0 and below,
// keys that are not a StoredKey, and algorithms that are no Leaser, as SlidingLog, which dates each unit. Who asks
// while a lease is being fetched waits for that call, which is back sooner than its
// own would be, and has its error.
//
// A decision that was served is right in Allowed; Remaining and the durations are
// as next said when it was asked, a Hold ago at most, with what was used here.
//
// It stands inside Fallback, so that what one store has given does not go back to
// another, and next counts the limits that it is asked, as Share does not:
//
//	leases := weir.Lease(weir.Coalesce(redis), weir.LeaseOptions{})
//	store := weir.Fallback(weir.Breaker(leases, weir.BreakerOptions{}), memory)
//
// Close it when the process ends, or its leases are lost. It panics if
// next is nil or an option out of range.
func Lease(next Store, o LeaseOptions) *Leases {
	switch {
	case next == nil:
		panic("weir: Lease: the store is nil")
	case o.Hold < 0:
		panic(fmt.Sprintf("weir: Lease: Hold is %v", o.Hold))
	case !(o.Share >= 0 && o.Share <= 1):
		panic(fmt.Sprintf("weir: Lease: Share is %v", o.Share))
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("weir: Lease: MaxKeys is %d", o.MaxKeys))
	}
	o.Hold = cmp.Or(o.Hold, 100*time.Millisecond)
	o.Share = cmp.Or(o.Share, 1.0/8)
	o.MaxKeys = cmp.Or(o.MaxKeys, 10_000)
	l := &Leases{next: next, o: o, seed: maphash.MakeSeed(), start: time.Now()}
	l.shards = make([]leaseShard, min(64, o.MaxKeys))
	for i := range l.shards {
		l.shards[i].most = (o.MaxKeys + len(l.shards) - 1) / len(l.shards)
		l.shards[i].known = map[uint64]*lease{}
	}
	return l
}

// Leases is the Store of Lease.
type Leases struct {
	next   Store
	o      LeaseOptions
	seed   maphash.Seed
	start  time.Time // instants are ns since then, on the monotonic clock
	shards []leaseShard
	asked  atomic.Uint64
	calls  sync.WaitGroup // that run on goroutines of their own
}

// LeaseStats says how much Lease saves.
type LeaseStats struct {
	Served, Asked uint64 // transactions served from memory, and those that next was asked to decide
}

func (l *Leases) now() int64 { return int64(time.Since(l.start)) }

// Stats returns what was counted so far.
func (l *Leases) Stats() LeaseStats {
	st := LeaseStats{Asked: l.asked.Load()}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		st.Served += s.served
		s.mu.Unlock()
	}
	return st
}

// Take implements Store.
func (l *Leases) Take(ctx context.Context, t *Transaction) error {
	id, ok := l.id(t)
	if !ok {
		return l.ask(ctx, t)
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
		return l.ask(ctx, t)
	}
	e.tick(now, int64(l.o.Hold))
	if e.serve(t, now) {
		s.served++
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
	return l.plain(ctx, s, e, t)
}

// ask passes a transaction on.
func (l *Leases) ask(ctx context.Context, t *Transaction) error {
	l.asked.Add(1)
	return l.next.Take(ctx, t)
}

// plain passes one on, and remembers what remained.
func (l *Leases) plain(ctx context.Context, s *leaseShard, e *lease, t *Transaction) error {
	err := l.ask(ctx, t)
	if err == nil {
		now := l.now()
		s.mu.Lock()
		e.note(t, now)
		s.mu.Unlock()
	}
	return err
}

// A fetch is a call that asks for one and more like it. It is not the asker's
// alone, so it goes on if that one hangs up.
type fetch struct {
	t    Transaction
	more int64 // asks
	done chan struct{}
	err  error
}

// begin begins to fetch a lease for k asks, and an ask besides.
func (l *Leases) begin(ctx context.Context, s *leaseShard, e *lease, k int64) *fetch {
	f := &fetch{t: Transaction{Charges: e.times(1+k, nil)}, more: k, done: make(chan struct{})}
	e.fetch = f
	old := e.end() // its window is over
	l.calls.Add(1)
	go func() {
		defer l.calls.Done()
		sent := l.now()
		f.err = recovered(func() error { return l.ask(context.WithoutCancel(ctx), &f.t) })
		rest := l.install(s, e, f, sent)
		close(f.done)
		l.giveBack(context.Background(), old, rest)
	}()
	return f
}

// await waits for a lease, and reports whether it decides t.
func (l *Leases) await(ctx context.Context, s *leaseShard, e *lease, f *fetch, own bool, t *Transaction) (decided bool, err error) {
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
	s.served++
	return true, nil
}

// install begins a lease with what a call has brought. It returns what is to be
// given back at once.
func (l *Leases) install(s *leaseShard, e *lease, f *fetch, sent int64) (back *Transaction) {
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
	e.at, e.sent, e.answered, e.until = f.t.At, sent, answered, sent+int64(l.o.Hold)
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
func (f *fetch) answer(t *Transaction) {
	t.Decisions = append(t.Decisions[:0], f.t.Decisions...)
	t.At, t.Wait, t.Undo = f.t.At, f.t.Wait, t.Undo[:0]
	for i := range t.Decisions {
		if d := &t.Decisions[i]; d.Remaining >= 0 {
			d.Remaining += f.more * t.Charges[i].Cost
		}
	}
}

// expire ends a lease whose time is up.
func (l *Leases) expire(s *leaseShard, e *lease) {
	s.mu.Lock()
	var back *Transaction
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
func (l *Leases) giveBack(ctx context.Context, backs ...*Transaction) error {
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
			err = fmt.Errorf("weir: the store panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// Close gives back all leases, waits for calls under way, and has asks go to next
// from then on. It returns the error of ctx if that ends first, or errors of next;
// what was not given back is lost.
func (l *Leases) Close(ctx context.Context) error {
	errs := make(chan error, len(l.shards))
	for i := range l.shards {
		s := &l.shards[i]
		var backs []*Transaction
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
func (l *Leases) id(t *Transaction) (id uint64, ok bool) {
	if t.Within > 0 || t.Delay > 0 || t.Forget || len(t.Charges) == 0 {
		return 0, false
	}
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || len(c.Key) > maxKey { // a Limiter sends the digest
			return 0, false
		}
		for _, part := range [...]uint64{maphash.String(l.seed, c.Key), maphash.String(l.seed, c.Rule), uint64(c.Limit.Quota), uint64(c.Limit.Period), uint64(c.Cost)} {
			id = (bits.RotateLeft64(id, 21) ^ part) * 0x9e3779b97f4a7c15
		}
	}
	return id, true
}

func (l *Leases) shard(id uint64) *leaseShard {
	hi, _ := bits.Mul64(id, uint64(len(l.shards)))
	return &l.shards[hi]
}
