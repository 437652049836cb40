// Package memstore keeps the state of rate limits in the memory of a single process.
//
//	limit := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), algorithms.GCRA(100, time.Minute))
//
// Several Limiters can share a store, because rules with different names count separately. A store
// starts no goroutines and does not need to be closed.
//
// # Bounds
//
// Options.MaxKeys bounds the store's memory, however many keys clients make up. When the store is
// full, a new key replaces a key that has not been refused, preferably one whose whole quota is
// available. A key that has been refused is kept until its whole quota is available again. If no
// key can be replaced, Take returns [quota.ErrFull].
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// Options are the options for New. The zero value is ready to use.
type Options struct {
	// MaxKeys is the number of states that the store keeps, one for each limit of each key. 0 means
	// 1,048,576. No state is lost while the store holds at most MaxKeys states, or at most nine
	// tenths of MaxKeys if keys have several limits. The store has room for about an eighth more
	// states than MaxKeys, and for at least 8: if MaxKeys is 1,000, it has room for 1,136 states.
	//
	// Each state takes about 48 bytes, so a million states take 48 MB. The store starts small and
	// grows as states are added. A state with a log takes about 60 more bytes, plus 16 to 32
	// bytes for each charge in the last period.
	MaxKeys int
}

// A Store is an in-memory quota.Store. It supports every quota.Algorithm and is safe for concurrent
// use. Inside a testing/synctest bubble, it uses the bubble's fake clock. Create a separate Store
// for each bubble, because a Store that is used both inside and outside a bubble panics. The zero
// value is ready to use, with the defaults of Options.
//
// A Store identifies each key by a 64-bit hash and does not keep the key itself. The hash function
// has a secret seed, so clients cannot choose keys that collide. The probability that any two of a
// million states collide by chance is one in 37 million.
//
// When the store is full, a new state replaces one of a few candidates. Its first choice is a state
// whose whole quota is available, its second a state that has always had units left, and its last a
// state that has run out of units, or a ban. Among similar candidates, it replaces the one whose
// whole quota will be available soonest. A state that caused a charge to be refused is kept until
// its whole quota is available again.
//
// Stats counts the states that a full store has replaced. A full store also logs a warning to
// [slog.Default], at most once a minute in a process.
type Store struct {
	clock  clock
	once   sync.Once // for setUp
	seed   maphash.Seed
	shards []shard
}

const (
	maxShards = 256

	// If there are several shards, each is for at least minShardKeys states. All states of a key
	// are in one shard, so the fewer keys a shard has, the more the shards differ in size. With 24
	// limits per key, minShardKeys states belong to only 680 keys. Even then, the probability that
	// a given shard gets a quarter more states than the average shard is below 10^-9.
	minShardKeys = 16_384
)

// New returns an empty store. It panics if MaxKeys is negative.
//
// Create stores before the server starts, not in a handler, because a new store has not counted
// anything yet. If a hundred stores are created within a minute, New logs one warning to
// [slog.Default].
func New(o Options) *Store {
	if storesMade.Add("", 100, time.Now()) {
		slog.Warn("memstore: a hundred stores made within a minute", "likely", "a handler makes one for each request",
			"effect", "each has counted nothing yet", "fix", "make one before the server starts")
	}
	if o.MaxKeys < 0 {
		panic(fmt.Sprintf("memstore: MaxKeys is %d; want at least 0", o.MaxKeys))
	}
	s := &Store{}
	s.setUp(o.MaxKeys)
	return s
}

// setUp makes the shards, unless an earlier call has made them. A Store that New has not made needs
// this before its first decision.
func (s *Store) setUp(maxKeys int) {
	s.once.Do(func() {
		maxKeys := cmp.Or(maxKeys, 1<<20)
		n := min(maxShards, max(1, maxKeys/minShardKeys))
		s.seed, s.shards = maphash.MakeSeed(), make([]shard, n)
		for i := range s.shards {
			s.shards[i].most = int32(min(math.MaxInt32, bucketsFor((maxKeys-1)/n+1)))
		}
	})
}

// Stats returns the statistics since s was created.
func (s *Store) Stats() (stats quota.MemoryStats) {
	s.setUp(0)
	for i := range s.shards {
		stats.Evicted += s.shards[i].evicted.Load()
	}
	return stats
}

// The gate full limits how often warnFull runs.
var full = sparse.Gate{Every: time.Minute}

// warnFull runs in a goroutine, because the caller holds the lock of a shard.
func warnFull() {
	slog.Warn("memstore: full store has evicted states", "effect", "their keys have the whole quota again",
		"likely", "an attack from many addresses, or MaxKeys is too small", "fix", "raise MaxKeys, or limit larger networks")
}

// storesMade counts new stores, so it belongs to the process.
var storesMade sparse.Count

