package envoy

import (
	"math"
	"strings"
	"sync/atomic"
)

// stats are the metrics of a limit: its labels and its hits, as Envoy's service counts them.
type stats struct {
	domain, key1, key2                  string
	total, within, near, over, shadowed atomic.Uint64
	local                               atomic.Uint64 // the hits of over that the store was not asked for
}

func newStats(names []string) *stats {
	s := &stats{domain: names[0], key1: names[1]}
	s.key2 = strings.Join(names[2:], ".")
	return s
}

// count adds a number of hits to the metrics of a limit. The argument after is the number of
// hits in the window, including these hits. Hits above the fraction ratio of the quota are near it.
func (s *stats) count(hits, after, quota uint64, ratio float32, shadow bool) {
	before := after - min(hits, after)
	near := uint64(math.Floor(float64(float32(quota) * ratio)))
	s.total.Add(hits)
	if after <= quota {
		s.within.Add(hits)
		if after > near {
			s.near.Add(min(hits, after-near))
		}
		return
	}
	beyond := min(hits, after-quota)
	s.over.Add(beyond)
	if shadow {
		s.shadowed.Add(beyond)
	}
	if before < quota { // some of the hits were within the quota
		s.near.Add(quota - max(near, before))
	}
}
