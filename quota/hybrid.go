package quota

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/storedkey"
)

// HybridOptions are the options for Hybrid. The zero value is ready to use.
type HybridOptions struct {
	// MaxKeys is the maximum number of refusals in the cache; 0 means 65,536, which use 4 MB.
	MaxKeys int
}

// Hybrid wraps a store and caches its refusals. If the wrapped store has refused a charge and would
// still refuse it, the HybridStore refuses it without calling the wrapped store. Hybrid panics if
// next is nil or MaxKeys is negative.
//
// A charge is refused from the cache only if the wrapped store has refused the same cost for the
// same key and limit. A cached refusal expires when its RetryAfter has passed, counted from the
// start of the call to the wrapped store. A HybridStore therefore never refuses a charge for longer
// than the wrapped store would. The durations in a Decision from the cache may be too long by up to
// one round trip. The Decision's Remaining is 0 while no unit is available. Otherwise, it is −1,
// because another process may have spent what was left. For the other limits of the transaction,
// Remaining is also −1.
//
// A refusal is cached for at most 10 s, so a refund by another process takes effect within 10 s. A
// refund that is made through this store takes effect immediately.
func Hybrid(next Store, o HybridOptions) *HybridStore {
	switch {
	case next == nil:
		panic("quota: Hybrid: the store is nil")
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("quota: Hybrid: MaxKeys is %d; want at least 0", o.MaxKeys))
	}
	n := cmp.Or(o.MaxKeys, 1<<16)
	h := &HybridStore{next: next, seed: maphash.MakeSeed(), start: time.Now()}
	h.shards = make([]blocks, min(64, max(1, n/blockPart)))
	for i := range h.shards {
		part := (n-1)/len(h.shards) + 1
		h.shards[i].most = (part + part/9 + blockWays - 1) / blockWays
	}
	return h
}

// A HybridStore is a Store that caches refusals: see Hybrid.
type HybridStore struct {
	next   Store
	seed   maphash.Seed
	start  time.Time // instants of blocks are µs since start, on the monotonic clock
	shards []blocks
	asked  atomic.Int64
}

func (h *HybridStore) now() int64 { return time.Since(h.start).Microseconds() }

// CacheStats contains the statistics of a store that makes some decisions from memory, without
// calling the wrapped store. The hit rate is Hits / (Hits + Misses).
type CacheStats struct {
	Kind   string // "hybrid" or "lease", the value of the metric label kind
	Hits   int64  // transactions decided from memory
	Misses int64  // transactions sent to the next store
}

// Stats returns the statistics collected since Hybrid returned h.
func (h *HybridStore) Stats() CacheStats {
	s := CacheStats{Kind: "hybrid", Misses: h.asked.Load()}
	for i := range h.shards {
		s.Hits += h.shards[i].served.Load()
	}
	return s
}

// BlockedSince returns the time at which the cache began to refuse c, or the zero Time if it does
// not refuse c now.
func (h *HybridStore) BlockedSince(c Charge) time.Time {
	s, id := h.place(c.names(), c.Key)
	if b, found := s.get(id); found && compare.Can(c.Limit.Algorithm) && refuses(&b, &c, hashLimit(h.seed, c.Limit), 0, h.now()) {
		return time.UnixMicro(b.at + b.instant(began))
	}
	return time.Time{}
}

// Take implements Store.
func (h *HybridStore) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if t.Mode != ModeForce && t.Mode != ModeForget && h.serve(t) {
		return nil
	}
	h.asked.Add(1)
	type place struct {
		shard *blocks
		id    uint64
		drops uint64 // of the shard, before next is asked
	}
	var here [8]place
	places := here[:0]
	for i := range t.Charges {
		s, id := h.place(t.Plan(i).Names, t.Charges[i].Key)
		places = append(places, place{s, id, s.dropped()})
	}
	sent := h.now()
	err := h.next.Take(ctx, t)
	if err != nil {
		return err
	}
	done := h.now()
	changed := t.Allowed() && t.Mode != ModePeek
	for i := range t.Charges {
		c, d, p := &t.Charges[i], &t.Decisions[i], &places[i]
		switch {
		case changed && (c.Cost != 0 || t.Mode == ModeForget):
			p.shard.drop(p.id)
		case !d.Allowed && d.RetryAfter != Never && c.Cost > 0 && t.plan(i).known:
			if b, ok := newBlock(d, t.At, sent, done, t.Within > 0); ok {
				b.id = p.id
				b.asked, _ = hash(t.plan(i).hash(h.seed), c, t.Within)
				p.shard.keep(b, p.drops)
			}
		}
	}
	return nil
}

// serve refuses t if one of its charges is known to be refused.
func (h *HybridStore) serve(t *Transaction) bool {
	now := h.now()
	served := false
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 || !t.plan(i).known {
			continue
		}
		s, id := h.place(t.Plan(i).Names, c.Key)
		b := s.published.Load()
		if b == nil || b.id != id {
			copied, found := s.get(id)
			if !found {
				continue
			}
			b = &copied
		}
		if !refuses(b, c, t.plan(i).hash(h.seed), t.Within, now) {
			continue
		}
		if !served {
			served = true
			s.served.Add(1)
			t.unknown(b.at + now)
		}
		b.decide(&t.Decisions[i], now)
	}
	return served
}

// unknown fills Decisions with placeholders, as of the instant at: allowed, Remaining
// unknown (-1).
func (t *Transaction) unknown(at int64) {
	n := len(t.Charges)
	t.Decisions, t.At, t.Wait, t.Granted, t.Undo = slices.Grow(t.Decisions[:0], n)[:n], time.UnixMicro(at), 0, 0, t.Undo[:0]
	for i := range t.Decisions {
		t.Decisions[i] = Decision{Allowed: true, Remaining: -1, At: at}
	}
}

// refuses reports whether the block b refuses the charge c at the time now. The caller is
// willing to wait for within, and limit is the hash of the limit.
func refuses(b *block, c *Charge, limit uint64, within time.Duration, now int64) bool {
	if now >= b.until() {
		return false
	}
	asked, queue := hash(limit, c, within)
	if b.asked != asked {
		return false
	}
	// The RetryAfter of a queue holds only for the same value of within, which the hash
	// includes. The RetryAfter of other algorithms is the wait until the charge fits. If
	// the caller is willing to wait until then, next must decide.
	waits := b.flags()&waited != 0
	return (within > 0 || !waits) && (within <= 0 || queue || time.Duration(b.until()-now)*time.Microsecond > within)
}

// hash returns a hash of what a charge asks for, because a block refuses only charges that ask
// for the same. It begins with a secret hash of the limit, so nobody can choose a cost that has
// the hash of another. Two costs under one limit have different hashes. queue says that the
// algorithm is a Queuer and the caller is willing to wait.
func hash(limit uint64, c *Charge, within time.Duration) (hash uint64, queue bool) {
	hash = (limit ^ uint64(c.Cost)) * 0x9e3779b97f4a7c15
	if within > 0 {
		if _, queue = c.Limit.Algorithm.(Queuer); queue {
			hash = (hash ^ hash>>32 ^ uint64(within)) * 0xd6e8feb86659fd93
		}
	}
	return hash, queue
}

// place returns the shard and the fingerprint of the state of a key.
func (h *HybridStore) place(names uint64, key string) (s *blocks, id uint64) {
	k := maphash.String(h.seed, storedkey.Of(key))
	hi, _ := bits.Mul64(k, uint64(len(h.shards)))
	return &h.shards[hi], max(1, (k^names)*0x9e3779b97f4a7c15)
}
