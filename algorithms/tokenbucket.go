package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// TokenBucket holds capacity tokens and gains refill tokens in each period: one after the
// other, and not all at the end of the period. The parameter every is the period. Each unit
// takes a token. The bucket of a new key is full. In any interval of one period,
// (t − every, t], TokenBucket admits at most capacity + refill − 1 units. In the limit,
// refill is the Quota and capacity is the Burst.
//
// TokenBucket admits the same as GCRA, and shares its arithmetic.
// Source: J. Turner, New Directions in Communications, 1986.
func TokenBucket(capacity, refill int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: tokenBucket, Quota: refill, Period: every, Burst: capacity}
}
