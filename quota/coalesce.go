package quota

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/traced"
)

// Coalesce wraps a store, and combines concurrent calls for the same key into shared calls to the
// wrapped store. If no other call for the key is in progress, a call is passed on immediately.
// Further calls wait until that call returns, and are then sent together immediately. Coalesce
// never delays a call just to collect more of them. Each caller gets the same decision as if the
// calls had been made one by one, in order of arrival. A caller gets an error only if its own
// transaction fails, or if the shared call fails as a whole.
//
// Coalesce therefore at most doubles the time that a call takes, unless more than 1,024 calls are
// waiting ahead of it. If a caller's context is done while the caller waits, Take returns
// immediately. A transaction that has not been sent yet is then dropped; otherwise, its units may
// be spent. A shared call runs with a background context. If weirotel.Trace is tracing any of the
// callers, the background context carries the context values of the first such caller. If the
// wrapped store panics in a shared call, every caller of that call gets an error.
//
// Keys are distributed over 16 queues by hash. Within a queue, calls for different keys also wait
// for each other and are combined. A transaction with several keys joins the queue of its first
// key.
//
// If the wrapped store is not a Batcher, each call is passed to it immediately. The stores in
// packages memstore and redisstore are Batchers. Wrap such a store in Coalesce first, and then in
// Breaker and Fallback. Coalesce panics if next is nil.
func Coalesce(next Store) *CoalescedStore {
	if next == nil {
		panic("quota: Coalesce: the store is nil")
	}
	batcher, _ := next.(Batcher)
	return &CoalescedStore{next: next, batcher: batcher, seed: maphash.MakeSeed(),
		pool: sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}}
}

const (
	lanes = 16 // the most shared calls at once

	// mostAtOnce is the most transactions of a shared call. A longer script would delay the
	// other clients of Redis.
	mostAtOnce = 1024
)

// A CoalescedStore is a Store that combines concurrent calls: see Coalesce.
type CoalescedStore struct {
	next    Store
	batcher Batcher // nil if next is none
	seed    maphash.Seed
	pool    sync.Pool // of *call
	lanes   [lanes]lane
	shared  atomic.Int64 // how many calls were shared
}

// A lane is the queue of the keys whose hashes lead to it. It has one call under way at a
// time.
type lane struct {
	mu      sync.Mutex
	busy    bool
	waiting []*call
	stats   CoalesceStats // without the shared calls
	_       [64]byte
}

// CoalesceStats contains the statistics of a CoalescedStore. All fields stay 0 if the wrapped store
// is not a Batcher.
type CoalesceStats struct {
	Transactions int64 // transactions passed to Take
	Calls        int64 // calls to the next store for these transactions
}

// Stats returns the statistics collected since Coalesce returned c.
func (c *CoalescedStore) Stats() CoalesceStats {
	s := CoalesceStats{Calls: c.shared.Load()}
	for i := range c.lanes {
		l := &c.lanes[i]
		l.mu.Lock()
		s.Transactions += l.stats.Transactions
		s.Calls += l.stats.Calls
		l.mu.Unlock()
	}
	return s
}

// A call is a copy of a transaction that is decided together with other transactions. The
// caller may give the call up.
type call struct {
	ctx   context.Context // of the caller
	t     Transaction
	err   error
	state atomic.Int32
	done  chan struct{}
}

// The states of a call. The first CompareAndSwap out of pending decides who recycles the
// call: the caller if the call is done, the runner if the caller has given up.
const (
	pending = iota
	done
	abandoned
)

// Take implements Store.
func (c *CoalescedStore) Take(ctx context.Context, t *Transaction) error {
	if c.batcher == nil || len(t.Charges) == 0 {
		return c.next.Take(ctx, t)
	}
	l := c.lane(&t.Charges[0])
	l.mu.Lock()
	l.stats.Transactions++
	if l.busy {
		l.mu.Unlock()
		return c.join(ctx, l, t)
	}
	l.busy = true
	l.stats.Calls++
	l.mu.Unlock()
	defer c.leave(l) // even if next panics
	return c.next.Take(ctx, t)
}

func (c *CoalescedStore) lane(charge *Charge) *lane {
	h := maphash.String(c.seed, charge.Key) ^ bits.RotateLeft64(maphash.String(c.seed, charge.Rule), 32)
	return &c.lanes[h%lanes]
}

// leave ends a call that was not shared.
func (c *CoalescedStore) leave(l *lane) {
	l.mu.Lock()
	l.busy = len(l.waiting) > 0
	busy := l.busy
	l.mu.Unlock()
	if busy {
		go c.run(l) // it ends when no call waits
	}
}

// join decides t together with other transactions.
func (c *CoalescedStore) join(ctx context.Context, l *lane, t *Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	k := c.pool.Get().(*call)
	k.ctx = ctx
	k.copy(t, ctx.Done() != nil)

	l.mu.Lock()
	l.waiting = append(l.waiting, k)
	alone := !l.busy // the call under way has just ended
	l.busy = true
	l.mu.Unlock()
	if alone {
		go c.run(l)
	}

	select {
	case <-k.done:
	case <-ctx.Done():
		if k.state.CompareAndSwap(pending, abandoned) {
			return ctx.Err()
		}
		<-k.done
	}
	err := k.err
	if err == nil {
		t.SetResult(&k.t.Result)
	}
	c.release(k)
	return err
}

// copy copies the question of t. If the caller can give up early,
// keys are cloned, because the caller may then reuse the memory of its keys.
func (k *call) copy(t *Transaction, mayGiveUp bool) {
	k.t.SetQuestion(t)
	if mayGiveUp {
		for i := range k.t.Charges {
			k.t.Charges[i].Key = strings.Clone(storedkey.Of(k.t.Charges[i].Key))
		}
	}
}

func (c *CoalescedStore) release(k *call) {
	clear(k.t.Charges) // they hold keys
	k.ctx, k.err = nil, nil
	k.state.Store(pending)
	c.pool.Put(k)
}

// run decides the calls that wait in a lane, until no call waits there.
func (c *CoalescedStore) run(l *lane) {
	var now []*call
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
		clear(now) // the calls are recycled
	}
}

// decide has next decide a batch, and wakes the callers. It reuses the memory of the slice
// ts, and returns the slice.
func (c *CoalescedStore) decide(batch []*call, ts []*Transaction) []*Transaction {
	ts = ts[:0]
	here := batch[:0]
	var leader traced.Leader
	for _, k := range batch {
		if k.state.Load() == abandoned {
			c.release(k)
			continue
		}
		here = append(here, k)
		leader.Join(k.ctx)
		ts = append(ts, &k.t)
	}
	if len(ts) == 0 {
		return ts
	}
	c.shared.Add(1)
	errs, err := c.takeEach(leader.Context(context.Background()), ts)
	for i, k := range here {
		switch {
		case err != nil:
			k.err = err
		case errs != nil:
			k.err = errs[i]
		}
		if k.state.CompareAndSwap(pending, done) {
			k.done <- struct{}{}
		} else {
			c.release(k)
		}
	}
	clear(ts)
	return ts
}

func (c *CoalescedStore) takeEach(ctx context.Context, ts []*Transaction) (errs []error, err error) {
	_, err = panics.Call("quota: Coalesce: the store panicked", func() error {
		errs = c.batcher.TakeEach(ctx, ts)
		return nil
	})
	if errs != nil && len(errs) != len(ts) {
		return nil, fmt.Errorf("quota: Coalesce: %T.TakeEach returned %d errors for %d transactions", c.batcher, len(errs), len(ts))
	}
	return errs, err
}
