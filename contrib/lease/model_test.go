package lease_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A leaseState is a window of a store and two processes that lease units of it. A call may be
// decided long after it was sent, and its answer may come long after that, or never.
type leaseState struct {
	window    int8    // counts the windows of the store
	used      int8    // units spent in the window
	served    [2]int8 // requests admitted in each window
	processes [2]leaser
}

type leaser struct {
	at     leaseStep
	window int8 // in which the units were spent
	held   int8
}

type leaseStep int8

const (
	without leaseStep = iota
	sent
	decided // the store has decided, and the answer is on its way
	holding
	dead
)

const leaseQuota, leaseUnits = 3, 2

// TestModelLease: a unit counts in the window in which it is used, so no window admits more than
// its quota, whoever dies and whatever is late.
func TestModelLease(t *testing.T) {
	explore.Holds(t, 100, func(fault string) explore.Model[leaseState] {
		return explore.Model[leaseState]{
			Next: func(s leaseState, then func(string, leaseState)) {
				if s.window == 0 {
					after := s
					after.window, after.used = 1, 0
					then("the next window begins", after)
				}
				for p := range s.processes {
					leaseSteps(s, p, fault, then)
				}
			},
			Invalid: func(s leaseState) string {
				for _, n := range s.served {
					if n > leaseQuota {
						return "a window admitted more than its quota"
					}
				}
				return ""
			},
		}
	}, "uses units of an earlier window", "gives units of an earlier window back", "gives back and uses on")
}

func leaseSteps(s leaseState, p int, fault string, then func(string, leaseState)) {
	step := func(event string, change func(s *leaseState, me *leaser)) {
		after := s
		change(&after, &after.processes[p])
		then(explore.Name(p, "%s", event), after)
	}
	giveBack := func(s *leaseState, me *leaser) {
		if me.window == s.window || fault == "gives units of an earlier window back" {
			s.used = max(0, s.used-me.held)
		}
		me.at = without
		if fault != "gives back and uses on" {
			me.held = 0
		} else if me.held > 0 {
			me.at = holding
		}
	}
	switch me := s.processes[p]; me.at {
	case without:
		step("asks for units", func(s *leaseState, me *leaser) { me.at = sent })
	case sent:
		step("is decided", func(s *leaseState, me *leaser) {
			me.at, me.window = decided, s.window
			if s.used+leaseUnits <= leaseQuota {
				s.used, me.held = s.used+leaseUnits, leaseUnits
			}
		})
	case decided:
		step("gets the answer", func(s *leaseState, me *leaser) { me.at = holding })
		step("gets the answer too late", giveBack)
	case holding:
		// The time since the call was sent is at least the time since it was decided, so the
		// process knows no later than the store that the window is over.
		if me.held > 0 && (me.window == s.window || fault == "uses units of an earlier window") {
			step("admits a request", func(s *leaseState, me *leaser) { me.held--; s.served[s.window]++ })
		}
		step("ends its lease", giveBack)
		step("dies", func(s *leaseState, me *leaser) { *me = leaser{at: dead} })
	}
}
