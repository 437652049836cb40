package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// GCRA allows quota units per period, evenly: a unit is free again period/quota
// after it was spent, and up to quota, or Burst, of them may be spent at once.
// In any window of the period, (t − period, t], it admits at most
// Burst + Quota − 1.
//
// It is the generic cell rate algorithm of ITU-T I.371, as a virtual scheduling
// algorithm: a theoretical arrival time moves on by period/quota a unit, and may
// lead the clock by no more than the burst. The state is that time.
func GCRA(quota int64, period time.Duration) weir.Limit {
	return weir.Limit{Algorithm: gcra{}, Quota: quota, Period: period}
}

type gcra struct{}

func (gcra) Name() string                 { return "gcra" }
func (gcra) String() string               { return "gcra" }
func (gcra) Validate(l *weir.Limit) error { return meterOf(l).validate(l) }

func (g gcra) Take(s weir.State, l *weir.Limit, now, cost int64) (_ weir.State, d weir.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

// Step decides in place: weir calls it instead of Take.
func (gcra) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Meter tells stores that it is a meter: see weir.Transaction.Plan and redisstore.Metered.
func (gcra) Meter(l *weir.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel makes it a weir.Canceler.
func (gcra) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	return meterOf(l).cancel(s, now, at, n)
}
