package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// TokenBucket implements a bucket that holds up to capacity tokens and gains tokens at a constant
// rate of refill tokens per period, whose length is every. Each unit takes one token. A new key has
// a full bucket. In any interval (t − every, t], TokenBucket admits at most capacity + refill − 1
// units. The Quota of the returned limit is refill, and its Burst is capacity.
//
// TokenBucket has the same arithmetic as GCRA and admits the same charges. See Jonathan Turner,
// "New Directions in Communications" (1986).
func TokenBucket(capacity, refill int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: tokenBucket, Quota: refill, Period: every, Burst: capacity}
}
