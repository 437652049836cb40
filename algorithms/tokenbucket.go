package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// TokenBucket holds capacity tokens and gains refill tokens in each period: one after the
// other, and not all at the end of the period. The parameter every is the period. Each unit
// takes a token. The bucket of a new key is full. In any span of one period,
// (t − every, t], TokenBucket admits at most capacity + refill − 1 units. In the limit,
// refill is the Quota and capacity is the Burst.
//
// TokenBucket admits the same as GCRA, and shares its arithmetic.
// Source: J. Turner, New Directions in Communications, 1986.
func TokenBucket(capacity, refill int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: tokenBucket{}, Quota: refill, Period: every, Burst: capacity}
}

type tokenBucket struct{}

func (tokenBucket) Name() string                  { return "token-bucket" }
func (tokenBucket) String() string                { return "token-bucket" }
func (tokenBucket) Validate(l *quota.Limit) error { return meterOf(l).validate(l) }

func (b tokenBucket) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (tokenBucket) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Meter implements redisstore.Metered. It returns numbers of ticks: how many a unit adds to
// the debt, how many drain from the debt in a µs, and how many the debt may have.
func (tokenBucket) Meter(l *quota.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements quota.Canceler.
func (tokenBucket) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	return meterOf(l).cancel(s, now, at, n)
}

// Force implements quota.Forcer.
func (tokenBucket) Force(s quota.State, l *quota.Limit, at, cost int64) quota.State {
	return meterOf(l).force(s, at, cost)
}
