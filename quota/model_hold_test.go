package quota_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A flightState is a concurrency limit of one, and three requests that hold a unit, renew it
// and release it, or die. A unit expires after two ticks.
type flightState struct {
	now      int8
	units    [3][2]int8 // until when each request's unit and its renewal count; 0 is none
	requests [3]flying
}

type flying struct {
	at     callStep
	unit   int8 // the index of its unit
	lapsed bool // its unit expired while it ran
}

// A callStep is how far a caller is, in the models of this package.
type callStep int8

const (
	without callStep = iota
	sent             // in TestModelInFlight: a renewal that has not released its old unit
	decided          // the store has decided, and the answer is on its way
	holding
	dead
)

const flightLease, lastTick = 2, 4

// TestModelInFlight: two requests run at once only if one of them could not renew its unit in time.
func TestModelInFlight(t *testing.T) {
	explore.Holds(t, 1000, func(fault string) explore.Model[flightState] {
		return explore.Model[flightState]{
			Start: flightState{now: 1},
			Next: func(s flightState, then func(string, flightState)) {
				if s.now < lastTick {
					after := s
					after.now++
					for r := range after.requests {
						f := &after.requests[r]
						f.lapsed = f.lapsed || (f.at == holding || f.at == sent) && !after.counts(r)
					}
					then("time passes", after)
				}
				for r := range s.requests {
					callSteps(s, r, fault, then)
				}
			},
			Invalid: func(s flightState) string {
				running, lapsed := 0, 0
				for _, f := range s.requests {
					if f.at == holding || f.at == sent {
						running++
						if f.lapsed {
							lapsed++
						}
					}
				}
				if running-lapsed > 1 {
					return "two requests run, and both have their unit"
				}
				return ""
			},
		}
	}, "releases any unit", "releases the old unit first", "counts no renewal")
}

// counts reports whether the store counts a unit of the request.
func (s *flightState) counts(r int) bool {
	return s.units[r][0] > s.now || s.units[r][1] > s.now
}

func (s *flightState) count() (n int) {
	for _, u := range s.units {
		for _, until := range u {
			if until > s.now {
				n++
			}
		}
	}
	return n
}

func callSteps(s flightState, r int, fault string, then func(string, flightState)) {
	step := func(event string, change func(s *flightState, me *flying)) {
		after := s
		change(&after, &after.requests[r])
		then(explore.Name(r, "%s", event), after)
	}
	switch me := s.requests[r]; me.at {
	case without:
		if s.count() == 0 {
			step("starts", func(s *flightState, me *flying) {
				me.at = holding
				s.units[r][0] = s.now + flightLease
			})
		}
	case holding:
		step("renews", func(s *flightState, me *flying) {
			me.at = sent
			switch fault {
			case "counts no renewal": // but releases the old unit
			case "releases the old unit first":
				s.units[r][me.unit] = 0
			default:
				s.units[r][1-me.unit] = s.now + flightLease
			}
		})
		step("ends", func(s *flightState, me *flying) {
			me.at = dead
			if s.units[r][me.unit] > s.now || fault != "releases any unit" {
				s.units[r][me.unit] = 0
				return
			}
			for other := range s.units { // its own has expired
				for i := range s.units[other] {
					if s.units[other][i] > s.now {
						s.units[other][i] = 0
						return
					}
				}
			}
		})
		step("dies", func(s *flightState, me *flying) { me.at = dead })
	case sent:
		step("has renewed", func(s *flightState, me *flying) {
			me.at = holding
			if fault == "releases the old unit first" {
				s.units[r][1-me.unit] = s.now + flightLease
			}
			s.units[r][me.unit] = 0
			me.unit = 1 - me.unit
		})
	}
}

// A releaseState is the units of three requests that a store has spent in one µs, which it cannot
// tell apart, and how far each of the requests is.
type releaseState struct {
	units    int8
	requests [3]callStep // holding, sent (a release whose result is unknown), dead
}

// TestModelReleaseAgain: each request that runs has its unit, and no unit is left when all have been
// released, whatever becomes of the first release of each.
func TestModelReleaseAgain(t *testing.T) {
	explore.Holds(t, 15, func(fault string) explore.Model[releaseState] {
		return explore.Model[releaseState]{
			Start: releaseState{units: 3, requests: [3]callStep{holding, holding, holding}},
			Next: func(s releaseState, then func(string, releaseState)) {
				for r, at := range s.requests {
					release := func(event string, applied bool, to callStep) {
						after := s
						if applied && after.units > 0 {
							after.units--
						}
						after.requests[r] = to
						then(explore.Name(r, "%s", event), after)
					}
					switch {
					case at == holding:
						release("is released", true, dead)
						release("is released, and the answer is lost", true, sent)
						release("is not released", false, sent)
					case at == sent && fault == "gives up":
						release("gives up", false, dead)
					case at == sent && (fault == "does not wait" || s.holding() == 0):
						release("is released again", true, dead)
					}
				}
			},
			Invalid: func(s releaseState) string {
				switch {
				case s.units < s.holding():
					return "a request runs without its unit"
				case s.requests == [3]callStep{dead, dead, dead} && s.units > 0:
					return "a unit is left"
				}
				return ""
			},
		}
	}, "does not wait", "gives up")
}

// holding returns how many requests run.
func (s *releaseState) holding() (n int8) {
	for _, at := range s.requests {
		if at == holding {
			n++
		}
	}
	return n
}
