package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// GCRA allows n units per period at an even rate: one unit becomes available every period/n. Up to
// Burst units may be spent at once, or n if Burst is 0. In any interval of one period, (t −
// period, t], GCRA admits at most Burst + Quota − 1 units.
//
// GCRA is the generic cell rate algorithm of ITU-T I.371, in its form as a virtual scheduling
// algorithm: each unit advances a theoretical arrival time by period/n, and that time may be ahead
// of the clock by at most Burst·period/n. The state holds how far it is ahead, in ticks. A unit
// counts as available from the start of the microsecond in which it becomes available. Rounding
// therefore never lowers the rate, whatever the Burst. Validate rejects a Burst that is smaller
// than the number of units per microsecond, because such a limit could not sustain its rate.
func GCRA(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: gcra, Quota: n, Period: period}
}
