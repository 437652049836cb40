package models_test

import "testing"

// A flightState is a concurrency limit of one, and three requests that hold a unit, renew it
// and release it, or die. A unit expires after two ticks.
type flightState struct {
	now      int8
	units    [3][2]int8 // until when each request's unit and its renewal count; 0 is none
	requests [3]flying
}

type flying struct {
	at     leaseStep // without, holding, sent (a renewal that has not given back its old unit), dead
	unit   int8      // the index of its unit
	lapsed bool      // its unit expired while it ran
}

const flightLease, lastTick = 2, 4

// TestInFlight: two requests run at once only if one of them could not renew its unit in time.
func TestInFlight(t *testing.T) {
	holds(t, 1000, func(fault string) model[flightState] {
		return model[flightState]{
			start: flightState{now: 1},
			next: func(s flightState, then func(string, flightState)) {
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
					flightSteps(s, r, fault, then)
				}
			},
			invalid: func(s flightState) string {
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
	}, "releases any unit", "gives the old unit back first", "counts no renewal")
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

func flightSteps(s flightState, r int, fault string, then func(string, flightState)) {
	step := func(event string, change func(s *flightState, me *flying)) {
		after := s
		change(&after, &after.requests[r])
		then(name(r, "%s", event), after)
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
			case "counts no renewal": // but gives the old unit back
			case "gives the old unit back first":
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
			if fault == "gives the old unit back first" {
				s.units[r][1-me.unit] = s.now + flightLease
			}
			s.units[r][me.unit] = 0
			me.unit = 1 - me.unit
		})
	}
}
