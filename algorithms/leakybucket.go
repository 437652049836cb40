package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// LeakyBucket has room for capacity units and loses leak units in each period, one after the
// other. The parameter every is the period. The limit has Quota leak and Burst capacity.
//
// If the caller does not wait, the bucket is a meter and admits what TokenBucket admits: a
// charge that fits goes ahead at once. If the caller waits (Within > 0), the bucket is a
// queue: a charge that finds v units in it goes ahead v·every/leak later, if the bucket has
// room for it. Charges of one unit then go ahead every/leak apart. A charge that does not
// wait never overtakes a charge that waits.
//
// In any span of the period, (t − every, t], LeakyBucket admits at most
// capacity + leak − 1 units. If all callers wait and charge one unit each, it admits at
// most leak, whatever the capacity.
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

// Queue makes LeakyBucket a weir.Queuer.
func (leakyBucket) Queue(s weir.State, l *weir.Limit, now, at, cost int64) (weir.State, time.Duration, bool) {
	next, wait, ok := meterOf(l).queue(s, now, at, cost)
	if wait == never {
		return s, weir.Never, false
	}
	return next, time.Duration(wait * microsecond), ok
}

// Meter returns the numbers of the limit as a meter, in ticks: what a unit is worth, what
// drains in a µs, and the most that may be owed. See redisstore.Metered.
func (leakyBucket) Meter(l *weir.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements weir.Canceler: it gives back n units spent at the instant at.
func (leakyBucket) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	return meterOf(l).cancel(s, now, at, n)
}
