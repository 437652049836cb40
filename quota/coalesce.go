package quota

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/traced"
)

// Coalesce wraps a store, and combines concurrent calls for the same key into shared calls to the
// wrapped store. While fewer than four calls for the key are in progress, Coalesce forwards a call
// immediately, because a store answers so few calls sooner if they are not combined. Further calls
// wait until one of the four returns, and are then sent together. Coalesce never delays a call just
// to collect more calls. Each caller gets the same decision as if the calls had been made one by
// one. A caller gets an error only if its own transaction fails, or if the shared call fails as a
// whole.
//
// Coalesce therefore at most doubles the time that a call takes, unless more than 1,024 calls are
// waiting ahead of it. If the wrapped store has a single server, and a call to it times out, the
// calls that wait for this call fail with the same error. If a caller's context is done while the
// caller waits, Take returns immediately. If the transaction has not been sent yet, it is dropped;
// otherwise, its units may be spent. A shared call runs with a background context. If
// weirotel.Trace is tracing some of the callers, that context has the context values of the first
// of them. If the wrapped store panics in a shared call, every caller of that call gets an error.
//
// A hash assigns each key to one of 16 shards. Within a shard, calls for different keys also wait
// for each other and are combined. A transaction with several keys belongs to the shard of its
// first key.
//
// If the wrapped store is not an optional.Batcher, Coalesce logs a warning, and forwards each call
// immediately. The stores of packages memstore and redisstore are Batchers. Wrap such a store in
// Coalesce first, and then in Breaker and Fallback. Coalesce panics if next is nil.
func Coalesce(next Store) *CoalescedStore {
	if safe.Nil(next) {
		panic("quota: Coalesce: the store is nil")
	}
	batches, ok := next.(batcher)
	if !ok {
		warnOrder(nil, "Coalesce is around a store without TakeEach, such as another decorator, so it combines no calls")
	}
	return &CoalescedStore{next: next, batcher: batches, seed: maphash.MakeSeed(),
		pool: sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}}
}

const (
	callShards = 16 // the number of shards, and thus the maximum number of shared calls in progress

	mostAlone = 4 // maximum number of calls in progress in a shard that are not shared

	// mostAtOnce is the maximum number of transactions in a shared call. A longer script
	// would delay the other clients of Redis.
	mostAtOnce = 1024
)

// A CoalescedStore is a Store that combines concurrent calls: see Coalesce.
type CoalescedStore struct {
	next    Store
	batcher batcher // next as an optional.Batcher, or nil
	seed    maphash.Seed
	pool    sync.Pool // of *call
	shards  [callShards]callShard

	transactions, calls atomic.Int64 // see CoalesceStats
}

// A callShard holds the calls for the keys that a hash assigns to the shard. At most one shared
// call of a shard is in progress at a time.
type callShard struct {
	mu      sync.Mutex
	alone   int  // how many calls in progress are not shared
	running bool // the method run is sending the waiting calls
	waiting []*call
	_       [64]byte
}

// CoalesceStats contains the statistics of a CoalescedStore. All fields stay 0 if the wrapped store
// is not an optional.Batcher.
type CoalesceStats struct {
	Transactions int64 // transactions passed to Take
	Calls        int64 // calls to the next store for these transactions
}

// Stats returns the statistics since c was created.
func (c *CoalescedStore) Stats() CoalesceStats {
	return CoalesceStats{c.transactions.Load(), c.calls.Load()}
}

// A call is a copy of a transaction that is evaluated together with other transactions.
type call struct {
	ctx  context.Context // the caller's context
	t    Transaction
	err  error
	done chan struct{} // receives a value when t or err contains the result
	gone atomic.Bool   // the caller no longer waits, so the call must not be recycled
}

// Take implements Store.
func (c *CoalescedStore) Take(ctx context.Context, t *Transaction) (err error) {
	if c.batcher == nil || len(t.Charges) == 0 {
		return c.next.Take(ctx, t)
	}
	c.transactions.Add(1)
	sh := c.shard(&t.Charges[0])
	sh.mu.Lock()
	if sh.running || sh.alone >= mostAlone || len(sh.waiting) > 0 {
		sh.mu.Unlock()
		return c.join(ctx, sh, t)
	}
	sh.alone++
	sh.mu.Unlock()
	c.calls.Add(1)
	defer func() { c.leave(ctx, sh, t, err) }() // even if next panics
	return c.next.Take(ctx, t)
}

// Server implements optional.Server if the wrapped store does.
func (c *CoalescedStore) Server(t *Transaction) string {
	if next, ok := c.next.(server); ok {
		return next.Server(t)
	}
	return ""
}

