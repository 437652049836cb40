// Package memstore keeps the states of rate limits in the memory of one
// process. It needs no goroutine and nothing to close.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
)

// Options are ready to use as they are.
type Options struct {
	// MaxKeys is how many states are kept: one for each limit of each key. 0 means
	// 1,048,576. None is lost while there are no more than these, or, if keys have
	// several limits, nine tenths of these. A store has room for a sixth more, and
	// for 8 at least: with MaxKeys 1 it holds 8 states, with 1000 it holds 1168.
	//
	// A state takes about 48 bytes, so that a million are 50 MB; memory grows with
	// use up to that. Logs come on top: 16 to 32 bytes for each charge of the last
	// period, and about 80 for each key.
	MaxKeys int
}

// ErrFull is returned by Take if a new key finds no room, because all states that
// could make room are being limited: more than nine tenths of MaxKeys.
// Like any error of a store it leaves the request to OnError, which by default
// lets it pass.
var ErrFull = errors.New("memstore: full of keys that are being limited")

// Store is a weir.Store. It runs any weir.Algorithm and is safe for concurrent
// use. Its clock is the wall clock. In a bubble of testing/synctest that is the clock of
// the bubble: a Store that has counted outside a bubble panics if it is used inside,
// and the reverse.
//
// Keys are known by a seeded 64-bit hash and are not kept. That any two of a
// million states are taken for one by accident has a probability of one in 37
// million, 10^12/2^65; of ten million, one in 370,000. A client can't bring it
// about, because the seed is secret. The names of rule, limit and algorithm add
// nothing to it: two keys that differ in their hash differ under every limit.
//
// When the table is full, a new key takes the place of one that is as good as
// new; else of one that has units left; else of one that has none left. Among
// equals the one that is good as new soonest goes. A key that was refused stays
// until it is as good as new, whatever else comes.
type Store struct {
	clock  clock
	seed   maphash.Seed
	shards []shard
}

const (
	maxShards = 256

	// All limits of a key are in one shard, so that chance fills shards more
	// unevenly, the fewer keys they have. With 24 limits each these are 680 keys:
	// that one shard gets a quarter more than its part of them happens once in
	// 10^9 stores.
	minShardKeys = 16_384
)

// New returns an empty store. It panics if MaxKeys is negative.
func New(o Options) *Store {
	switch {
	case o.MaxKeys < 0:
		panic(fmt.Sprintf("memstore: MaxKeys is %d", o.MaxKeys))
	case o.MaxKeys == 0:
		o.MaxKeys = 1 << 20
	}
	n := min(maxShards, max(1, o.MaxKeys/minShardKeys))
	s := &Store{seed: maphash.MakeSeed(), shards: make([]shard, n)}
	for i := range s.shards {
		s.shards[i].most = bucketsFor((o.MaxKeys + n - 1) / n)
	}
	return s
}

// Take implements weir.Store. It returns ErrFull, the error of ctx, or what
// Transaction.Validate finds, and then has spent nothing.
func (s *Store) Take(ctx context.Context, t *weir.Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	switch len(t.Charges) {
	case 0:
		t.Decide(s.clock.now(), nil)
		return nil
	case 1:
		return s.takeOne(t)
	}
	return s.takeAll(t)
}

func (s *Store) takeOne(t *weir.Transaction) error {
	k, id := s.locate(&t.Charges[0])
	sh := &s.shards[k]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.clock.now()
	sl := sh.table.find(id)
	states := sh.room(1)
	sh.load(&states[0], sl, id, now)
	if !t.Decide(now, states) {
		sl.refused(&t.Decisions[0], now)
		return nil
	}
	if t.Forget {
		sh.forget(sl)
		return nil
	}
	if t.Charges[0].Cost == 0 {
		return nil
	}
	if sl == nil && t.Decisions[0].ResetAfter > 0 {
		if sl = sh.add(id, now, nil); sl == nil {
			return ErrFull
		}
	}
	sh.save(sl, id, now, &states[0], &t.Decisions[0])
	return nil
}

// inline is how many charges need no memory of their own.
const inline = 24

// takeAll decides several charges under the locks of all shards they touch,
// taken in one order.
func (s *Store) takeAll(t *weir.Transaction) error {
	var (
		idsHere   [inline]uint64
		homesHere [inline]int
		lockHere  [inline]int
	)
	ids, homes := idsHere[:0], homesHere[:0] // the fingerprint and the shard of each charge
	for i := range t.Charges {
		k, id := s.locate(&t.Charges[i])
		ids, homes = append(ids, id), append(homes, k)
	}
	lock := append(lockHere[:0], homes...)
	slices.Sort(lock)
	lock = slices.Compact(lock)
	for _, k := range lock {
		s.shards[k].mu.Lock()
	}
	defer func() {
		for _, k := range lock {
			s.shards[k].mu.Unlock()
		}
	}()

	now := s.clock.now()
	states := s.shards[lock[0]].room(len(ids))
	for i, id := range ids {
		sh := &s.shards[homes[i]]
		sh.load(&states[i], sh.table.find(id), id, now)
	}
	if !t.Decide(now, states) {
		for i, id := range ids {
			s.shards[homes[i]].table.find(id).refused(&t.Decisions[i], now)
		}
		return nil
	}
	if t.Forget {
		for i, id := range ids {
			sh := &s.shards[homes[i]]
			sh.forget(sh.table.find(id))
		}
		return nil
	}
	// First room for all, then the states: where there is none nothing is done,
	// and a slot that was added holds nothing yet, and so is free.
	for i, id := range ids {
		sh := &s.shards[homes[i]]
		if t.Charges[i].Cost != 0 && t.Decisions[i].ResetAfter > 0 && sh.table.find(id) == nil && sh.add(id, now, ids) == nil {
			return ErrFull
		}
	}
	for i, id := range ids {
		if t.Charges[i].Cost != 0 {
			sh := &s.shards[homes[i]]
			sh.save(sh.table.find(id), id, now, &states[i], &t.Decisions[i])
		}
	}
	return nil
}

// locate returns the shard of a charge, which depends on its key alone, and
// the fingerprint of its state: of key, rule, limit and algorithm. It is never
// 0, which marks a free slot.
func (s *Store) locate(c *weir.Charge) (k int, id uint64) {
	id = maphash.String(s.seed, weir.StoredKey(c.Key))
	k = index(id, len(s.shards))
	id = mix(id, c.Rule)
	if c.Limit.Name != "" {
		id = mix(id, c.Limit.Name)
	} else { // its stored name
		var b [period.Size]byte
		id = mix(id, period.Append(b[:0], c.Limit.Period))
	}
	id = mix(id, c.Limit.Algorithm.Name())
	return k, max(id, 1)
}

// mix adds a string to a hash that is secret already: the strings are the
// program's own, so that it may be simpler than what keys need.
// Two hashes that differ do so afterwards: each step can be undone.
func mix[S string | []byte](h uint64, s S) uint64 {
	h ^= uint64(len(s))
	for ; len(s) > 8; s = s[8:] {
		h = scramble(h ^ word(s[:8]))
	}
	return scramble(h ^ word(s))
}

// scramble spreads every bit over all: one multiplication spreads the upper ones,
// in which the last letters of names differ, hardly at all.
func scramble(h uint64) uint64 {
	h *= 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// word returns up to 8 bytes as a number; with its length it is unambiguous.
func word[S string | []byte](s S) uint64 {
	if len(s) == 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	var w uint64
	for i := range len(s) {
		w = w<<8 | uint64(s[i])
	}
	return w
}

// index maps a hash to one of n places.
func index(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}
