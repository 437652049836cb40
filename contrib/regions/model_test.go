package regions_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/test/explore"
)

// A regionState is two regions that claim parts of a rate for spans of two ticks. A region
// does not know the clock of the central store, only that it is one tick off at most.
type regionState struct {
	now    int8
	clocks [2]int8              // what each region takes the time to be
	claims [2][regionSpans]int8 // what each region has claimed of each span
}

const regionSpans, regionParts, regionTicks = 3, 3, 2

// TestModelRegions: the parts that both regions use at one instant are never more than the whole.
func TestModelRegions(t *testing.T) {
	explore.Holds(t, 100, func(fault string) explore.Model[regionState] {
		// part returns what a region uses: the smallest of its parts of the spans in which the
		// clock may be.
		part := func(s *regionState, r int) int8 {
			least, most := int8(regionParts), int8(0)
			for clock := s.clocks[r] - 1; clock <= s.clocks[r]+1; clock++ {
				if span := clock / regionTicks; clock >= 0 && span < regionSpans {
					least, most = min(least, s.claims[r][span]), max(most, s.claims[r][span])
				}
			}
			switch fault {
			case "uses the larger part":
				return most
			case "trusts its clock":
				return s.claims[r][min(regionSpans-1, s.clocks[r]/regionTicks)]
			}
			return least
		}
		return explore.Model[regionState]{
			Next: func(s regionState, then func(string, regionState)) {
				if s.now < regionSpans*regionTicks-1 {
					for x := int8(-1); x <= 1; x++ { // wherever the clocks of the regions go
						for y := int8(-1); y <= 1; y++ {
							after := s
							after.now++
							after.clocks = [2]int8{max(0, after.now+x), max(0, after.now+y)}
							then("time passes", after)
						}
					}
				}
				for r := range s.claims {
					for span := range regionSpans {
						all := s.claims[0][span] + s.claims[1][span]
						if fault == "counts its own claims only" {
							all = s.claims[r][span]
						}
						if all < regionParts {
							after := s
							after.claims[r][span]++
							then(explore.Name(r, "claims a part of span %d", span), after)
						}
					}
				}
			},
			Invalid: func(s regionState) string {
				if part(&s, 0)+part(&s, 1) > regionParts {
					return "the regions use more than the whole"
				}
				return ""
			},
		}
	}, "uses the larger part", "trusts its clock", "counts its own claims only")
}
