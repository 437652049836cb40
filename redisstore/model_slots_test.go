package redisstore_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A slotState is a transaction of redisstore over two slots, made by three clients at once:
// ask both slots, charge one after the other, and give the first back if the second refuses.
// Any answer may be lost.
type slotState struct {
	used    [2]int8 // units spent in each slot
	told    [2]int8 // units of clients that were admitted
	owed    [2]int8 // units that a client is about to give back, or has spent so far
	lost    bool
	clients [3]slotClient
}

type slotClient struct {
	at    step
	asked [2]bool
	first int8 // the slot that was charged first
}

type step int8

const (
	asking step = iota
	charging
	second
	giving
	over
)

const slotQuota = 2

// TestModelSlots: no slot admits more than its quota, and every admitted unit is spent; without a
// lost answer nothing else is spent.
func TestModelSlots(t *testing.T) {
	explore.Holds(t, 1000, func(fault string) explore.Model[slotState] {
		return explore.Model[slotState]{
			Next: func(s slotState, then func(string, slotState)) {
				for c := range s.clients {
					slotSteps(s, c, fault, then)
				}
			},
			Invalid: func(s slotState) string {
				quiet := true
				for _, c := range s.clients {
					quiet = quiet && c.at == over
				}
				for k := range s.used {
					switch {
					case s.told[k] > slotQuota:
						return "a slot admitted more than its quota"
					case s.told[k]+s.owed[k] > s.used[k]:
						return "a unit was admitted that is not spent"
					case quiet && !s.lost && s.used[k] != s.told[k]:
						return "a unit stays spent for nobody"
					}
				}
				return ""
			},
		}
	}, "charges although the slot is full", "gives back twice if the answer is lost", "keeps the first unit")
}

func slotSteps(s slotState, c int, fault string, then func(string, slotState)) {
	me := s.clients[c]
	step := func(event string, change func(s *slotState, me *slotClient)) {
		after := s
		change(&after, &after.clients[c])
		then(explore.Name(c, "%s", event), after)
	}
	charge := func(s *slotState, slot int8) bool {
		if s.used[slot] >= slotQuota && fault != "charges although the slot is full" {
			return false
		}
		s.used[slot]++
		return true
	}
	lose := func(s *slotState, me *slotClient) { s.lost, me.at = true, over }
	switch me.at {
	case asking:
		for k := range int8(2) {
			if me.asked[k] {
				continue
			}
			step("asks a slot", func(s *slotState, me *slotClient) {
				switch me.asked[k] = true; {
				case s.used[k] >= slotQuota:
					me.at = over
				case me.asked[1-k]:
					me.at = charging
				}
			})
		}
	case charging:
		for k := range int8(2) {
			step("charges the first slot", func(s *slotState, me *slotClient) {
				me.at, me.first = over, k
				if charge(s, k) {
					me.at = second
					s.owed[k]++
				}
			})
			step("charges the first slot, and the answer is lost", func(s *slotState, me *slotClient) {
				charge(s, k)
				lose(s, me)
			})
		}
	case second:
		k := 1 - me.first
		step("charges the second slot", func(s *slotState, me *slotClient) {
			if !charge(s, k) {
				me.at = giving
				return
			}
			me.at = over
			s.owed[me.first]--
			s.told[0]++
			s.told[1]++
		})
		step("charges the second slot, and the answer is lost", func(s *slotState, me *slotClient) {
			charge(s, k)
			s.owed[me.first]--
			lose(s, me)
		})
	case giving:
		back := func(s *slotState, me *slotClient) {
			s.owed[me.first]--
			if fault != "keeps the first unit" {
				s.used[me.first]--
			}
			me.at = over
		}
		step("gives back", back)
		step("gives back, and the answer is lost", func(s *slotState, me *slotClient) {
			back(s, me)
			s.lost = true
			if fault == "gives back twice if the answer is lost" {
				s.used[me.first]--
			}
		})
		step("gives back, and the call is lost", func(s *slotState, me *slotClient) {
			s.owed[me.first]--
			lose(s, me)
		})
	}
}
