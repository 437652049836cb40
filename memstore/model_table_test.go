package memstore_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A tableState is a shard of memstore whose buckets have one slot each: it grows from one slot
// to two and four, and five keys with two units each want to be in it.
type tableState struct {
	size  int8
	slots [4]tableSlot
	keys  [5]tableKey // what a store without a bound would know
}

type tableSlot struct {
	key   int8 // 0 is none, otherwise the number of the key and 1
	spent int8
	rank  int8 // 0 units left, 1 none left, 2 refusing
}

type tableKey struct {
	spent   int8
	limited bool // it was refused since it had all its units
	lost    bool // it was forgotten
}

const tableUnits = 2

// tableHomes returns the two slots where a key may be. In the largest table the first and the
// last key have one and the same.
func tableHomes(key, size int8) [2]int8 {
	switch size {
	case 1:
		return [2]int8{}
	case 2:
		return [2]int8{key % 2, 1 - key%2}
	}
	return [...][2]int8{{0, 0}, {1, 2}, {2, 0}, {3, 1}, {0, 0}}[key]
}

// TestModelTable: a table that grows, moves states and evicts them never loses a key that is
// limited, and loses no key while it is not full. No key is in it twice, or where it is not
// looked for.
func TestModelTable(t *testing.T) {
	explore.Holds(t, 5000, func(fault string) explore.Model[tableState] {
		return explore.Model[tableState]{
			Start: tableState{size: 1},
			Next:  func(s tableState, then func(string, tableState)) { tableSteps(s, fault, then) },
			Invalid: func(s tableState) string {
				for k, key := range s.keys {
					found := 0
					for i, sl := range s.slots {
						if sl.key != int8(k)+1 {
							continue
						}
						found++
						if h := tableHomes(int8(k), s.size); int8(i) != h[0] && int8(i) != h[1] {
							return "a key is where nobody looks for it"
						}
						if !key.lost && sl.spent != key.spent {
							return "a key has other units than were spent"
						}
					}
					switch {
					case found > 1:
						return "a key is in the table twice"
					case key.limited && (found == 0 || key.lost):
						return "a key that is limited was lost"
					case key.spent > 0 && !key.lost && found == 0:
						return "a key was lost and nobody knows"
					}
				}
				return ""
			},
		}
	}, "evicts any key", "the rank falls when a unit is given back", "a growing table loses what has no room", "a move overwrites a state",
		"a state is looked for in its first home only", "a new size, and states stay where they are", "adds a key that is there")
}

func tableSteps(s tableState, fault string, then func(string, tableState)) {
	for k := range s.keys {
		k := int8(k)
		step := func(event string, change func(s *tableState, sl *tableSlot)) {
			after := s
			sl := after.find(k)
			if fault == "a state is looked for in its first home only" && sl != nil && sl != &after.slots[tableHomes(k, s.size)[0]] {
				sl = nil
			}
			change(&after, sl)
			then(explore.Name(int(k), "%s", event), after)
		}
		step("spends a unit", func(s *tableState, sl *tableSlot) {
			if sl != nil && fault != "adds a key that is there" {
				if sl.spent == tableUnits {
					sl.rank = 2
					s.keys[k].limited = true
					return
				}
			} else if sl = s.add(k, fault); sl == nil {
				return // ErrFull
			}
			if s.keys[k].lost || sl.spent == 0 { // what was lost counts no longer
				s.keys[k] = tableKey{spent: sl.spent}
			}
			sl.spent++
			s.keys[k].spent++
			if sl.spent == tableUnits {
				sl.rank = max(sl.rank, 1)
			}
		})
		if s.find(k) != nil {
			step("gets a unit back", func(s *tableState, _ *tableSlot) {
				sl := s.find(k)
				sl.spent--
				s.keys[k].spent = sl.spent
				if fault == "the rank falls when a unit is given back" {
					sl.rank = 0
				}
				if sl.spent == 0 { // the state has ended, and its slot is free
					*sl, s.keys[k] = tableSlot{}, tableKey{}
				}
			})
			step("expires", func(s *tableState, _ *tableSlot) { *s.find(k), s.keys[k] = tableSlot{}, tableKey{} })
		}
	}
}

func (s *tableState) find(key int8) *tableSlot {
	for _, h := range tableHomes(key, s.size) {
		if sl := &s.slots[h]; sl.key == key+1 {
			return sl
		}
	}
	return nil
}

// add returns a slot for a new key, as add of memstore does: a free one, one of a larger table,
// one whose state moves to its other home, or one whose state is lost.
func (s *tableState) add(key int8, fault string) *tableSlot {
	sl := s.room(key)
	for sl == nil && s.grow(fault) {
		sl = s.room(key)
	}
	if sl == nil {
		sl = s.move(key, fault)
	}
	if sl == nil {
		sl = s.replace(key, fault)
	}
	if sl != nil {
		*sl = tableSlot{key: key + 1}
	}
	return sl
}

func (s *tableState) room(key int8) *tableSlot {
	for _, h := range tableHomes(key, s.size) {
		if s.slots[h].key == 0 {
			return &s.slots[h]
		}
	}
	return nil
}

func (s *tableState) grow(fault string) bool {
	if int(s.size) == len(s.slots) {
		return false
	}
	next := tableState{size: s.size * 2, keys: s.keys}
	if fault == "a new size, and states stay where they are" {
		s.size = next.size
		return true
	}
	for _, old := range s.slots {
		if old.key == 0 {
			continue
		}
		sl := next.room(old.key - 1)
		if sl == nil {
			sl = next.move(old.key-1, "")
		}
		switch {
		case sl != nil:
			*sl = old
		case fault != "a growing table loses what has no room":
			return false
		}
	}
	*s = next
	return true
}

// other returns the other home of the key in slot i.
func (s *tableState) other(i int8) int8 {
	h := tableHomes(s.slots[i].key-1, s.size)
	if h[0] != i {
		return h[0]
	}
	return h[1]
}

func (s *tableState) move(key int8, fault string) *tableSlot {
	for _, h := range tableHomes(key, s.size) {
		o := s.other(h)
		if o == h || s.slots[o].key != 0 && fault != "a move overwrites a state" {
			continue
		}
		s.slots[o] = s.slots[h]
		s.slots[h] = tableSlot{}
		return &s.slots[h]
	}
	return nil
}

// replace loses the state of the least rank, unless all are limited.
func (s *tableState) replace(key int8, fault string) *tableSlot {
	homes := tableHomes(key, s.size)
	least := homes[0]
	if s.slots[homes[1]].rank < s.slots[least].rank {
		least = homes[1]
	}
	free := least
	if s.slots[least].rank == 2 && fault != "evicts any key" { // one of them takes the place of a weaker one
		least = -1
		for _, h := range homes {
			if o := s.other(h); s.slots[o].rank < 2 {
				least, free = o, h
				break
			}
		}
		if least < 0 {
			return nil
		}
	}
	if lost := s.slots[least].key - 1; lost >= 0 {
		s.keys[lost].lost = true
	}
	if free != least {
		s.slots[least], s.slots[free] = s.slots[free], tableSlot{}
	}
	return &s.slots[free]
}
