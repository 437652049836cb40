package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// TokenBucket holds capacity tokens and gains refill tokens in each period: one after the
// other, and not all at the end of the period. The parameter every is the period. Each unit
// takes a token. The bucket of a new key is full. In any span of the period, (t − every, t],
// TokenBucket admits at most capacity + refill − 1 units. The limit has Quota refill and
// Burst capacity.
//
// It admits the same as GCRA, and shares its arithmetic.
// Source: J. Turner, New Directions in Communications, 1986.
func TokenBucket(capacity, refill int64, every time.Duration) weir.Limit {
	return weir.Limit{Algorithm: tokenBucket{}, Quota: refill, Period: every, Burst: capacity}
}

type tokenBucket struct{}

func (tokenBucket) Name() string                 { return "token-bucket" }
func (tokenBucket) String() string               { return "token-bucket" }
func (tokenBucket) Validate(l *weir.Limit) error { return meterOf(l).validate(l) }

func (b tokenBucket) Take(s weir.State, l *weir.Limit, now, cost int64) (_ weir.State, d weir.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (tokenBucket) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Meter returns the numbers of the limit as a meter, in ticks: what a unit is worth, what
// drains in a µs, and the most that may be owed. See redisstore.Metered.
func (tokenBucket) Meter(l *weir.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel implements weir.Canceler: it gives back n units spent at the instant at.
func (tokenBucket) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	return meterOf(l).cancel(s, now, at, n)
}
