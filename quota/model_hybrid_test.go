package quota_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A hybridState is a store with one unit in a window, behind the memory of a Hybrid: one
// request and one refund through it at a time, and refunds of another process.
type hybridState struct {
	now     int8
	used    bool // until the window is over
	until   int8 // the memory refuses before this instant; 0 remembers nothing
	dropped int8 // how often the memory was told of a refund
	known   bool // every refund so far was made through this Hybrid

	ask struct {
		at      callStep // sent, decided or without
		sent    int8
		dropped int8
		refused bool
		after   int8 // RetryAfter
	}
	refund callStep
	wrong  bool
}

const windowEnd = 3

// TestModelHybrid: the memory refuses nothing that the store would admit, unless another process
// has given units back. A refund that has returned is never forgotten because of a refusal
// that was decided before it.
func TestModelHybrid(t *testing.T) {
	explore.Holds(t, 100, func(fault string) explore.Model[hybridState] {
		return explore.Model[hybridState]{
			Start: hybridState{known: true},
			Next: func(s hybridState, then func(string, hybridState)) {
				step := func(event string, change func(s *hybridState)) {
					after := s
					change(&after)
					then(event, after)
				}
				free := func(s *hybridState) bool { return !s.used || s.now >= windowEnd }
				if s.now <= windowEnd {
					step("time passes", func(s *hybridState) { s.now++ })
				}
				if s.ask.at == without && s.now < s.until {
					step("the memory refuses", func(s *hybridState) {
						s.wrong = free(s) && s.known && s.refund == without
					})
				} else if s.ask.at == without {
					step("a request is sent", func(s *hybridState) {
						s.ask.at, s.ask.sent, s.ask.dropped = sent, s.now, s.dropped
					})
				}
				switch s.ask.at {
				case sent:
					step("the request is decided", func(s *hybridState) {
						s.ask.at, s.ask.refused, s.ask.after = decided, !free(s), max(0, windowEnd-s.now)
						if !s.ask.refused && s.now < windowEnd {
							s.used = true
						}
					})
				case decided:
					step("the answer comes", func(s *hybridState) {
						from := s.ask.sent
						if fault == "counts from the answer" {
							from = s.now
						}
						if s.ask.refused && (s.ask.dropped == s.dropped || fault == "remembers a refusal older than the refund") {
							s.until = from + s.ask.after
						}
						s.ask.at = without
					})
				}
				switch s.refund {
				case without:
					if s.used && s.dropped == 0 {
						step("a refund is sent", func(s *hybridState) { s.refund = sent })
						step("another process gives back", func(s *hybridState) { s.used, s.known = false, false })
					}
				case sent:
					step("the refund is made", func(s *hybridState) { s.refund, s.used = decided, false })
				case decided:
					step("the refund returns", func(s *hybridState) {
						s.refund = without
						s.dropped++
						if fault != "forgets nothing" {
							s.until = 0
						}
					})
				}
			},
			Invalid: func(s hybridState) string {
				if s.wrong {
					return "refused a request that the store would admit"
				}
				return ""
			},
		}
	}, "remembers a refusal older than the refund", "forgets nothing", "counts from the answer")
}
