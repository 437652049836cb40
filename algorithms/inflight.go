package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// InFlight allows n requests of a key at a time: a weir.Limiter gives the units of a request
// back when its handler returns. Units of a process that dies come free when lease is over.
// The Limiter renews them when half of the lease has passed, so a request may last longer
// than the lease. A minute suits most services: long enough for a store that is away for a
// while, and short enough for slots of a process that was killed.
//
// It counts as SlidingLog does, with lease as the period, but nobody knows when a request
// will end: RetryAfter of a refused charge is weir.Never and NextAfter is 0, so no charge
// waits, and clients get no Retry-After. ResetAfter is the end of the lease. A caller that
// charges a store by itself gives the units back by a negative Cost with Spent.
func InFlight(n int64, lease time.Duration) weir.Limit {
	return weir.Limit{Algorithm: inFlight{}, Quota: n, Period: lease}
}

type inFlight struct{ slidingLog }

func (inFlight) Name() string   { return "in-flight" }
func (inFlight) String() string { return "in-flight" }

func (g inFlight) Take(s weir.State, l *weir.Limit, now, cost int64) (_ weir.State, d weir.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

// Step decides in place: weir calls it instead of Take.
func (g inFlight) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	ahead := time.Duration(max(0, s.At-now) * microsecond) // > 0 if the clock has stepped back
	g.slidingLog.Step(s, d, l, now, cost)
	if d.NextAfter = ahead; d.RetryAfter > ahead {
		d.RetryAfter = weir.Never
	}
}

// InFlight tells a weir.Limiter to give the units back when the request has ended.
func (inFlight) InFlight() {}

// Unpayable says that granted units pay for no request in flight: see package credit.
func (inFlight) Unpayable() {}
