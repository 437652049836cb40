package memstore

import (
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// ways is how many slots a bucket has. A state lives in one of two buckets and
// may be moved to the other, so that a table fills to more than nine tenths
// before one finds no room.
const ways = 8

// A table is a hash table without pointers: nothing for the garbage collector
// to follow, however many keys it holds.
type table []bucket

// A bucket is five cache lines that lie together. They are read at once: it is
// the first that takes time.
type bucket [ways]slot

// A slot holds a fingerprint, its state, and when that is as good as new. From
// then on the slot is free, and need not be swept.
type slot struct {
	id       uint64 // 0 if nothing was ever here
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

// bucketsFor returns how many buckets hold n states and a sixth more: so much may
// chance fill one shard more than others.
func bucketsFor(n int) int { return max(1, (n*7/6+ways-1)/ways) }

// first and second return the two buckets where a fingerprint may live. They are
// one only if the table has no other.
func (t table) first(id uint64) *bucket { return &t[index(id, len(t))] }

func (t table) second(id uint64) *bucket {
	i := index(id*0xff51afd7ed558ccd, len(t)-1)
	if len(t) > 1 && i >= index(id, len(t)) {
		i++
	}
	return &t[i]
}

// other returns the home of a fingerprint that is not b, if it has two.
func (t table) other(id uint64, b *bucket) *bucket {
	if first := t.first(id); first != b {
		return first
	}
	return t.second(id)
}

func (t table) homes(id uint64) [2]*bucket { return [...]*bucket{t.first(id), t.second(id)} }

// find returns the slot of a fingerprint, or nil. It stays valid until the next
// add.
func (t table) find(id uint64) *slot {
	if len(t) == 0 {
		return nil
	}
	if sl := t.first(id).find(id); sl != nil {
		return sl
	}
	return t.second(id).find(id)
}

func (b *bucket) find(id uint64) *slot {
	for i := range b {
		if b[i].id == id {
			return &b[i]
		}
	}
	return nil
}

// free reports whether nothing is in the slot, or what is as good as new and not
// one of the fingerprints to keep.
func (s *slot) free(now int64, keep []uint64) bool {
	return s.id == 0 || s.reset() <= now && !slices.Contains(keep, s.id)
}

// room returns a free slot, or nil, and how many are taken.
func (b *bucket) room(now int64, keep []uint64) (free *slot, taken int) {
	for i := range b {
		if b[i].free(now, keep) {
			free = &b[i]
		} else {
			taken++
		}
	}
	return free, taken
}

// room returns a free slot in the homes of id, or nil. Most states live in their
// first home, where they are found first; those that come when it is filling up
// live in the emptier one, so that few find both full.
func (t table) room(id uint64, now int64, keep []uint64) *slot {
	one, taken := t.first(id).room(now, keep)
	if taken < ways-2 {
		return one
	}
	if two, n := t.second(id).room(now, keep); n < taken {
		return two
	}
	return one
}

// worth orders slots by what is lost with them: their rank, then their time of
// reset.
func (s *slot) worth() int64 { return s.reset() | s.rank()<<60 }

// weaker returns that of s, which may be nil, and the slots of b that is lost
// best, but for the fingerprints to keep.
func (b *bucket) weaker(s *slot, keep []uint64) *slot {
	for i := range b {
		if (s == nil || b[i].worth() < s.worth()) && !slices.Contains(keep, b[i].id) {
			s = &b[i]
		}
	}
	return s
}

// A shard is a table under a lock. All limits of a key are in the same one.
type shard struct {
	mu     sync.Mutex
	last   int64 // when it decided last, in µs since 1970
	most   int   // buckets, at most
	rest   int   // see rests
	table  table
	logs   map[uint64][]weir.LogEntry
	states []weir.State // memory for the decision that is being made
	_      [64]byte     // two locks never share a cache line
}

// lock takes the lock, for a decision at now, and returns the instant of the decision.
// That is no earlier than that of the decision before: a caller that had to wait for
// the lock may come later than another that has read the clock after it. A last
// decision that is a second ahead was made before the clock was set back.
func (sh *shard) lock(now int64) int64 {
	sh.mu.Lock()
	if ahead := sh.last - now; uint64(ahead) < 1e6 {
		return sh.last
	}
	sh.last = now
	return now
}

// add gives the fingerprint a slot, empty and of the rank someLeft, or returns
// nil if there is no room that may be taken. It takes none from the fingerprints
// to keep.
func (sh *shard) add(id uint64, now int64, keep []uint64) *slot {
	if sh.table == nil {
		sh.table = make(table, 1)
	}
	sl := sh.table.room(id, now, keep)
	for sl == nil && sh.grow(now, keep) {
		sl = sh.table.room(id, now, keep)
	}
	if sl == nil {
		sl = sh.move(sh.table, id, now, keep)
	}
	if sl == nil {
		sl = sh.replace(id, keep)
	}
	if sl == nil {
		return nil
	}
	sh.put(sl, slot{id: id, fate: now << fateBits})
	return sl
}

// replace returns the slot in the homes of id that is lost best. If all there
// refuse, one of them takes the place of one that does not in its other home. If
// all there refuse as well it returns nil.
func (sh *shard) replace(id uint64, keep []uint64) (weakest *slot) {
	homes := sh.table.homes(id)
	for _, b := range homes {
		weakest = b.weaker(weakest, keep)
	}
	if weakest != nil && weakest.rank() != refusing {
		return weakest
	}
	var moves *slot
	for _, b := range homes {
		for i := range b {
			if sl := sh.table.other(b[i].id, b).weaker(weakest, keep); sl != weakest {
				weakest, moves = sl, &b[i]
			}
		}
	}
	if moves == nil || weakest.rank() == refusing {
		return nil
	}
	sh.put(weakest, *moves)
	*moves = slot{}
	return moves
}

// put replaces what is in a slot, and its log.
func (sh *shard) put(sl *slot, s slot) {
	if sl.fate&hasLog != 0 {
		delete(sh.logs, sl.id)
	}
	*sl = s
}

// forget frees a slot, which may be nil.
func (sh *shard) forget(sl *slot) {
	if sl != nil {
		sh.put(sl, slot{})
	}
}

const (
	// mostSteps is how many buckets are looked at for a free slot two moves away.
	// As long as 95 of 100 slots are taken there is one in so many.
	mostSteps = 64

	// rests is for how many keys that is left out after it was in vain: a flood of
	// keys shall not cost more because the table is full.
	rests = 64
)

// move makes room for a fingerprint whose homes are full: it moves one of the
// states in them to that one's other home, if a slot is free there, or if one of
// the states there can move on. Few would have to go without it, but more than
// none, long before the table is full.
func (sh *shard) move(t table, id uint64, now int64, keep []uint64) *slot {
	homes := t.homes(id)
	for _, b := range homes {
		for i := range b {
			if sh.moveOn(t, b, i, now, keep) {
				return &b[i]
			}
		}
	}
	if sh.rest > 0 {
		sh.rest--
		return nil
	}
	steps := 0
	for _, b := range homes {
		for i := range b {
			other := t.other(b[i].id, b)
			for j := range other {
				if steps++; steps > mostSteps {
					sh.rest = rests
					return nil
				}
				if sh.moveOn(t, other, j, now, keep) {
					other[j], b[i] = b[i], slot{}
					return &b[i]
				}
			}
		}
	}
	return nil
}

// moveOn moves a state to its other home, and reports whether there was room.
func (sh *shard) moveOn(t table, b *bucket, i int, now int64, keep []uint64) bool {
	free, _ := t.other(b[i].id, b).room(now, keep)
	if free == nil {
		return false
	}
	sh.put(free, b[i])
	b[i] = slot{}
	return true
}

// grow makes the table about twice as large, up to its bound, and reports whether
// it did. Its sizes are halves of halves of the bound, so that the last step is no
// smaller than others.
func (sh *shard) grow(now int64, keep []uint64) bool {
	n := sh.most
	for n > 1 && (n+1)/2 > len(sh.table) {
		n = (n + 1) / 2
	}
	if n <= len(sh.table) {
		return false
	}
	next := make(table, n)
	for i := range sh.table {
		for j := range sh.table[i] {
			s := &sh.table[i][j]
			switch {
			case s.id == 0:
				continue
			case s.free(now, keep):
				sh.put(s, slot{})
				continue
			}
			sl := next.room(s.id, now, keep)
			if sl == nil {
				if sl = sh.move(next, s.id, now, keep); sl == nil {
					return false // next to impossible: more room, and yet none here
				}
			}
			*sl = *s
		}
	}
	sh.table = next
	return true
}

// room returns n zero states, for the decision under this lock. It holds logs
// until the next one.
func (sh *shard) room(n int) []weir.State {
	if cap(sh.states) < n {
		sh.states = make([]weir.State, n)
	}
	sh.states = sh.states[:n]
	for i := range sh.states {
		s := &sh.states[i]
		s.At, s.A, s.B, s.Log, s.Until = 0, 0, 0, nil, 0 // faster than clear for one
	}
	return sh.states
}

// load reads the state in a slot, which may be nil, into the zero s.
func (sh *shard) load(s *weir.State, sl *slot, id uint64, now int64) {
	if sl == nil || sl.reset() <= now {
		return
	}
	s.At, s.A, s.B, s.Until = sl.at, sl.a, sl.b, sl.reset()
	if sl.fate&hasLog != 0 {
		s.Log = sh.logs[id]
	}
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
	sl.id, sl.at, sl.a, sl.b = id, s.At, s.A, s.B
	sl.fate = (now+int64(d.ResetAfter/time.Microsecond))<<fateBits | rank
	switch {
	case len(s.Log) > 0:
		if sh.logs == nil {
			sh.logs = map[uint64][]weir.LogEntry{}
		}
		sh.logs[id] = s.Log
		sl.fate |= hasLog
	case had:
		delete(sh.logs, id)
	}
}
