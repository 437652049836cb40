package memstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// The constant ways is the number of slots in a bucket. Each state has two possible buckets, its
// homes, and can be moved from one home to the other. Until the table is more than nine tenths
// full, there is therefore room for every new state.
const ways = 8

// A table is a hash table without pointers, so the garbage collector does not scan it, however many
// states the table holds.
type table []bucket

// A bucket is five adjacent cache lines. Reading all of them takes little longer than
// reading the first.
type bucket [ways]slot

// A slot holds the fingerprint of a state, the state, and the reset, which is the instant from
// which the state leads to the same decisions as the zero State. At the reset, the state expires
// and the slot becomes free, so no sweep is needed.
type slot struct {
	id       uint64 // 0 if the slot is empty
	at, a, b int64  // At, A and B of the state; if the state has a log or a C, b is the index of its log in shard.logs
	fate     int64  // reset in µs since 1970 << 3 | hasLog | rank
}

// The rank of a slot says how much would be lost with the slot's state: the higher, the more. The
// rank never falls before the state expires.
const (
	someLeft = iota // the state has units left
	noneLeft        // the state has no units left
	refusing        // the state has refused a charge

	rankMask = 3
	hasLog   = 4 // the state has a log or a C: see logs.go
	fateBits = 3
)

func (s *slot) reset() int64 { return s.fate >> fateBits }
func (s *slot) rank() int64  { return s.fate & rankMask }

func (s *slot) raise(rank int64) {
	if s.rank() < rank {
		s.fate = s.fate&^rankMask | rank
	}
}

// rankAfter returns the rank of the slot after a charge was spent now.
func (s *slot) rankAfter(none bool, now int64) int64 {
	rank := int64(someLeft)
	if none {
		rank = noneLeft
	}
	if s.reset() > now {
		rank = max(rank, s.rank())
	}
	return rank
}

// rankRefusal gives the slot the rank refusing if d is a refusal. The slot s may be nil, because a
// key without a state is refused only if the cost exceeds the capacity, and needs no state to be
// refused again.
func (s *slot) rankRefusal(d *quota.Decision, now int64) {
	if s != nil && !d.Allowed && s.reset() > now {
		s.raise(refusing)
	}
}

// bucketsFor returns the number of buckets of a shard for n states. These have room for 2/15 more
// states, because a shard may by chance get more states than the average shard.
func bucketsFor(n int) int { return max(1, (n*17/15+ways-1)/ways) }

// firstHome returns one of the two homes of a fingerprint, the buckets that may hold the
// fingerprint's state. The homes are the same bucket only if the table has just one bucket.
func (t table) firstHome(id uint64) *bucket { return &t[index(id, len(t))] }

func (t table) secondHome(id uint64) *bucket {
	i := index(id*0xff51afd7ed558ccd, len(t)-1)
	if len(t) > 1 && i >= index(id, len(t)) {
		i++
	}
	return &t[i]
}

// otherHome returns the home of a fingerprint other than b, or b if the table has only one bucket.
func (t table) otherHome(id uint64, b *bucket) *bucket {
	if first := t.firstHome(id); first != b {
		return first
	}
	return t.secondHome(id)
}

func (t table) homes(id uint64) [2]*bucket { return [...]*bucket{t.firstHome(id), t.secondHome(id)} }

// find returns the slot of a fingerprint, or nil. The slot stays valid until the next add.
func (t table) find(id uint64) *slot {
	if len(t) == 0 {
		return nil
	}
	if sl := t.firstHome(id).find(id); sl != nil {
		return sl
	}
	return t.secondHome(id).find(id)
}

func (b *bucket) find(id uint64) *slot {
	for i := range b {
		if b[i].id == id {
			return &b[i]
		}
	}
	return nil
}

// isFree reports whether a new state may use the slot, that is, whether the slot is empty, or the
// slot's state has expired and its fingerprint is not in the list keep.
func (s *slot) isFree(now int64, keep []uint64) bool {
	return s.id == 0 || s.reset() <= now && !slices.Contains(keep, s.id)
}

// room returns the first free slot of the bucket, or nil, and how many slots of the bucket
// are taken.
func (b *bucket) room(now int64, keep []uint64) (free *slot, taken int) {
	for i := range b {
		if !b[i].isFree(now, keep) {
			taken++
		} else if free == nil {
			free = &b[i]
		}
	}
	return free, taken
}

