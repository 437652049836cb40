package quota

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	blockWays = 8 // slots of a bucket

	// A table has one extra slot for every spareBlocks blocks.
	spareBlocks = 12

	// If there are several shards, each has at least blockPart blocks. Otherwise the shards would
	// fill unevenly.
	blockPart = 1024

	// firstBuckets is the number of buckets of a new table, unless the table's bound is lower. With
	// 64 shards, it suffices for two million keys. While a table grows, it takes one and a half
	// times as much memory. Parts of a table that no block has used yet take no physical memory.
	firstBuckets = 4096
)

// A blockShard is one of the shards in which a HybridStore keeps its blocks: a hash table in which
// each block has a slot in one of two buckets. The table has a few more slots than its share of
// MaxKeys (see spareBlocks), because some buckets fill up earlier than others.
type blockShard struct {
	mu    sync.Mutex
	most  int // the maximum number of buckets of the table
	table []blockBucket

	// dropCount counts the calls to drop. A refusal is not kept if drop was called after the call
	// to the store.
	dropCount uint64

	repeated uint64 // the state whose block was found by the last successful call to get
	times    int    // how many consecutive calls to get have found that block

	published atomic.Pointer[block] // a copy of a block of the table
	served    atomic.Int64          // how many transactions were refused by blocks of this shard

	_ [48]byte
}

type blockBucket [blockWays]block

func (s *blockShard) homes(id uint64) [2]*blockBucket {
	one, _ := bits.Mul64(id, uint64(len(s.table)))
	two, _ := bits.Mul64(id*0xff51afd7ed558ccd, uint64(len(s.table)))
	return [...]*blockBucket{&s.table[one], &s.table[two]}
}

// find returns the block of a state, or nil if there is none. The block may have expired.
func (s *blockShard) find(id uint64) *block {
	if len(s.table) == 0 {
		return nil
	}
	for _, home := range s.homes(id) {
		for i := range home {
			if home[i].id == id {
				return &home[i]
			}
		}
	}
	return nil
}

// After publishAfter consecutive calls to get in a shard have found the same block, the block is
// published. A published block refuses charges without the lock, so many processors can refuse the
// same client at the same time. Publishing a block costs an allocation.
const publishAfter = 8

// get returns a copy of the block of a state, if there is one, and publishes the block if it was
// found often enough (see publishAfter). The block may have expired.
func (s *blockShard) get(id uint64) (b block, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.find(id)
	if at == nil {
		return b, false
	}
	if s.repeated != id {
		s.repeated, s.times = id, 0
	}
	if s.times++; s.times == publishAfter {
		copied := *at
		s.published.Store(&copied)
	}
	return *at, true
}

// unpublish removes the published block of a state. The caller holds the lock.
func (s *blockShard) unpublish(id uint64) {
	if b := s.published.Load(); b != nil && b.id == id {
		s.published.Store(nil)
		s.repeated = 0
	}
}

func (s *blockShard) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropCount
}

func (s *blockShard) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(id); b != nil {
		*b = block{}
	}
	s.unpublish(id)
	s.dropCount++
}

// try marks the block of a state before the store is called to watch the state. Only the first call
// returns true.
func (s *blockShard) try(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.find(id)
	if b == nil || b.is(tried) {
		return false
	}
	b.charge |= tried
	s.unpublish(id)
	return true
}

// retry undoes a call to try.
func (s *blockShard) retry(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(id); b != nil {
		b.charge &^= tried
		s.unpublish(id)
	}
}

// keep stores a block in the table. The caller has read drops from s.dropCount before calling the
// store. If the two values differ, a block was dropped in the meantime, and keep does nothing.
func (s *blockShard) keep(b block, drops uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropCount != drops {
		return
	}
	at := s.find(b.id)
	if at == nil {
		at = s.room(b.id, int64(b.answered>>others))
	}
	*at = b
	s.unpublish(b.id)
}

// room returns a slot for a block: a free slot of the emptier bucket. If there is none and the
// table cannot grow, room returns the slot of the block that expires soonest. That block is lost,
// so the wrapped store is called for its key again.
func (s *blockShard) room(id uint64, now int64) *block {
	if s.table == nil {
		s.table = make([]blockBucket, min(s.most, firstBuckets))
	}
	for {
		var free, soonest *block
		most := 0
		for _, home := range s.homes(id) {
			var here *block
			n := 0
			for i := range home {
				b := &home[i]
				if b.id == 0 || b.until() <= now {
					here, n = b, n+1
				} else if soonest == nil || b.until() < soonest.until() {
					soonest = b
				}
			}
			if n > most {
				free, most = here, n
			}
		}
		switch {
		case free != nil:
			return free
		case len(s.table) == s.most:
			s.unpublish(soonest.id)
			return soonest
		}
		s.grow(now)
	}
}

// grow makes the table about twice as large, up to its bound.
func (s *blockShard) grow(now int64) {
	old, n := s.table, s.most
	for (n+1)/2 > len(old) {
		n = (n + 1) / 2
	}
	s.table = make([]blockBucket, n)
	full := s.most
	s.most = n // so that room does not call grow
	for i := range old {
		for j := range old[i] {
			if b := &old[i][j]; b.id != 0 && b.until() > now {
				*s.room(b.id, now) = *b
			}
		}
	}
	s.most = full
}

