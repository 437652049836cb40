package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// LeakyBucket has room for capacity units and leaks them evenly, at a rate of leak units per
// period. The parameter every is the length of the period. The Quota of the limit is leak, and its
// Burst is capacity.
//
// For a caller that does not wait, the bucket is a meter and admits what TokenBucket admits: a
// charge that fits proceeds immediately. For a caller that waits (Within > 0), the bucket is a
// queue: if there is room for a charge and the bucket holds v units, the charge proceeds after
// v·every/leak. Charges of one unit then proceed at intervals of every/leak. A charge that does
// not wait never overtakes a charge that waits.
//
// In any interval of one period, (t − every, t], LeakyBucket admits at most
// capacity + leak − 1 units. If all callers wait and charge one unit each, LeakyBucket
// admits at most leak units, whatever the capacity.
func LeakyBucket(capacity, leak int64, every time.Duration) quota.Limit {
	return quota.Limit{Algorithm: leakyBucket{"leaky-bucket"}, Quota: leak, Period: every, Burst: capacity}
}

// A leakyBucket is a bucket whose charges can wait in a queue.
type leakyBucket struct{ bucket }

// Queue implements quota.Queuer.
func (leakyBucket) Queue(s quota.State, l *quota.Limit, now, at, cost int64) (quota.State, time.Duration, bool) {
	next, wait, ok := meterOf(l).queue(s, now, at, cost)
	if wait == never {
		return s, quota.Never, false
	}
	return next, time.Duration(wait * microsecond), ok
}

func (leakyBucket) Lua() string { return meterLua + queueLua }