// room returns a free slot in the homes of id, or nil. It prefers the first home, where find looks
// first. If the first home has at most two free slots, room prefers the emptier home, so that both
// homes of a new state are rarely full.
func (t table) room(id uint64, now int64, keep []uint64) *slot {
	one, taken := t.firstHome(id).room(now, keep)
	if taken < ways-2 {
		return one
	}
	if two, n := t.secondHome(id).room(now, keep); n < taken {
		return two
	}
	return one
}

// lossRank is higher the more would be lost with the slot's state. It orders slots by rank, and
// slots of the same rank by reset.
func (s *slot) lossRank() int64 { return s.reset() | s.rank()<<60 }

// pickWeakest compares the slot s, which may be nil, with those slots of b whose fingerprints are
// not in the list keep. It returns the slot with the lowest lossRank.
func (b *bucket) pickWeakest(s *slot, keep []uint64) *slot {
	for i := range b {
		if (s == nil || b[i].lossRank() < s.lossRank()) && !slices.Contains(keep, b[i].id) {
			s = &b[i]
		}
	}
	return s
}

// A shard is a table under a lock. All limits of a key are in the same shard. A shard has the size
// of three cache lines. Under the lock, an allowed charge of a meter accesses only the first 56
// bytes of the shard, and a slot.
type shard struct {
	mu       sync.Mutex
	last     int64 // the instant of the last decision under the lock, in µs since 1970
	table    table
	most     int32 // the maximum number of buckets of the table
	rest     int16 // for how many more calls move skips moveTwo
	times    int16 // how many decisions of repeated count for its promotion
	hot      atomic.Pointer[hot]
	repeated uint64 // the fingerprint of the state that promote counts

	logs   logs
	states []quota.State // memory for the decision in progress

	evicted atomic.Int64 // how many states the shard has replaced: see Stats

	_ [48]byte
}

// lock takes the lock for a decision at the current time, and returns the instant of the decision.
func (sh *shard) lock(now int64) int64 {
	sh.mu.Lock()
	sh.recall(now)
	return sh.instant(now)
}

// instant returns the instant of a decision. The caller has read the clock (now) before taking the
// lock, and another caller may have read a later time and taken the lock first. The result is
// therefore never earlier than the instant of the last decision under the lock. There is one
// exception: if that instant is a second or more ahead of now, the clock has been set back, and
// instant returns now.
func (sh *shard) instant(now int64) int64 {
	if ahead := sh.last - now; uint64(ahead) < 1e6 {
		return sh.last
	}
	sh.last = now
	return now
}

// add returns a slot for the fingerprint id, or nil if there is no room. The slot has the rank
// someLeft and a state that expires now. add never reuses a slot whose fingerprint is in keep.
func (sh *shard) add(id uint64, now int64, keep []uint64) *slot {
	sh.recall(now) // because add may move states, or replace one
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
		if sl = sh.replace(id, keep); sl != nil && sh.evicted.Add(1)%mostUnlogged == 1 {
			if _, ok := full.Pass(); ok {
				go warnFull()
			}
		}
	}
	if sl == nil {
		return nil
	}
	sh.put(sl, slot{id: id, fate: now << fateBits})
	return sl
}

// Only one eviction in mostUnlogged checks whether it may be logged, because the check takes as
// long as the eviction itself.
const mostUnlogged = 1024

