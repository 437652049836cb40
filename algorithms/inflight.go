package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// InFlight allows n concurrent requests for each key. A weir.Limiter releases the units of a
// request when its handler returns. If the process dies, the units are released when their lease
// expires. The Limiter renews the units after half of the lease, so a request may last longer than
// the lease. A lease of one minute suits most services, because it outlasts a short failure of the
// store and yet frees the units of a killed process after a minute.
//
// InFlight counts as SlidingLog does, with lease as the period. Nobody knows when a request will
// end, so the RetryAfter of a refused charge is quota.Never, and its NextAfter is 0. Stores
// therefore reserve no units for later, and clients get no Retry-After. Instead, a request waits
// for units in its own process: see MaxWait in weir.Options. If the store's clock has stepped
// back, RetryAfter and NextAfter may be the time until the clock catches up. ResetAfter is the
// time until the newest lease expires. For work without a Limiter, quota.Hold renews and releases
// the units.
func InFlight(n int64, lease time.Duration) quota.Limit {
	return quota.Limit{Algorithm: inFlight{}, Quota: n, Period: lease}
}

type inFlight struct{ slidingLog }

func (inFlight) Name() string   { return "in-flight" }
func (inFlight) String() string { return "in-flight" }

func (g inFlight) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements quota.Stepper.
func (g inFlight) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	ahead := time.Duration(max(0, s.At-now) * microsecond) // > 0 if the clock has stepped back
	g.slidingLog.Step(s, d, l, now, cost)
	if d.NextAfter = ahead; d.RetryAfter > ahead {
		d.RetryAfter = quota.Never
	}
}

// InFlight makes a weir.Limiter release the units when the request has ended.
func (inFlight) InFlight() {}
