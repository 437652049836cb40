package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// TokenBucket holds capacity tokens and is refilled with refill of them in
// every period, one after the other, not all at its end. A unit takes a token.
// The bucket of a new key is full. In any window of the period, (t − every, t],
// it admits at most capacity + refill − 1. The limit has Quota refill and Burst
// capacity.
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

// Step decides in place: weir calls it instead of Take.
func (tokenBucket) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Meter tells stores that it is a meter: see weir.Transaction.Plan and redisstore.Metered.
func (tokenBucket) Meter(l *weir.Limit) (unit, rate, full int64) { return meterOf(l).ticks() }

// Cancel makes it a weir.Canceler.
func (tokenBucket) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	return meterOf(l).cancel(s, now, at, n)
}
