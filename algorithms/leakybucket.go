package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// LeakyBucket implements a bucket that holds up to capacity units and leaks at a constant rate of
// leak units per period, whose length is every. The Quota of the returned limit is leak, and its
// Burst is capacity.
//
// For callers that do not wait, the bucket is a meter that admits the same charges as TokenBucket.
// For callers that wait (Within > 0), the bucket is a queue: if it holds v units and has room for a
// charge, the caller proceeds after v·every/leak. If each charge costs one unit, callers therefore
// proceed at intervals of every/leak. A charge that does not wait never overtakes a waiting charge.
//
// In any interval (t − every, t], LeakyBucket admits at most capacity + leak − 1 units. If every
// caller waits and charges a single unit, the bound is the value of leak, whatever the capacity.
func LeakyBucket(capacity, leak int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: leakyBucket{"leaky-bucket"}, Quota: leak, Period: every, Burst: capacity}
}

// A leakyBucket is a bucket whose charges can wait in a queue.
type leakyBucket struct{ bucket }

// Queue implements optional.Queuer.
func (leakyBucket) Queue(s quota.State, l *quota.Limit, now, at, cost int64) (quota.State, time.Duration, bool) {
	next, wait, ok := meterOf(l).queue(s, now, at, cost)
	if wait == never {
		return s, quota.Never, false
	}
	return next, time.Duration(wait * microsecond), ok
}
