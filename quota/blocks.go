package quota

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	blockWays = 8 // slots of a bucket

	// blockPart is the fewest blocks of a shard if there are several shards. Chance would
	// fill smaller shards unevenly.
	blockPart = 1024

	// firstBuckets is how many buckets a table has at first, if it may have so many: enough for
	// two million keys in 64 shards. A table that grows takes half as much again for a while,
	// and memory that no block has used takes no memory of the machine.
	firstBuckets = 4096
)

// blocks is a shard of the blocks of a HybridStore: a hash table in which each block has a
// slot in one of two buckets. It has a ninth more slots than its part of MaxKeys, because
// chance fills some buckets more than others.
type blocks struct {
	mu    sync.Mutex
	most  int // how many buckets the table may have
	table []blockBucket

	// drops is how often drop was called. keep ignores a refusal if drop was called after
	// the store was asked.
	drops uint64

	repeated uint64 // the state whose block get has found last
	times    int    // how often get has found it, without another block in between

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

// publishAfter is how often get finds a block before the block is published, if get finds no
// other block of the shard in between. A published block refuses charges without the lock, so
// many processors can refuse one client at the same time. To publish a block costs an
// allocation.
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

// keep remembers a block, unless drop was called since the store was asked.
func (s *blocks) keep(b block, drops uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops != drops {
		return
	}
	old := s.find(b.id)
	if old != nil {
		b.setInstant(began, old.instant(began))
	} else {
		old = s.room(b.id, b.instant(answered))
	}
	*old = b
	s.unpublish(b.id)
}

// room returns a slot for a block: a free slot of the emptier bucket or, if there is none
// and the table cannot grow, the slot of the block that expires soonest. Forgetting that
// block costs one call of next.
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
