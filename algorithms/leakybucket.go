package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
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
