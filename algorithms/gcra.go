package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// GCRA allows n units per period, evenly: one unit becomes free every period/n.
// Up to Burst units may be spent at once, or n if Burst is 0. In any span of one
// period, (t − period, t], GCRA admits at most Burst + Quota − 1 units.
//
// It is the generic cell rate algorithm of ITU-T I.371, as a virtual scheduling
// algorithm: each unit moves a theoretical arrival time on by period/n, and that time
// may be ahead of the clock by at most Burst·period/n. The state holds how far it is
// ahead, in ticks. A unit is free in the whole microsecond in which it becomes free, so the
// rate is exact, whatever the Burst. Validate refuses a Burst below n/period per
// microsecond, which could not keep the rate.
func GCRA(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: gcra{}, Quota: n, Period: period}
}

type gcra struct{}

func (gcra) Name() string                  { return "gcra" }
func (gcra) String() string                { return "gcra" }
func (gcra) Validate(l *quota.Limit) error { return meterOf(l).validate(l) }

func (g gcra) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (gcra) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Meter implements redisstore.Metered. It returns numbers of ticks: how many a unit adds to
// the debt, how many drain from the debt in a µs, and how many the debt may have.
func (gcra) Meter(l *quota.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements quota.Canceler.
func (gcra) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	return meterOf(l).cancel(s, now, at, n)
}

// Force implements quota.Forcer.
func (gcra) Force(s quota.State, l *quota.Limit, at, cost int64) quota.State {
	return meterOf(l).force(s, at, cost)
}
