package quota

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
)

// HybridOptions are the options for Hybrid. The zero value is ready to use.
type HybridOptions struct {
	// MaxKeys is the maximum number of cached refusals; 0 means 65,536, which take 4 MB.
	MaxKeys int

	// Logger receives a line if the decorators are in the wrong order, and if the wrapped store
	// could report changes but its server cannot; nil means slog.Default().
	Logger *slog.Logger
}

// Hybrid wraps a store and caches its refusals. As long as the wrapped store would still refuse a
// charge that it has refused before, the HybridStore refuses the charge without calling the wrapped
// store. Hybrid panics if next is nil or MaxKeys is negative.
//
// A charge is refused from the cache only if the wrapped store has refused the same cost, with the
// same headroom, for the same key and limit. A cached refusal expires when its RetryAfter has
// passed, counted from the start of the call to the wrapped store. A HybridStore therefore never
// refuses a charge for longer than the wrapped store would. The durations in a Decision from the
// cache may be too long by up to one round trip. Its Remaining is 0 while no unit is available, and
// otherwise −1 (unknown), because another process may have spent the remaining units. For the other
// limits of the transaction, Remaining is also −1.
//
// A refund that is made through this store takes effect immediately. A refund by another process
// usually takes effect within a few milliseconds, if the wrapped store is a redisstore.Store or
// another optional.Tracker, directly or inside Coalesce or Breaker. The HybridStore then has
// Redis report when a key that it refuses from the cache changes. If Redis does not report
// changes, or if the connection is lost, a refusal is cached for at most 10 s.
func Hybrid(next Store, o HybridOptions) *HybridStore {
	switch {
	case safe.Nil(next):
		panic("quota: Hybrid: the store is nil")
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("quota: Hybrid: MaxKeys is %d; want at least 0", o.MaxKeys))
	}
	switch next.(type) {
	case *FallbackStore:
		warnOrder(o.Logger, "Hybrid is around Fallback, so for up to 10 s after an outage it refuses what the second store has refused")
	case watcher:
		warnOrder(o.Logger, "Hybrid is around a store with Hybrid, such as that of package stack, so it saves no calls, "+
			"and refuses for up to 10 s after an outage what the fallback has refused")
	case payer:
		warnOrder(o.Logger, "Hybrid is around a credit.Store, which must be outermost, so granted units do not pay for refusals that Hybrid knows")
	}
	n := cmp.Or(o.MaxKeys, 1<<16)
	start := time.Now()
	h := &HybridStore{next: next, seed: maphash.MakeSeed(), start: start, wall: start.UnixMicro()}
	h.watch = newWatch(next, h, o.Logger)
	h.shards = make([]blockShard, min(64, max(1, n/blockPart)))
	for i := range h.shards {
		part := (n-1)/len(h.shards) + 1
		h.shards[i].most = (part + part/spareBlocks + blockWays - 1) / blockWays
	}
	return h
}

// A HybridStore is a Store that caches refusals: see Hybrid.
type HybridStore struct {
	next   Store
	seed   maphash.Seed
	start  time.Time // instants in blocks are in µs since start, by the monotonic clock
	wall   int64     // start, in µs since 1970
	watch  *watch    // nil if next does not report changes
	shards []blockShard
	misses atomic.Int64
}

func (h *HybridStore) now() int64 { return time.Since(h.start).Microseconds() }

// CacheStats contains the statistics of a store that makes some decisions from memory, without
// calling the wrapped store. The hit rate is Hits / (Hits + Misses).
type CacheStats struct {
	Kind   string // "hybrid" or "lease", the value of the metric label kind
	Hits   int64  // transactions served from memory
	Misses int64  // transactions sent to the next store

	Watched int64 // additional calls by a HybridStore, each to make the store report changes of a key
	Changes int64 // changes that the store has reported
}

// Stats returns the statistics since h was created.
func (h *HybridStore) Stats() CacheStats {
	s := CacheStats{Kind: "hybrid", Misses: h.misses.Load()}
	for i := range h.shards {
		s.Hits += h.shards[i].served.Load()
	}
	if h.watch != nil {
		s.Watched, s.Changes = h.watch.peeks.Load(), h.watch.changes.Load()
	}
	return s
}

// Take implements Store.
func (h *HybridStore) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if t.Mode != ModeForce && t.Mode != ModeForget && h.serve(t) {
		return nil
	}
	h.misses.Add(1)
	var here [8]blockPlace
	places := here[:0]
	for i := range t.Charges {
		s, id, key := h.place(t.plan(i).names, t.Charges[i].Key)
		places = append(places, blockPlace{s, id, s.dropped(), h.watch.version(key)})
	}
	sent := h.now()
	if err := h.next.Take(ctx, t); err != nil {
		return err
	}
	h.remember(t, places, sent, h.now())
	return nil
}

