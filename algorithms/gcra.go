package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// GCRA allows n units per period at an even rate: one unit becomes available every period/n. Up to
// Burst units may be spent at once, or up to n units if Burst is 0. In any interval
// (t − period, t], GCRA admits at most Burst + Quota − 1 units.
//
// GCRA is the virtual scheduling form of the generic cell rate algorithm in ITU-T I.371. Each unit
// that a key spends advances the key's theoretical arrival time by period/n. A charge is allowed if
// the new theoretical arrival time is at most Burst·period/n ahead of the clock. The time at which
// a unit becomes available is rounded down to a whole microsecond, so rounding never lowers the
// rate. Validate rejects a Burst that is smaller than the number of units per microsecond, because
// such a limit could not sustain its rate.
func GCRA(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: gcra, Quota: n, Period: period}
}
