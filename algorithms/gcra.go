package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// GCRA allows n units per period, evenly: one unit becomes free every period/n.
// Up to Burst units may be spent at once, or n if Burst is 0. In any interval of one
// period, (t − period, t], GCRA admits at most Burst + Quota − 1 units.
//
// It is the generic cell rate algorithm of ITU-T I.371, as a virtual scheduling
// algorithm: each unit moves a theoretical arrival time on by period/n, and that time
// may be ahead of the clock by at most Burst·period/n. The state holds how far it is
// ahead, in ticks. A unit is free in the whole microsecond in which it becomes free, so the
// rate is exact, whatever the Burst. Validate refuses a Burst below n/period per
// microsecond, which could not keep the rate.
func GCRA(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: gcra, Quota: n, Period: period}
}