// Take implements quota.Store. If it returns an error, it has spent nothing. The error is
// ctx.Err(), quota.ErrFull, or an error from Transaction.Validate. Take returns quota.ErrFull if it
// needs room for a new state and each state that it could replace has refused a charge. This can
// happen only if more than nine tenths of MaxKeys states have refused charges, or if a transaction
// needs more states than a small store can hold.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if len(t.Charges) != 1 {
		return s.takeSeveral(t)
	}
	// Reading the clock and taking the lock both make the processor complete all earlier
	// instructions. Take therefore computes the hash before it does either, and takeMeter fills in
	// the decision after releasing the lock. Take reads the clock before it takes the lock, so that
	// other calls do not wait for the clock too.
	c := &t.Charges[0]
	names, period, size := t.Plan(0)
	m, h := meter{period, c.Limit.Quota, size}, s.hash(c.Key)
	id, sh := fingerprint(h, names), &s.shards[index(h, len(s.shards))]
	now := s.clock.now()
	if h := sh.hot.Load(); h != nil && h.id == id && h.take(t, &m, now) {
		return nil
	}
	waited := !sh.mu.TryLock()
	if waited {
		sh.mu.Lock()
	}
	if h := sh.hot.Load(); h != nil && h.id == id {
		if h.take(t, &m, now) { // the state was promoted while this call waited
			sh.mu.Unlock()
			return nil
		}
		sh.recall(now)
	}
	now = sh.instant(now)
	sl := sh.table.find(id)
	if atOnce(t) && m.decides(c.Cost) && m.readable(sl) {
		return sh.takeMeter(t, &m, sl, id, now, c.Cost, waited)
	}
	defer sh.mu.Unlock() // even if the algorithm panics
	return takeStates(t, []lane{{id: id, shard: sh, slot: sl}}, now)
}

// TakeEach implements optional.Batcher by calling Take for one transaction after another. TakeEach
// saves no time, but allows tests to use quota.Coalesce without Redis.
func (s *Store) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	var errs []error
	for i, t := range ts {
		if err := s.Take(ctx, t); err != nil {
			if errs == nil {
				errs = make([]error, len(ts))
			}
			errs[i] = err
		}
	}
	return errs
}

// takeSeveral evaluates a transaction with no charge, or with two or more.
func (s *Store) takeSeveral(t *quota.Transaction) error {
	switch n := len(t.Charges); {
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

// If a transaction has at most 24 charges (inline), its lanes are on the stack. For at most 6
// charges (few), the array is smaller, because clearing lanes takes time.
const (
	few    = 6
	inline = 24
)

// A lane holds one of several charges that are evaluated together.
type lane struct {
	id    uint64 // the fingerprint of the state
	shard *shard
	slot  *slot // nil if the state has no slot
	meter
	debt debt
}

// takeAll evaluates several charges under the locks of all their shards. It takes the
// locks in a fixed order, so that two calls never wait for each other.
func (s *Store) takeAll(t *quota.Transaction, lanes []lane) error {
	var h uint64
	var k int
	var lockHere [inline]int
	lock := lockHere[:0]
	for i := range lanes {
		if key := t.Charges[i].Key; i == 0 || key != t.Charges[i-1].Key {
			h = s.hash(key)
			k = index(h, len(s.shards))
			lock = append(lock, k)
		}
		names, period, size := t.Plan(i)
		lanes[i].meter, lanes[i].id, lanes[i].shard = meter{period, t.Charges[i].Limit.Quota, size}, fingerprint(h, names), &s.shards[k]
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
	return decide(t, lanes, now)
}

// decide evaluates several charges, under the locks of their shards.
func decide(t *quota.Transaction, lanes []lane, now int64) error {
	metered, allowed := atOnce(t), true
	for i := range lanes {
		c, ln := &t.Charges[i], &lanes[i]
		ln.slot = ln.shard.table.find(ln.id)
		if metered = metered && ln.decides(c.Cost) && ln.readable(ln.slot); metered {
			ln.debt = ln.debtOf(ln.slot, now)
			allowed = allowed && ln.allows(&ln.debt, c.Cost)
		}
	}
	if metered {
		return takeMeters(t, lanes, now, allowed)
	}
	return takeStates(t, lanes, now)
}

// takeStates evaluates charges under any algorithms. The caller holds the locks of the shards.
func takeStates(t *quota.Transaction, lanes []lane, now int64) error {
	states := lanes[0].shard.zeroStates(len(lanes))
	for i := range lanes {
		ln := &lanes[i]
		ln.shard.load(&states[i], ln.slot, now)
	}
	if !t.Decide(now, states) {
		for i := range lanes {
			lanes[i].slot.rankRefusal(&t.Decisions[i], now)
		}
		return nil
	}
	if t.Mode == quota.ModeForget {
		for i := range lanes {
			lanes[i].shard.forget(lanes[i].slot)
		}
		return nil
	}
	if !addAll(t, lanes, now) {
		return quota.ErrFull
	}
	for i := range lanes {
		if ln := &lanes[i]; !ln.slot.unchanged(t.Charges[i].Cost, &states[i]) {
			ln.shard.save(ln.slot, ln.id, now, &states[i], &t.Decisions[i])
		}
	}
	return nil
}

// addAll gives a slot to each state that must be kept and has no slot. If there is no room for one
// of these states, addAll returns false. The slots that it has already added are then free, because
// their states expire immediately.
func addAll(t *quota.Transaction, lanes []lane, now int64) bool {
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
		if lacks(i) && lanes[i].shard.add(lanes[i].id, now, ids) == nil {
			return false
		}
	}
	for i := range lanes { // a slot may have moved to make room for another
		lanes[i].slot = lanes[i].shard.table.find(lanes[i].id)
	}
	return true
}

// hash returns the hash of a key. The shard depends only on this hash, so all states of a key are
// in one shard.
func (s *Store) hash(key string) uint64 {
	s.setUp(0)
	return maphash.String(s.seed, storedkey.Of(key))
}

// fingerprint returns the fingerprint of a state. The fingerprint combines h, the hash of the
// state's key, with the hash of the state's names. States with the same names and different h have
// different fingerprints, because multiplication by an odd number modulo 2^64 is reversible. A
// fingerprint of 0 becomes 1, because 0 marks an empty slot.
func fingerprint(h, names uint64) uint64 { return max((h^names)*0x9e3779b97f4a7c15, 1) }

// index maps a hash to a number from 0 to n-1.
func index(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// Instant implements optional.Instant.
func (s *Store) Instant() quota.Store { return s }
