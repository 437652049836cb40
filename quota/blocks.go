package quota

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	blockWays = 8 // slots of a bucket

	// spareBlocks is the number of blocks for which a table has one extra slot.
	spareBlocks = 12

	// If there are several shards, each has at least blockPart blocks. Smaller shards would fill
	// unevenly.
	blockPart = 1024

	// firstBuckets is the number of buckets of a new table, unless the table's bound is lower. It
	// suffices for two million keys in 64 shards. While a table grows, it takes one and a half
	// times the memory. The operating system provides no memory for the parts of a table that no
	// block has used yet.
	firstBuckets = 4096
)

// blocks is a shard of the blocks of a HybridStore: a hash table in which each block has a slot
// in one of two buckets. It has a few more slots than its share of MaxKeys (see spareBlocks),
// because some buckets fill up earlier than others.
type blocks struct {
	mu    sync.Mutex
	most  int // how many buckets the table may have
	table []blockBucket

	// drops counts the calls of drop. keep ignores a refusal if drop was called after the store was
	// called.
	drops uint64

	repeated uint64 // the state whose block get found last
	times    int    // how many consecutive calls of get have found this block

	published atomic.Pointer[block] // a copy of a block of the table
	served    atomic.Int64          // how many transactions this shard has refused

	_ [48]byte
}

type blockBucket [blockWays]block

func (s *blocks) homes(id uint64) [2]*blockBucket {
	one, _ := bits.Mul64(id, uint64(len(s.table)))
	two, _ := bits.Mul64(id*0xff51afd7ed558ccd, uint64(len(s.table)))
	return [...]*blockBucket{&s.table[one], &s.table[two]}
}

// find returns the block of a state, or nil if there is none. The block may have expired.
func (s *blocks) find(id uint64) *block {
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

// A block is published once publishAfter consecutive calls of get in the shard have found it. A
// published block refuses charges without the lock, so many processors can refuse one client at the
// same time. Publishing a block costs an allocation.
const publishAfter = 8

// get returns a copy of the block of a state, if there is one, and publishes a block that it has
// found often enough. The block may have expired.
func (s *blocks) get(id uint64) (b block, found bool) {
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
func (s *blocks) unpublish(id uint64) {
	if b := s.published.Load(); b != nil && b.id == id {
		s.published.Store(nil)
		s.repeated = 0
	}
}

func (s *blocks) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops
}

func (s *blocks) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(id); b != nil {
		*b = block{}
	}
	s.unpublish(id)
	s.drops++
}

// try marks a block before the store is called to watch its state. Only the first caller gets true.
func (s *blocks) try(id uint64) bool {
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

// retry undoes try.
func (s *blocks) retry(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.find(id); b != nil {
		b.charge &^= tried
		s.unpublish(id)
	}
}

// keep remembers a block. The argument drops was read before the call to the store: if drop has
// been called since, keep does nothing.
func (s *blocks) keep(b block, drops uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops != drops {
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
// table cannot grow, room returns the slot of the block that expires soonest. That block is
// forgotten, so the charges of its key go to the wrapped store.
func (s *blocks) room(id uint64, now int64) *block {
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
func (s *blocks) grow(now int64) {
	old, n := s.table, s.most
	for (n+1)/2 > len(old) {
		n = (n + 1) / 2
	}
	s.table = make([]blockBucket, n)
	full := s.most
	s.most = n // room must not grow it again
	for i := range old {
		for j := range old[i] {
			if b := &old[i][j]; b.id != 0 && b.until() > now {
				*s.room(b.id, now) = *b
			}
		}
	}
	s.most = full
}

// A block represents a refusal that a HybridStore remembers, in 48 bytes without a pointer. Each
// field except id holds a number of 48 bits above another of 16 bits. Instants are in µs since
// HybridStore.start.
type block struct {
	id       uint64 // of the state of the charge; 0 if the slot is empty
	charge   uint64 // a hash of the refused charge (see hashOf), above the lag in units of lagUnit, above the flags
	answered uint64 // when the store had answered, above the version of the key before the call: see watch
	fits     uint64 // when RetryAfter is over, above the low bits of ahead
	next     uint64 // when NextAfter is over, above the next bits
	reset    uint64 // when ResetAfter is over, above the high bits
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

	// recheck is the maximum time for which a refusal is served from memory before the store is
	// called again, if the store does not report changes.
	recheck = 10 * time.Second

	// watchedFor is the same maximum for a store that reports changes. Even then it is needed,
	// because Redis does not report SWAPDB.
	watchedFor = 5 * time.Minute
)

func (b *block) is(flag uint64) bool { return b.charge&flag != 0 }

func (b *block) isFor(charge uint64) bool { return (b.charge^charge)>>others == 0 }

// lag returns the time from the call of the wrapped store to its answer, in µs.
func (b *block) lag() int64 { return int64(b.charge&(1<<others-1)>>flagBits) * lagUnit }

// sent returns the instant at which the wrapped store was called, or an instant up to a lagUnit
// earlier.
func (b *block) sent() int64 { return int64(b.answered>>others) - b.lag() }

func (b *block) version() uint16 { return uint16(b.answered) }

// ahead returns the time, in µs, that the store's clock shows when the process's clock shows
// HybridStore.wall.
func (b *block) ahead() int64 {
	return int64(b.fits&0xffff|b.next&0xffff<<16|b.reset&0xffff<<32) + longAgo
}

// newBlock returns a block for the decision d, which refused a charge with the given hash. The
// wrapped store was called at the instant sent, and had answered by the instant done. Its clock is
// ahead of the process's clock by the given number of µs. ok is false if the answer took too long,
// or if a number of the refusal is too large for a block.
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

// spread returns a part of d that depends on the id, so that blocks that are created together do
// not all expire together.
func (b *block) spread(d time.Duration) int64 {
	return int64(b.id>>32) * (d.Microseconds() >> 8) >> 24
}

// until returns the instant at which the block expires. If RetryAfter is at most recheck, this is
// the end of RetryAfter. A longer RetryAfter is reduced: to watchedFor if the block is watched, and
// otherwise to recheck, less up to a quarter of it. All times are measured from the call to the
// wrapped store.
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

// decide fills in the decision on the refused charge. It gets the current time twice: its now
// argument is the time on the process's clock, and its at argument is the time on the store's
// clock.
func (b *block) decide(d *Decision, now, at int64) {
	after := func(instant uint64) time.Duration {
		return time.Duration(int64(instant>>others)-now) * time.Microsecond
	}
	d.At, d.Allowed, d.Remaining = at, false, -1
	d.RetryAfter, d.NextAfter, d.ResetAfter = after(b.fits), after(b.fits), after(b.reset)
	if b.is(noneLeft) && now < int64(b.next>>others)-b.lag() {
		d.Remaining, d.NextAfter = 0, after(b.next)
	}
}