// A block is a cached refusal, in 48 bytes without a pointer. Each field except id holds a 48-bit
// number in its high bits and a 16-bit number in its low bits. Instants are in µs since
// HybridStore.start.
type block struct {
	id       uint64 // the fingerprint of the charge's state; 0 if the slot is empty
	charge   uint64 // high: a hash of the refused charge (see hashOf); low: the lag in units of lagUnit, and the flags
	answered uint64 // high: when the store had answered; low: the version of the key before the call (see watch)
	fits     uint64 // high: when RetryAfter is over; low: the low bits of ahead
	next     uint64 // high: when NextAfter is over; low: the middle bits of ahead
	reset    uint64 // high: when ResetAfter is over; low: the high bits of ahead
}

// The flags of a block.
const (
	noneLeft = 1 << iota // Remaining is 0 until the instant next, minus the lag
	waited               // the refused caller was willing to wait
	watched              // the store reports when the state changes
	tried                // the store was called to watch the state
)

const (
	flagBits   = 4
	lagUnit    = 1024 // µs
	others     = 16
	maxInstant = 1<<48 - 1 // 8.9 years
	longAgo    = -1 << 47

	// If the store does not report changes, recheck is the maximum time for which a refusal is
	// served from memory before the store is called again.
	recheck = 10 * time.Second

	// watchedFor is this maximum for a store that reports changes. It is needed because Redis does
	// not report SWAPDB.
	watchedFor = 5 * time.Minute
)

func (b *block) is(flag uint64) bool { return b.charge&flag != 0 }

func (b *block) isFor(charge uint64) bool { return (b.charge^charge)>>others == 0 }

// lag returns the time between the call to the wrapped store and the answer, in µs.
func (b *block) lag() int64 { return int64(b.charge&(1<<others-1)>>flagBits) * lagUnit }

// sent returns the instant at which the wrapped store was called, or an instant up to a lagUnit
// earlier.
func (b *block) sent() int64 { return int64(b.answered>>others) - b.lag() }

func (b *block) version() uint16 { return uint16(b.answered) }

// ahead returns the difference between the two clocks: the time of the store's clock, in µs since
// 1970, at the instant 0 of the process's clock.
func (b *block) ahead() int64 {
	return int64(b.fits&0xffff|b.next&0xffff<<16|b.reset&0xffff<<32) + longAgo
}

// newBlock returns a block for the decision d, which refused a charge with the given hash. The
// wrapped store was called at the instant sent, and answered at the instant done. The store's clock
// is ahead of the process's clock by the given number of µs. newBlock returns false if the answer
// took too long, or if a number of the refusal is too large for a block.
func newBlock(d *Decision, charge uint64, ahead, sent, done int64, version uint16, flags uint64) (b block, ok bool) {
	lag := (done - sent + lagUnit - 1) / lagUnit
	longest := max(d.RetryAfter, d.NextAfter, d.ResetAfter).Microseconds()
	ahead -= longAgo
	if lag < 0 || lag >= 1<<(others-flagBits) || longest > maxInstant-done || ahead < 0 || ahead > maxInstant {
		return b, false
	}
	if d.Remaining == 0 {
		flags |= noneLeft
	}
	after := func(wait time.Duration, more uint64) uint64 {
		return uint64(done+wait.Microseconds())<<others | more&(1<<others-1)
	}
	b.charge = charge>>others<<others | uint64(lag)<<flagBits | flags
	b.answered = after(0, uint64(version))
	b.fits = after(d.RetryAfter, uint64(ahead))
	b.next = after(d.NextAfter, uint64(ahead>>16))
	b.reset = after(d.ResetAfter, uint64(ahead>>32))
	return b, true
}

// spread returns a fraction of d, in µs, that depends on the id. Blocks that are created together
// therefore do not all expire together.
func (b *block) spread(d time.Duration) int64 {
	return int64(b.id>>32) * (d.Microseconds() >> 8) >> 24
}

// until returns the instant at which the block expires. If RetryAfter is at most recheck, the block
// expires at the end of RetryAfter. A longer RetryAfter is reduced: to watchedFor if the block is
// watched, and otherwise to recheck, minus up to a quarter of it. All these times are measured from
// the call to the wrapped store.
func (b *block) until() int64 {
	fits, longest := int64(b.fits>>others), int64(b.answered>>others)+recheck.Microseconds()
	switch {
	case fits <= longest:
		return fits - b.lag()
	case b.is(watched):
		return min(fits, longest+(watchedFor-recheck).Microseconds()) - b.lag()
	}
	return longest - b.spread(recheck/4) - b.lag()
}

// decide fills in the decision on the refused charge. Both arguments are the current time: now by
// the process's clock, and at by the store's clock.
func (b *block) decide(d *Decision, now, at int64) {
	after := func(instant uint64) time.Duration {
		return time.Duration(int64(instant>>others)-now) * time.Microsecond
	}
	d.At, d.Allowed, d.FellBack, d.Remaining = at, false, false, -1
	d.RetryAfter, d.NextAfter, d.ResetAfter = after(b.fits), after(b.fits), after(b.reset)
	if b.is(noneLeft) && now < int64(b.next>>others)-b.lag() {
		d.Remaining, d.NextAfter = 0, after(b.next)
	}
}
