package memstore

import (
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// ways is how many slots a bucket has: as many as fingerprints fit in a cache
// line. A state lives in one of two buckets and may be moved to the other, so
// that a table fills to more than nine tenths before one finds no room.
const ways = 8

// A table is a hash table without pointers: nothing for the garbage collector
// to follow, however many keys it holds.
type table []bucket

type bucket struct {
	ids   [ways]uint64 // fingerprints; 0 is a free slot
	slots [ways]slot
}

// A slot holds a state, and when it is as good as new. From then on the slot is
// free, and need not be swept.
type slot struct {
	at, a, b int64
	fate     int64 // reset in µs since 1970 << 3 | hasLog | rank
}

// The rank of a slot says how much would be lost with it. A slot keeps the
// highest it had until it is as good as new.
const (
	someLeft = iota // it has units left
	noneLeft        // it has none
	refusing        // it refused a charge: it is being limited

	rankMask = 3
	hasLog   = 4
	fateBits = 3
)

func (s *slot) reset() int64 { return s.fate >> fateBits }
func (s *slot) rank() int64  { return s.fate & rankMask }

func (s *slot) raise(rank int64) {
	if s.rank() < rank {
		s.fate = s.fate&^rankMask | rank
	}
}

// refused notes that the state refused a charge. s may be nil: what was never
// seen refuses only what could never fit.
func (s *slot) refused(d *weir.Decision, now int64) {
	if s != nil && !d.Allowed && s.reset() > now {
		s.raise(refusing)
	}
}

// bucketsFor returns how many buckets hold n states with next to none lost.
func bucketsFor(n int) int { return max(1, (n*7/6+ways-1)/ways) }

// homes returns the two buckets where a fingerprint may live.
func (t table) homes(id uint64) (*bucket, *bucket) {
	return &t[index(id, len(t))], &t[index(id*0xff51afd7ed558ccd, len(t))]
}

// find returns the slot of a fingerprint, or nil. It stays valid until the next
// add.
func (t table) find(id uint64) *slot {
	if len(t) == 0 {
		return nil
	}
	one, two := t.homes(id)
	for i, x := range one.ids {
		if x == id {
			return &one.slots[i]
		}
	}
	for i, x := range two.ids {
		if x == id {
			return &two.slots[i]
		}
	}
	return nil
}

// free reports whether a slot is: nothing is in it, or what is as good as new
// and not one of the fingerprints to keep.
func (b *bucket) free(i int, now int64, keep []uint64) bool {
	return b.ids[i] == 0 || b.slots[i].reset() <= now && !slices.Contains(keep, b.ids[i])
}

// A candidate is a slot that may be taken: that of ids[i] in a bucket.
type candidate struct {
	*bucket
	i int
}

// weakest returns the slot in the homes of id that is lost best, and whether
// it is free. Those of the fingerprints to keep are not considered.
func (t table) weakest(id uint64, now int64, keep []uint64) (c candidate, free bool) {
	one, two := t.homes(id)
	var least int64
	for _, b := range [...]*bucket{one, two} {
		used := 0
		var mine candidate
		for i := range b.ids {
			if b.free(i, now, keep) {
				mine = candidate{b, i}
				continue
			}
			used++
			if slices.Contains(keep, b.ids[i]) {
				continue
			}
			// rank first, then the time of reset
			worth := b.slots[i].fate>>fateBits | b.slots[i].rank()<<60
			if !free && (c.bucket == nil || worth < least) {
				c, least = candidate{b, i}, worth
			}
		}
		if mine.bucket != nil && (!free || int64(used) < least) { // the emptier home
			c, free, least = mine, true, int64(used)
		}
	}
	return c, free
}

// A shard is a table under a lock. All limits of a key are in the same one.
type shard struct {
	mu    sync.Mutex
	most  int // buckets, at most
	table table
	logs  map[uint64][]weir.Mark
	_     [64]byte // two locks never share a cache line
}

// add gives the fingerprint a slot, empty and of the rank someLeft, or returns
// nil if there is no room that may be taken. It takes none from the fingerprints
// to keep.
func (sh *shard) add(id uint64, now int64, keep []uint64) *slot {
	if sh.table == nil {
		sh.table = make(table, 1)
	}
	c, free := sh.table.weakest(id, now, keep)
	for !free && sh.grow(now, keep) {
		c, free = sh.table.weakest(id, now, keep)
	}
	if !free {
		if moved, ok := sh.move(sh.table, id, now, keep); ok {
			c, free = moved, true
		}
	}
	if c.bucket == nil || !free && c.slots[c.i].rank() == refusing {
		return nil
	}
	return sh.put(c, id, slot{fate: now << fateBits})
}

// put replaces what is in a slot, and its log.
func (sh *shard) put(c candidate, id uint64, s slot) *slot {
	sl := &c.slots[c.i]
	if sl.fate&hasLog != 0 {
		delete(sh.logs, c.ids[c.i])
	}
	c.ids[c.i], *sl = id, s
	return sl
}

// move makes room for a fingerprint whose homes are full: it moves one of the
// states in them to that one's other home, if a slot is free there. Few would
// have to go without it, but more than none, long before the table is full.
func (sh *shard) move(t table, id uint64, now int64, keep []uint64) (c candidate, ok bool) {
	one, two := t.homes(id)
	for _, b := range [...]*bucket{one, two} {
		for i, x := range b.ids {
			there, other := t.homes(x)
			if there == b {
				there = other
			}
			for j := range there.ids {
				if there.free(j, now, keep) {
					sh.put(candidate{there, j}, x, b.slots[i])
					b.ids[i], b.slots[i] = 0, slot{}
					return candidate{b, i}, true
				}
			}
		}
	}
	return candidate{}, false
}

// grow doubles the table, up to its bound, and reports whether it did.
func (sh *shard) grow(now int64, keep []uint64) bool {
	n := min(2*len(sh.table), sh.most)
	if n <= len(sh.table) {
		return false
	}
	next := make(table, n)
	for i := range sh.table {
		b := &sh.table[i]
		for j, id := range b.ids {
			if id == 0 {
				continue
			}
			if b.slots[j].reset() <= now && !slices.Contains(keep, id) {
				if b.slots[j].fate&hasLog != 0 {
					delete(sh.logs, id)
				}
				continue
			}
			c, free := next.weakest(id, now, keep)
			if !free {
				if c, free = sh.move(next, id, now, keep); !free {
					return false // next to impossible: more room, and yet none here
				}
			}
			c.ids[c.i], c.slots[c.i] = id, b.slots[j]
		}
	}
	sh.table = next
	return true
}

// load returns the state in a slot that may be nil.
func (sh *shard) load(sl *slot, id uint64, now int64) weir.State {
	if sl == nil || sl.reset() <= now {
		return weir.State{}
	}
	s := weir.State{At: sl.at, A: sl.a, B: sl.b}
	if sl.fate&hasLog != 0 {
		s.Log = sh.logs[id]
	}
	return s
}

// save writes the state to a slot, which is nil only if there is nothing to
// remember.
func (sh *shard) save(sl *slot, id uint64, now int64, s *weir.State, d *weir.Decision) {
	if sl == nil {
		return
	}
	rank := int64(someLeft)
	if d.Remaining == 0 {
		rank = noneLeft
	}
	if sl.reset() > now {
		rank = max(rank, sl.rank())
	}
	had := sl.fate&hasLog != 0
	*sl = slot{at: s.At, a: s.A, b: s.B, fate: (now+int64(d.ResetAfter/time.Microsecond))<<fateBits | rank}
	switch {
	case len(s.Log) > 0:
		if sh.logs == nil {
			sh.logs = map[uint64][]weir.Mark{}
		}
		sh.logs[id] = s.Log
		sl.fate |= hasLog
	case had:
		delete(sh.logs, id)
	}
}
