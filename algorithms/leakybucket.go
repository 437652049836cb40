package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
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
func LeakyBucket(capacity, leak int64, every time.Duration) weir.Limit {
	return weir.Limit{Algorithm: leakyBucket{}, Quota: leak, Period: every, Burst: capacity}
}

type leakyBucket struct{}

func (leakyBucket) Name() string                 { return "leaky-bucket" }
func (leakyBucket) String() string               { return "leaky-bucket" }
func (leakyBucket) Validate(l *weir.Limit) error { return meterOf(l).validate(l) }

func (b leakyBucket) Take(s weir.State, l *weir.Limit, now, cost int64) (_ weir.State, d weir.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (leakyBucket) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Queue implements weir.Queuer.
func (leakyBucket) Queue(s weir.State, l *weir.Limit, now, at, cost int64) (weir.State, time.Duration, bool) {
	next, wait, ok := meterOf(l).queue(s, now, at, cost)
	if wait == never {
		return s, weir.Never, false
	}
	return next, time.Duration(wait * microsecond), ok
}

// Meter implements redisstore.Metered. It returns numbers of ticks: how many a unit adds to
// the debt, how many drain from the debt in a µs, and how many the debt may have.
func (leakyBucket) Meter(l *weir.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements weir.Canceler.
func (leakyBucket) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	return meterOf(l).cancel(s, now, at, n)
}

// Force implements weir.Forcer.
func (leakyBucket) Force(s weir.State, l *weir.Limit, at, cost int64) weir.State {
	return meterOf(l).force(s, at, cost)
}
