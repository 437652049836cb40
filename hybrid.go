package weir

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/period"
)

// Hybrid serves refusals from the memory of this process while a key is being limited, and
// asks next otherwise. A client that goes on after its limit then costs next nothing until
// its next unit is free. At most maxKeys refusals are remembered; 0 means 65,536, which
// take some 16 MB. It panics if maxKeys is negative.
//
// It refuses only what next would refuse: the same cost under the same limit, before
// RetryAfter. If nothing is left the whole decision is exact. Otherwise Remaining is −1,
// because another process may spend what is left; it is −1 as well for the other limits of
// the transaction. A cached refusal never outlives the real one: it is timed from before
// next was asked, and its durations are too long by one round trip at most. It is kept for
// at most 10 s, so units given back through another process are noticed after that. Units
// given back through this store are noticed at once.
func Hybrid(next Store, maxKeys int) *HybridStore {
	switch {
	case next == nil:
		panic("weir: Hybrid: the store is nil")
	case maxKeys < 0:
		panic(fmt.Sprintf("weir: Hybrid: maxKeys is %d", maxKeys))
	case maxKeys == 0:
		maxKeys = 1 << 16
	}
	h := &HybridStore{next: next, seed: maphash.MakeSeed(), start: time.Now()}
	h.shards = make([]blocks, min(64, maxKeys))
	for i := range h.shards {
		h.shards[i].most = (maxKeys + len(h.shards) - 1) / len(h.shards)
		h.shards[i].known = map[uint64]block{}
	}
	return h
}

// recheck is how long a refusal is served before next is asked again.
const recheck = 10 * time.Second

// A HybridStore is what Hybrid returns.
type HybridStore struct {
	next          Store
	seed          maphash.Seed
	start         time.Time // instants are µs since then, on the monotonic clock
	shards        []blocks
	served, asked atomic.Uint64
}

// A block is the refusal of a charge. Its instants are in µs since HybridStore.start, but
// for since.
type block struct {
	algorithm          Algorithm // calendars of several time zones have the same name
	quota, burst, cost int64
	period             time.Duration
	within             time.Duration // how long the refused caller would have waited
	at                 int64         // the store's clock at start
	since              int64         // the store's clock when the block began
	until              int64         // the block is served before
	none               int64         // nothing is left before; 0 if that is unknown
	fits, next, reset  int64         // when RetryAfter, NextAfter and ResetAfter are over
}

// blocks is a shard of blocks, by the fingerprint of rule, key, limit and algorithm.
type blocks struct {
	mu    sync.Mutex
	most  int
	known map[uint64]block
	drops uint64 // how many were dropped: an answer to an earlier question is then void
	_     [64]byte
}

func (h *HybridStore) now() int64 { return time.Since(h.start).Microseconds() }

// Stats returns how many transactions were decided from memory, and how many by the
// store behind. hits divided by both is the hit rate.
func (h *HybridStore) Stats() (hits, misses uint64) { return h.served.Load(), h.asked.Load() }

// BlockedSince returns when memory began to refuse a charge, or the zero Time if it does
// not.
func (h *HybridStore) BlockedSince(c Charge) time.Time {
	if b, ok := h.lookup(h.id(&c), &c, 0, h.now()); ok {
		return time.UnixMicro(b.since)
	}
	return time.Time{}
}

// Take implements Store.
func (h *HybridStore) Take(ctx context.Context, t *Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if !t.Forget && h.serve(t) {
		h.served.Add(1)
		return nil
	}
	h.asked.Add(1)
	var dropsHere [8]uint64
	drops := dropsHere[:0]
	for i := range t.Charges {
		drops = append(drops, h.shard(h.id(&t.Charges[i])).dropped())
	}
	sent := h.now()
	err := h.next.Take(ctx, t)
	if err != nil {
		return err
	}
	answered := h.now()
	allowed := t.Allowed()
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		id := h.id(c)
		switch {
		case allowed && (c.Cost != 0 || t.Forget):
			h.shard(id).drop(id)
		case !d.Allowed && d.RetryAfter != Never && c.Cost > 0 && reflect.TypeOf(c.Limit.Algorithm).Comparable():
			h.shard(id).keep(id, drops[i], newBlock(c, d, t, sent, answered))
		}
	}
	return nil
}

