package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// LeakyBucket has room for capacity units and loses leak units in each period, one after
// the other. The parameter every is the period. In the limit, leak is the Quota and
// capacity is the Burst.
//
// If the caller does not wait, the bucket is a meter and admits what TokenBucket admits:
// a charge that fits goes ahead at once. If the caller waits (Within > 0), the bucket is
// a queue: a charge that finds v units in the bucket goes ahead v·every/leak later, if
// there is room for the charge. Charges of one unit then go ahead at intervals of
// every/leak. A charge that does not wait never overtakes a charge that waits.
//
// In any span of one period, (t − every, t], LeakyBucket admits at most
// capacity + leak − 1 units. If all callers wait and charge one unit each, LeakyBucket
// admits at most leak units, whatever the capacity.
func LeakyBucket(capacity, leak int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: leakyBucket{}, Quota: leak, Period: every, Burst: capacity}
}

type leakyBucket struct{}

func (leakyBucket) Name() string                  { return "leaky-bucket" }
func (leakyBucket) String() string                { return "leaky-bucket" }
func (leakyBucket) Validate(l *quota.Limit) error { return meterOf(l).validate(l) }

func (b leakyBucket) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (leakyBucket) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Queue implements quota.Queuer.
func (leakyBucket) Queue(s quota.State, l *quota.Limit, now, at, cost int64) (quota.State, time.Duration, bool) {
	next, wait, ok := meterOf(l).queue(s, now, at, cost)
	if wait == never {
		return s, quota.Never, false
	}
	return next, time.Duration(wait * microsecond), ok
}

// Meter implements redisstore.Metered. It returns numbers of ticks: how many a unit adds to
// the debt, how many drain from the debt in a µs, and how many the debt may have.
func (leakyBucket) Meter(l *quota.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements quota.Canceler.
func (leakyBucket) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	return meterOf(l).cancel(s, now, at, n)
}

// Force implements quota.Forcer.
func (leakyBucket) Force(s quota.State, l *quota.Limit, at, cost int64) quota.State {
	return meterOf(l).force(s, at, cost)
}