// replace returns the slot with the lowest worth in the homes of id. If all states there have the
// rank refusing, replace moves one of these states to its other home, where it takes the place of a
// state of lower rank, and returns the slot that the moved state has left. If the other homes have
// no state of lower rank, replace returns nil.
func (sh *shard) replace(id uint64, keep []uint64) (weakest *slot) {
	homes := sh.table.homes(id)
	for _, b := range homes {
		weakest = b.pickWeakest(weakest, keep)
	}
	if weakest != nil && weakest.rank() != refusing {
		return weakest
	}
	var moves *slot
	for _, b := range homes {
		for i := range b {
			if sl := sh.table.otherHome(b[i].id, b).pickWeakest(weakest, keep); sl != weakest {
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

// put replaces the content of a slot, and frees the log of the old state.
func (sh *shard) put(sl *slot, s slot) {
	if sl.fate&hasLog != 0 {
		sh.logs.drop(sl.b)
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
	// mostSteps is the number of buckets in which moveTwo searches for a free slot. While at most
	// 95 of 100 slots are taken, at least one in mostSteps buckets has a free slot on average.
	mostSteps = 64

	// After a search by moveTwo finds nothing, move skips moveTwo in the next rests calls. If
	// clients flood a full table with new keys, most new states therefore cost no such search.
	rests = 64
)

// move makes room for a fingerprint whose homes are full, and returns the slot that it frees,
// or nil. It moves a state out of these homes to the state's other home. The other home must
// have a free slot, or a state that can itself move on. Without move, a few states would be
// lost long before the table is full.
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
	return sh.moveTwo(t, homes, now, keep)
}

// moveTwo frees a slot in homes by two moves. It searches for a state whose other home contains a
// state that can move to its own other home.
func (sh *shard) moveTwo(t table, homes [2]*bucket, now int64, keep []uint64) *slot {
	steps := 0
	for _, b := range homes {
		for i := range b {
			other := t.otherHome(b[i].id, b)
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

// moveOn moves the i-th state of b to its other home, and reports whether there was room.
func (sh *shard) moveOn(t table, b *bucket, i int, now int64, keep []uint64) bool {
	free, _ := t.otherHome(b[i].id, b).room(now, keep)
	if free == nil {
		return false
	}
	sh.put(free, b[i])
	b[i] = slot{}
	return true
}

// grow makes the table about twice as large, but no larger than its bound, and reports whether it
// has grown. The possible sizes are the bound, half of the bound, a quarter of it and so on, so
// that the last step also doubles the table.
func (sh *shard) grow(now int64, keep []uint64) bool {
	n := int(sh.most)
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
			case s.isFree(now, keep):
				sh.put(s, slot{})
				continue
			}
			sl := next.room(s.id, now, keep)
			if sl == nil {
				if sl = sh.move(next, s.id, now, keep); sl == nil {
					return false // very rarely, the larger table has no room for this state
				}
			}
			*sl = *s
		}
	}
	sh.table = next
	return true
}

// zeroStates returns n zero states for the decision under this lock. Logs in these states stay
// allocated until the next decision.
func (sh *shard) zeroStates(n int) []quota.State {
	if cap(sh.states) < n {
		sh.states = make([]quota.State, n)
	}
	sh.states = sh.states[:n]
	for i := range sh.states {
		s := &sh.states[i]
		s.At, s.A, s.B, s.C, s.Log = 0, 0, 0, 0, nil // for a single state, this is faster than clear
	}
	return sh.states
}

// load reads the state in a slot into s, which must be the zero State. The slot may be nil.
func (sh *shard) load(s *quota.State, sl *slot, now int64) {
	if sl == nil || sl.reset() <= now {
		return
	}
	s.At, s.A, s.B = sl.at, sl.a, sl.b
	if sl.fate&hasLog != 0 {
		sh.logs.all[sl.b].load(s)
	}
}

// unchanged reports whether a charge of the given cost, which led to the state s, has left the
// state in the slot unchanged. If there are no units to refund, a charge with a negative cost
// changes nothing. The state then keeps its expiry time, even if the limit of the charge has a
// longer period and thus a longer ResetAfter.
func (sl *slot) unchanged(cost int64, s *quota.State) bool {
	return cost == 0 || cost < 0 && sl != nil && sl.at == s.At && sl.a == s.A && sl.b == s.B && sl.fate&hasLog == 0
}

// save writes a state to a slot. The slot is nil only if the state need not be kept.
func (sh *shard) save(sl *slot, id uint64, now int64, s *quota.State, d *quota.Decision) {
	if sl == nil {
		return
	}
	rank := sl.rankAfter(d.Remaining == 0, now)
	b, had, has := s.B, sl.fate&hasLog, int64(0)
	switch {
	case len(s.Log) > 0 || s.C != 0:
		if b, has = sl.b, hasLog; had == 0 {
			b = sh.logs.add()
		}
		sh.logs.all[b].save(s)
	case had != 0:
		sh.logs.drop(sl.b)
	}
	sl.id, sl.at, sl.a, sl.b = id, s.At, s.A, b
	sl.fate = (now+int64(d.ResetAfter/time.Microsecond))<<fateBits | has | rank
}