func newBlock(c *Charge, d *Decision, t *Transaction, sent, answered int64) block {
	at := t.At.UnixMicro()
	b := block{
		algorithm: c.Limit.Algorithm,
		quota:     c.Limit.Quota, burst: c.Limit.Burst, period: c.Limit.Period, cost: c.Cost,
		within: max(0, t.Within),
		at:     at - answered, since: at,
		until: sent + min(d.RetryAfter, recheck).Microseconds(),
		fits:  answered + d.RetryAfter.Microseconds(),
		next:  answered + d.NextAfter.Microseconds(),
		reset: answered + d.ResetAfter.Microseconds(),
	}
	if d.Remaining == 0 {
		b.none = sent + d.NextAfter.Microseconds()
	}
	return b
}

// serve refuses t if one of its charges is known to be refused.
func (h *HybridStore) serve(t *Transaction) bool {
	now := h.now()
	first := true
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 {
			continue
		}
		b, ok := h.lookup(h.id(c), c, t.Within, now)
		if !ok {
			continue
		}
		if first {
			first = false
			t.At = time.UnixMicro(b.at + now)
			t.unknown()
		}
		t.Decisions[i] = b.decision(now)
	}
	return !first
}

// unknown fills Decisions with placeholders: allowed, Remaining unknown (-1).
func (t *Transaction) unknown() {
	n := len(t.Charges)
	if cap(t.Decisions) < n {
		t.Decisions = make([]Decision, n)
	}
	t.Decisions, t.Wait, t.Undo = t.Decisions[:n], 0, t.Undo[:0]
	for i := range t.Decisions {
		t.Decisions[i] = Decision{Allowed: true, Remaining: -1, At: t.At.UnixMicro()}
	}
}

func (b *block) decision(now int64) Decision {
	after := func(instant int64) time.Duration { return time.Duration(instant-now) * time.Microsecond }
	d := Decision{At: b.at + now, Remaining: -1, RetryAfter: after(b.fits), NextAfter: after(b.fits), ResetAfter: after(b.reset)}
	if now < b.none {
		d.Remaining, d.NextAfter = 0, after(b.next)
	}
	return d
}

// lookup returns the block of a charge. ok says whether it refuses the charge at now, for a
// caller that accepts to wait for within.
func (h *HybridStore) lookup(id uint64, c *Charge, within time.Duration, now int64) (block, bool) {
	s := h.shard(id)
	s.mu.Lock()
	b, ok := s.known[id]
	s.mu.Unlock()
	l := &c.Limit
	return b, ok && now < b.until && b.cost == c.Cost && b.quota == l.Quota && b.burst == l.Burst && b.period == l.Period &&
		b.algorithm == l.Algorithm && b.refuses(l, within, now)
}

// refuses reports whether the block holds for a caller that accepts to wait for within. The
// RetryAfter of a queue is true only for the same within; that of other algorithms is when
// the charge fits.
func (b *block) refuses(l *Limit, within time.Duration, now int64) bool {
	if _, queue := l.Algorithm.(Queuer); queue || within <= 0 {
		return max(0, within) == b.within
	}
	return time.Duration(b.until-now)*time.Microsecond > within
}

func (s *blocks) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops
}

func (s *blocks) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, id)
	s.drops++
}

// keep remembers a block, unless one was dropped since the store was asked.
func (s *blocks) keep(id, drops uint64, b block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops != drops {
		return
	}
	if old, ok := s.known[id]; ok {
		b.since = old.since
	} else if len(s.known) >= s.most {
		s.makeRoom(b.until)
	}
	s.known[id] = b
}

// makeRoom forgets the block that ends first among eight. A forgotten block costs one call
// of next.
func (s *blocks) makeRoom(until int64) {
	var soonest uint64
	looked := 0
	for id, b := range s.known {
		if looked == 0 || b.until < until {
			soonest, until = id, b.until
		}
		if looked++; looked == 8 {
			break
		}
	}
	delete(s.known, soonest)
}

func (h *HybridStore) shard(id uint64) *blocks {
	hi, _ := bits.Mul64(id, uint64(len(h.shards)))
	return &h.shards[hi]
}

// id returns the fingerprint of a charge's state.
func (h *HybridStore) id(c *Charge) uint64 {
	var name uint64
	if l := &c.Limit; l.Name != "" {
		name = maphash.String(h.seed, l.Name)
	} else {
		var b [period.Size]byte
		name = maphash.Bytes(h.seed, period.Append(b[:0], l.Period))
	}
	id := maphash.String(h.seed, StoredKey(c.Key))
	for _, part := range [...]uint64{maphash.String(h.seed, c.Rule), name, maphash.String(h.seed, c.Limit.Algorithm.Name())} {
		id = bits.RotateLeft64(id, 21)*0x9e3779b97f4a7c15 + part
	}
	return id
}
