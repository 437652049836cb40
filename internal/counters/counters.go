// Package counters finds the algorithms of package algorithms by their names.
package counters

import (
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// All has a limit of each algorithm except Calendar, which also needs a unit and a time
// zone.
var All = []quota.Limit{
	algorithms.GCRA(1, 1), algorithms.TokenBucket(1, 1, 1), algorithms.LeakyBucket(1, 1, 1),
	algorithms.FixedWindow(1, 1), algorithms.AnchoredWindow(1, 1), algorithms.SlidingWindow(1, 1), algorithms.SlidingLog(1, 1),
	algorithms.InFlight(1, 1),
}

// Named returns the algorithm with that name, or nil for Calendar and for unknown names.
func Named(name string) quota.Algorithm {
	for _, l := range All {
		if l.Algorithm.Name() == name {
			return l.Algorithm
		}
	}
	return nil
}