// A blockPlace identifies the place of a charge's block in the cache, if there is a block.
type blockPlace struct {
	shard     *blockShard
	id        uint64
	dropCount uint64 // the shard's drops before the call to next

	version uint16 // the key's version before the call to next: see watch
}

// remember adds the refusals of t to the cache, and removes the blocks whose states t has changed.
// The wrapped store was called at the instant sent, and answered at the instant done.
func (h *HybridStore) remember(t *Transaction, places []blockPlace, sent, done int64) {
	changed := t.Allowed() && t.Mode != ModePeek
	for i := range t.Charges {
		c, d, p := &t.Charges[i], &t.Decisions[i], &places[i]
		switch {
		case changed && (c.Cost != 0 || t.Mode == ModeForget):
			p.shard.drop(p.id)
		case !d.Allowed && d.RetryAfter != Never && c.Cost > 0 && t.plan(i).known:
			flags := uint64(0)
			if t.Within > 0 {
				flags = waited
			}
			hash := hashOf(t.plan(i).hash(h.seed), c, t.Within)
			if b, ok := newBlock(d, hash, t.At.UnixMicro()-done-h.wall, sent, done, p.version, flags); ok {
				b.id = p.id
				p.shard.keep(b, p.dropCount)
			}
		}
	}
}

// serve refuses t, and returns true, if the cache has a refusal of one of its charges.
func (h *HybridStore) serve(t *Transaction) bool {
	now := h.now()
	served := false
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || !t.plan(i).known {
			continue
		}
		s, id, key := h.place(t.plan(i).names, c.Key)
		b := s.published.Load()
		if b == nil || b.id != id {
			copied, found := s.get(id)
			if !found {
				continue
			}
			b = &copied
		}
		if !blockRefuses(b, c, t.plan(i).hash(h.seed), t.Within, now) {
			continue
		}
		if h.watch != nil && (b.version() != h.watch.version(key) || !h.mayRefuse(b, s, c, t, key, now)) {
			continue
		}
		at := b.ahead() + h.wall + now
		if !served {
			served = true
			s.served.Add(1)
			t.unknown(at)
		}
		b.decide(&t.Decisions[i], now, at)
	}
	return served
}

// unknown fills Decisions with placeholders for a given instant. In each of them, Allowed is true
// and Remaining is unknown (-1).
func (t *Transaction) unknown(at int64) {
	t.prepare(at)
	for i := range t.Decisions {
		t.Decisions[i] = Decision{Allowed: true, Remaining: -1, At: at}
	}
}

// blockRefuses reports whether b refuses the charge c now, if the caller is willing to wait for the
// duration within. The hash of the charge's limit is in limit.
func blockRefuses(b *block, c *Charge, limit uint64, within time.Duration, now int64) bool {
	if now >= b.until() {
		return false
	}
	if !b.isFor(hashOf(limit, c, within)) {
		return false
	}
	// The RetryAfter of a queue depends on how long the caller is willing to wait. It is valid only
	// for the same duration, which the hash includes. For other algorithms, RetryAfter is the wait
	// until the charge fits. If the caller is willing to wait until then, the wrapped store must
	// make the decision.
	waits := b.is(waited)
	return (within > 0 || !waits) && (within <= 0 || waitsInQueue(c, within) || time.Duration(b.until()-now)*time.Microsecond > within)
}

// hashOf returns a hash of the limit, the cost, the headroom and the wait of a charge. A block
// refuses only charges for which all four are equal. The hash depends on a secret hash of the
// limit, so clients cannot choose a cost that results in the hash of another charge. Different
// costs under the same limit have different hashes.
func hashOf(limit uint64, c *Charge, within time.Duration) uint64 {
	hash := (limit ^ uint64(c.Cost)) * 0x9e3779b97f4a7c15
	if c.Headroom > 0 {
		hash = (hash ^ hash>>32 ^ uint64(c.Headroom)) * 0xd6e8feb86659fd93
	}
	if waitsInQueue(c, within) {
		hash = (hash ^ hash>>32 ^ uint64(within)) * 0xd6e8feb86659fd93
	}
	return hash
}

// waitsInQueue reports whether the caller is willing to wait, and the algorithm is a Queuer.
func waitsInQueue(c *Charge, within time.Duration) bool {
	if within <= 0 {
		return false
	}
	_, queue := c.Limit.Algorithm.(queuer)
	return queue
}

// place returns the shard and the fingerprint of a state, and the hash of the key. It is given the
// hash of the state's names (see Transaction.Plan).
func (h *HybridStore) place(names uint64, key string) (s *blockShard, id, hash uint64) {
	hash = h.hashKey(key)
	hi, _ := bits.Mul64(hash, uint64(len(h.shards)))
	return &h.shards[hi], max(1, (hash^names)*0x9e3779b97f4a7c15), hash
}

func (h *HybridStore) hashKey(key string) uint64 { return maphash.String(h.seed, storedkey.Of(key)) }
