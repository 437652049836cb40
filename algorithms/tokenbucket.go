package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// TokenBucket holds up to capacity tokens and gains refill tokens per period, spread evenly over
// the period. The parameter every is the length of the period. Each unit takes one token. A new
// key has a full bucket. In any interval of one period, (t − every, t], TokenBucket admits at most
// capacity + refill − 1 units. The Quota of the limit is refill, and its Burst is capacity.
//
// TokenBucket admits the same charges as GCRA, because it uses the same arithmetic. Source: J.
// Turner, New Directions in Communications, 1986.
func TokenBucket(capacity, refill int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: tokenBucket, Quota: refill, Period: every, Burst: capacity}
}
