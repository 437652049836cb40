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
	switch n := len(t.Charges); {
	case n == 1:
		return s.takeOne(t)
	case n == 0:
		t.Decide(s.clock.now(), nil)
		return nil
	case n <= few:
		var lanes [few]lane
		return s.takeAll(t, lanes[:n])
	case n <= inline:
		var lanes [inline]lane
		return s.takeAll(t, lanes[:n])
	default:
		return s.takeAll(t, make([]lane, n))
	}
}

// takeOne decides one charge. The clock is read before the lock is taken, so that
// nobody waits for that.
func (s *Store) takeOne(t *weir.Transaction) error {
	c, p := &t.Charges[0], t.Plan(0)
	h := s.hash(c.Key)
	id, sh := fingerprint(h, p.Names), &s.shards[index(h, len(s.shards))]
	now := sh.lock(s.clock.now())
	sl := sh.table.find(id)
	if atOnce(t) && meters(p, c) && readable(sl, p) {
		return sh.takeMeter(t, p, sl, id, now)
	}
	defer sh.mu.Unlock()
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
	if c.Cost == 0 {
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

// How many charges need no memory of their own. To clear that takes time as well.
const (
	few    = 6
	inline = 24
)

// A lane is a charge of several that are decided together.
type lane struct {
	id    uint64 // the fingerprint of its state
	shard int
	slot  *slot // nil if it has none
	debt
}

// takeAll decides several charges under the locks of all shards they touch,
// taken in one order.
func (s *Store) takeAll(t *weir.Transaction, lanes []lane) error {
	var h uint64
	for i := range lanes {
		c, ln := &t.Charges[i], &lanes[i]
		if i == 0 || c.Key != t.Charges[i-1].Key {
			h = s.hash(c.Key)
		}
		ln.id, ln.shard = fingerprint(h, t.Plan(i).Names), index(h, len(s.shards))
	}
	var lockHere [inline]int
	lock := append(lockHere[:0], lanes[0].shard)
	for i := range lanes {
		if k := lanes[i].shard; k != lock[len(lock)-1] {
			lock = append(lock, k)
		}
	}
	slices.Sort(lock)
	lock = slices.Compact(lock)
	now := s.clock.now()
	for _, k := range lock {
		now = s.shards[k].lock(now)
	}
	defer func() {
		for _, k := range lock {
			s.shards[k].last = now
			s.shards[k].mu.Unlock()
		}
	}()
	return s.decide(t, lanes, now)
}

// decide decides several charges under the locks of their shards.
func (s *Store) decide(t *weir.Transaction, lanes []lane, now int64) error {
	metered := atOnce(t)
	for i := range lanes {
		ln, p := &lanes[i], t.Plan(i)
		ln.slot = s.shards[ln.shard].table.find(ln.id)
		metered = metered && meters(p, &t.Charges[i]) && readable(ln.slot, p)
	}
	if metered {
		return s.takeMeters(t, lanes, now)
	}
	states := s.shards[lanes[0].shard].room(len(lanes))
	for i := range lanes {
		ln := &lanes[i]
		s.shards[ln.shard].load(&states[i], ln.slot, ln.id, now)
	}
	if !t.Decide(now, states) {
		for i := range lanes {
			lanes[i].slot.refused(&t.Decisions[i], now)
		}
		return nil
	}
	if t.Forget {
		for i := range lanes {
			s.shards[lanes[i].shard].forget(lanes[i].slot)
		}
		return nil
	}
	if !s.addAll(t, lanes, now) {
		return ErrFull
	}
	for i := range lanes {
		if ln := &lanes[i]; t.Charges[i].Cost != 0 {
			s.shards[ln.shard].save(ln.slot, ln.id, now, &states[i], &t.Decisions[i])
		}
	}
	return nil
}

// addAll gives a slot to each state that is to be remembered and has none, or
// reports that there is no room. Nothing is done then: a slot that was added holds
// nothing yet, and so is free.
func (s *Store) addAll(t *weir.Transaction, lanes []lane, now int64) bool {
	lacks := func(i int) bool {
		return lanes[i].slot == nil && t.Charges[i].Cost != 0 && t.Decisions[i].ResetAfter > 0
	}
	first := 0
	for ; first < len(lanes) && !lacks(first); first++ {
	}
	if first == len(lanes) {
		return true
	}
	var idsHere [inline]uint64
	ids := idsHere[:0]
	for i := range lanes {
		ids = append(ids, lanes[i].id)
	}
	for i := first; i < len(lanes); i++ {
		if lacks(i) && s.shards[lanes[i].shard].add(lanes[i].id, now, ids) == nil {
			return false
		}
	}
	for i := range lanes { // which may have moved for others
		lanes[i].slot = s.shards[lanes[i].shard].table.find(lanes[i].id)
	}
	return true
}

// hash returns the hash of a key. It alone says which shard has the limits of the key.
func (s *Store) hash(key string) uint64 { return maphash.String(s.seed, weir.StoredKey(key)) }

// fingerprint returns the fingerprint of a state, of the hash of its key and that of
// its names. Two keys that differ in their hash differ in it: an odd factor has an
// inverse. It is never 0, which marks a free slot.
func fingerprint(h, names uint64) uint64 { return max((h^names)*0x9e3779b97f4a7c15, 1) }

// index maps a hash to one of n places.
func index(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}
