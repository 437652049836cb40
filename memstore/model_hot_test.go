package memstore_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A hotState is a shard of memstore with the slot of one key, which may spend hotQuota units, a lock, and
// the words of the hot states of that key.
type hotState struct {
	slot   int8    // how many units are spent, if no state is hot
	words  [2]int8 // of each state that was promoted: how many units are spent, or wasRecalled
	made   int8    // how many states were promoted
	hot    int8    // which of these the shard has, from 1 on; 0 means none
	locked bool
	spent  int8 // by all calls together
	calls  [4]hotCall
	wrong  bool
}

const (
	hotQuota    = 3
	wasRecalled = -1
)

type hotCall struct {
	at   hotStep
	hot  int8 // which hot state it has found
	word int8 // what it has read
}

type hotStep int8

const (
	called    hotStep = iota // it has not begun
	found                    // it has found a hot state, and reads the word
	wordRead                 // it has read the word, and compares and swaps
	waiting                  // it waits for the lock
	locking                  // it has the lock, and looks for a hot state
	recalling                // it has removed the hot state, and recalls the word
	deciding                 // it decides by the slot
	spending                 // it has spent a unit, and may promote the state
	promoting                // it has released the lock before it promotes the state
	returned
)

// TestModelHot: calls spend each unit once, whether they have the lock or not. The last call refunds
// a unit.
func TestModelHot(t *testing.T) {
	explore.Holds(t, 1000, func(fault string) explore.Model[hotState] {
		return explore.Model[hotState]{
			Start: hotState{slot: 1, spent: 1},
			Next: func(s hotState, then func(string, hotState)) {
				for c := range s.calls {
					hotSteps(s, c, fault, then)
				}
			},
			Invalid: func(s hotState) string {
				if s.wrong || s.spent > hotQuota {
					return "a unit was spent twice, or refused though it was there"
				}
				return ""
			},
		}
	}, "spends without comparing the word", "reads the word and recalls it later", "recalls nothing",
		"promotes after it has released the lock", "spends by the slot while the state is hot")
}

func hotSteps(s hotState, c int, fault string, then func(string, hotState)) {
	step := func(event string, change func(s *hotState, me *hotCall)) {
		after := s
		change(&after, &after.calls[c])
		then(explore.Name(c, "%s", event), after)
	}
	refunds := c == len(s.calls)-1
	spend := func(s *hotState, units int8) (left int8, ok bool) {
		if units >= hotQuota {
			s.wrong = s.wrong || s.spent < hotQuota
			return units, false
		}
		s.spent++
		return units + 1, true
	}
	switch me := s.calls[c]; me.at {
	case called:
		step("looks for a hot state", func(s *hotState, me *hotCall) {
			if me.at, me.hot = waiting, s.hot; me.hot > 0 && !refunds {
				me.at = found
			}
		})
	case found:
		step("reads the word", func(s *hotState, me *hotCall) {
			if me.at, me.word = wordRead, s.words[me.hot-1]; me.word == wasRecalled {
				me.at = waiting
			}
		})
	case wordRead:
		step("compares and swaps", func(s *hotState, me *hotCall) {
			word := &s.words[me.hot-1]
			if *word != me.word && fault != "spends without comparing the word" {
				me.at = found
				return
			}
			*word, _ = spend(s, me.word)
			me.at = returned
		})
	case waiting:
		if s.locked {
			return
		}
		step("takes the lock", func(s *hotState, me *hotCall) { s.locked, me.at = true, locking })
	case locking:
		if s.hot == 0 || fault == "spends by the slot while the state is hot" {
			step("finds no hot state", func(s *hotState, me *hotCall) { me.at = deciding })
			return
		}
		step("removes the hot state", func(s *hotState, me *hotCall) {
			me.at, me.hot, s.hot = recalling, s.hot, 0
			me.word = s.words[me.hot-1]
			if fault == "recalls nothing" {
				me.at = deciding
			}
		})
	case recalling:
		step("recalls the word", func(s *hotState, me *hotCall) {
			if fault != "reads the word and recalls it later" {
				me.word = s.words[me.hot-1]
			}
			s.slot, s.words[me.hot-1], me.at = me.word, wasRecalled, deciding
		})
	case deciding:
		step("decides by the slot", func(s *hotState, me *hotCall) {
			ok := false
			switch {
			case !refunds:
				s.slot, ok = spend(s, s.slot)
			case s.slot > 0:
				s.slot, s.spent = s.slot-1, s.spent-1
			}
			if me.at = spending; !ok {
				me.at, s.locked = returned, false
			}
		})
	case spending:
		step("releases the lock", func(s *hotState, me *hotCall) { me.at, s.locked = returned, false })
		switch {
		case int(s.made) == len(s.words):
		case fault == "promotes after it has released the lock":
			step("releases the lock, to promote the state later", func(s *hotState, me *hotCall) {
				me.at, s.locked, me.word = promoting, false, s.slot
			})
		default:
			step("promotes the state", func(s *hotState, me *hotCall) {
				s.words[s.made] = s.slot
				s.made++
				s.hot, me.at, s.locked = s.made, returned, false
			})
		}
	case promoting:
		if int(s.made) == len(s.words) {
			return
		}
		step("promotes the state", func(s *hotState, me *hotCall) {
			s.words[s.made] = me.word
			s.made++
			s.hot, me.at = s.made, returned
		})
	}
}