func (c *CoalescedStore) shard(charge *Charge) *callShard {
	h := maphash.String(c.seed, charge.Key) ^ bits.RotateLeft64(maphash.String(c.seed, charge.Rule), 32)
	return &c.shards[h%callShards]
}

// leave ends a call that was not shared.
func (c *CoalescedStore) leave(ctx context.Context, sh *callShard, t *Transaction, err error) {
	if err != nil && callerError(ctx, t) == nil {
		c.failWaiting(sh, t, err)
	}
	sh.mu.Lock()
	sh.alone--
	c.start(sh)
	sh.mu.Unlock()
}

// start starts a goroutine that sends the waiting calls, unless one is running already or too
// many calls are in progress. The caller holds sh.mu.
func (c *CoalescedStore) start(sh *callShard) {
	if len(sh.waiting) > 0 && !sh.running && sh.alone < mostAlone {
		sh.running = true
		go c.run(sh) // ends when no call waits
	}
}

// If the call for t has timed out, failWaiting fails the calls that have waited for it. Another
// attempt would double the time that these take.
func (c *CoalescedStore) failWaiting(sh *callShard, t *Transaction, err error) {
	if !isTimeout(err) || errors.Is(err, ErrBusy) || c.Server(t) != "" { // another server may answer
		return
	}
	sh.mu.Lock()
	failed := sh.waiting
	sh.waiting = nil
	sh.mu.Unlock()
	for _, k := range failed {
		k.err = err
		k.done <- struct{}{}
	}
}

// join waits until t is evaluated together with other transactions.
func (c *CoalescedStore) join(ctx context.Context, sh *callShard, t *Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if b := BudgetOf(ctx); b != nil {
		defer func(begin time.Time) { b.Spend(time.Since(begin)) }(time.Now())
	}
	k := c.pool.Get().(*call)
	k.ctx = ctx
	k.copy(t, ctx.Done() != nil)

	sh.mu.Lock()
	sh.waiting = append(sh.waiting, k)
	c.start(sh) // if a call has just ended
	sh.mu.Unlock()

	select {
	case <-k.done:
	case <-ctx.Done():
		select {
		case <-k.done: // the decision has arrived at the same time
		default:
			k.gone.Store(true)
			return ctx.Err()
		}
	}
	err := k.err
	if err == nil {
		t.SetResult(&k.t.Result)
	}
	clear(k.t.Charges) // releases the memory of keys
	k.ctx, k.err = nil, nil
	c.pool.Put(k)
	return err
}

// copy copies t without its results. If the caller can give up early, copy clones the keys, because
// the caller may then reuse their memory.
func (k *call) copy(t *Transaction, mayGiveUp bool) {
	k.t.SetQuestion(t)
	if mayGiveUp {
		for i := range k.t.Charges {
			k.t.Charges[i].Key = strings.Clone(storedkey.Of(k.t.Charges[i].Key))
		}
	}
}

// run sends the waiting calls of a shard, until no call waits there.
func (c *CoalescedStore) run(sh *callShard) {
	for {
		sh.mu.Lock()
		waiting := sh.waiting
		sh.waiting, sh.running = nil, len(waiting) > 0
		sh.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		for batch := range slices.Chunk(waiting, mostAtOnce) {
			c.decide(sh, batch)
		}
	}
}

// decide sends a batch to the wrapped store, and wakes the callers. If a caller has given up,
// decide drops that caller's call.
func (c *CoalescedStore) decide(sh *callShard, batch []*call) {
	batch = slices.DeleteFunc(batch, func(k *call) bool { return k.gone.Load() })
	if len(batch) == 0 {
		return
	}
	var leader traced.Leader
	ts := make([]*Transaction, len(batch))
	for i, k := range batch {
		leader.Join(k.ctx)
		ts[i] = &k.t
	}
	c.calls.Add(1)
	errs, err := c.takeEach(leader.Context(context.Background()), ts)
	if errs != nil && errs[0] != nil {
		c.failWaiting(sh, ts[0], errs[0])
	}
	for i, k := range batch {
		if k.err = err; err == nil && errs != nil {
			k.err = errs[i]
		}
		k.done <- struct{}{}
	}
}

func (c *CoalescedStore) takeEach(ctx context.Context, ts []*Transaction) (errs []error, err error) {
	_, err = safe.Call("quota: Coalesce: the store panicked", func() error {
		errs = c.batcher.TakeEach(ctx, ts)
		return nil
	})
	if errs != nil && len(errs) != len(ts) {
		return nil, fmt.Errorf("quota: Coalesce: %T.TakeEach returned %d errors for %d transactions",
			c.batcher, len(errs), len(ts))
	}
	return errs, err
}
