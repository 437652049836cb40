package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// InFlight allows n concurrent requests for each key. A weir.Limiter releases a request's units
// when the request's handler returns. If the process dies, the units are released when their lease
// expires. A request may run longer than the lease, because the Limiter renews the lease when half
// of it has elapsed. A lease of one minute suits most services: it outlasts a short store outage,
// but frees the units of a killed process after a minute.
//
// InFlight counts units like a SlidingLog whose period is the lease. It is not known when a request
// will end, so a refused charge has a RetryAfter of quota.Never and a NextAfter of 0, and clients
// receive no Retry-After field. A request can nevertheless wait until other requests in the same
// process release units: see MaxWait in weir.Options. After the store's clock is set back,
// RetryAfter and NextAfter may instead be the time until the clock has caught up. ResetAfter is the
// time until the newest lease expires. Without a Limiter, use quota.Hold to renew and release the
// units.
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

// Step implements optional.Stepper.
func (g inFlight) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	ahead := time.Duration(max(0, s.At-now) * microsecond) // > 0 if the clock has stepped back
	g.slidingLog.Step(s, d, l, now, cost)
	if d.NextAfter = ahead; d.RetryAfter > ahead {
		d.RetryAfter = quota.Never
	}
}

// InFlight causes a weir.Limiter to release the units when the request has ended.
func (inFlight) InFlight() {}
