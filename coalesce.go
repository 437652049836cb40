package weir

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
)

// A Batcher is a Store that decides many transactions for about the price of
// one: in one round trip, and like ones in one step.
type Batcher interface {
	// TakeEach decides ts as if Take were called for one after the other, each
	// all or nothing by itself. It returns nil, or an error for each, nil for
	// those that were decided.
	TakeEach(ctx context.Context, ts []*Transaction) []error
}

// Coalesce has concurrent asks for a hot key share calls of next. An ask goes to
// next at once, on its own goroutine, unless another of its key is under way;
// those that come meanwhile go together when that one is back, in the order in
// which they came. Nothing waits for company: there is no timer. Each gets the
// decision that it would have had in its turn, and an error only if its own
// transaction has one, or the call that it shared.
//
// So an ask takes the time of two calls at most, unless more than 1,024 wait
// before it. Whoever hangs up gets the error of ctx at once and harms nobody: what
// has not gone is dropped, what has may be spent. Calls that are shared end in
// next's own time, not with the context of one who asks, and have none of its
// values. A next that panics in one is an error of all who share it.
//
// A lane is shared by all keys whose hash puts them there, and under pressure their
// asks go together too. A transaction of several keys goes by its first charge.
//
// It works for a next that is a Batcher, as those of memstore and redisstore are,
// and otherwise returns next as it is. So it stands right before the store, behind
// Breaker and Fallback. Coalesce panics if next is nil.
func Coalesce(next Store) Store {
	if next == nil {
		panic("weir: Coalesce: the store is nil")
	}
	batcher, ok := next.(Batcher)
	if !ok {
		return next
	}
	return &coalesced{next: next, batcher: batcher, seed: maphash.MakeSeed(),
		pool: sync.Pool{New: func() any { return &joined{done: make(chan struct{}, 1)} }}}
}

const (
	lanes      = 16   // calls under way at once
	mostAtOnce = 1024 // transactions of a call: a script must not hold up others for long
)

type coalesced struct {
	next    Store
	batcher Batcher
	seed    maphash.Seed
	pool    sync.Pool // of *joined
	lanes   [lanes]lane
}

// A lane has one call under way at a time.
type lane struct {
	mu      sync.Mutex
	busy    bool
	waiting []*joined
	_       [64]byte
}

// A joined ask is the copy of a transaction that goes with others: who asked for
// it may leave.
type joined struct {
	t     Transaction
	err   error
	state atomic.Int32
	done  chan struct{}
}

// A joined ask is undecided until it is either decided or left. Who decides it
// hands it back to who asked; who leaves it leaves it to the decider.
const (
	undecided = iota
	decided
	left
)

// Take implements Store.
func (c *coalesced) Take(ctx context.Context, t *Transaction) error {
	if len(t.Charges) == 0 {
		return c.next.Take(ctx, t)
	}
	l := c.lane(&t.Charges[0])
	l.mu.Lock()
	if l.busy {
		l.mu.Unlock()
		return c.join(ctx, l, t)
	}
	l.busy = true
	l.mu.Unlock()
	defer c.leave(l) // even if next panics
	return c.next.Take(ctx, t)
}

func (c *coalesced) lane(charge *Charge) *lane {
	h := maphash.String(c.seed, charge.Key) ^ bits.RotateLeft64(maphash.String(c.seed, charge.Rule), 32)
	return &c.lanes[h%lanes]
}

// leave ends the call of a lone ask.
func (c *coalesced) leave(l *lane) {
	l.mu.Lock()
	l.busy = len(l.waiting) > 0
	busy := l.busy
	l.mu.Unlock()
	if busy {
		go c.run(l) // it ends when nobody waits
	}
}

// join waits for a call that t shares with others.
func (c *coalesced) join(ctx context.Context, l *lane, t *Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	j := c.pool.Get().(*joined)
	j.copy(t, ctx.Done() != nil)

	l.mu.Lock()
	l.waiting = append(l.waiting, j)
	alone := !l.busy // since a moment
	l.busy = true
	l.mu.Unlock()
	if alone {
		go c.run(l)
	}

	select {
	case <-j.done:
	case <-ctx.Done():
		if j.state.CompareAndSwap(undecided, left) {
			return ctx.Err()
		}
		<-j.done
	}
	err := j.err
	if err == nil {
		t.Decisions = append(t.Decisions[:0], j.t.Decisions...)
		t.At, t.Wait, t.Undo = j.t.At, j.t.Wait, append(t.Undo[:0], j.t.Undo...)
	}
	c.release(j)
	return err
}

// copy takes what t asks. Where who asks may leave, it may also use the memory of
// its keys again.
func (j *joined) copy(t *Transaction, mayLeave bool) {
	j.t.Charges = append(j.t.Charges, t.Charges...)
	if mayLeave {
		for i := range j.t.Charges {
			j.t.Charges[i].Key = strings.Clone(StoredKey(j.t.Charges[i].Key))
		}
	}
	j.t.Undo = append(j.t.Undo[:0], t.Undo...)
	j.t.Within, j.t.Delay, j.t.Forget = t.Within, t.Delay, t.Forget
}

func (c *coalesced) release(j *joined) {
	clear(j.t.Charges) // they hold keys
	j.t.Charges = j.t.Charges[:0]
	j.err = nil
	j.state.Store(undecided)
	c.pool.Put(j)
}

// run decides what waits in a lane until nothing does.
func (c *coalesced) run(l *lane) {
	var now []*joined
	var ts []*Transaction
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		now, l.waiting = l.waiting, now[:0]
		l.mu.Unlock()
		for rest := now; len(rest) > 0; {
			n := min(len(rest), mostAtOnce)
			ts = c.decide(rest[:n], ts)
			rest = rest[n:]
		}
		clear(now) // they are somebody else's by now
	}
}

// decide has next decide a batch and hands out what it says. ts is memory to use.
func (c *coalesced) decide(batch []*joined, ts []*Transaction) []*Transaction {
	ts = ts[:0]
	here := batch[:0]
	for _, j := range batch {
		if j.state.Load() == left {
			c.release(j)
			continue
		}
		here = append(here, j)
		ts = append(ts, &j.t)
	}
	if len(ts) == 0 {
		return ts
	}
	errs, err := c.takeEach(ts)
	for i, j := range here {
		switch {
		case err != nil:
			j.err = err
		case errs != nil:
			j.err = errs[i]
		}
		if j.state.CompareAndSwap(undecided, decided) {
			j.done <- struct{}{}
		} else {
			c.release(j)
		}
	}
	clear(ts)
	return ts
}

// takeEach turns a panic into an error: on this goroutine it would end the
// process.
func (c *coalesced) takeEach(ts []*Transaction) (errs []error, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("weir: Coalesce: the store panicked: %v\n%s", p, debug.Stack())
		}
	}()
	errs = c.batcher.TakeEach(context.Background(), ts)
	if errs != nil && len(errs) != len(ts) {
		return nil, fmt.Errorf("weir: Coalesce: %T.TakeEach returned %d errors for %d transactions", c.batcher, len(errs), len(ts))
	}
	return errs, nil
}
