package algorithms

import (
	"math"
	"math/bits"
	"time"

	"github.com/seed83679106/weir/quota"
)

// These methods implement optional.Comparer. They detect only simple cases. A leaky bucket is never
// redundant, because it spaces waiting requests. A concurrency limit is never redundant either.

func (leakyBucket) Redundant(_, _ *quota.Limit) bool { return false }
func (inFlight) Redundant(_, _ *quota.Limit) bool    { return false }

// Redundant reports whether other is a meter whose capacity and rate are at most those of l.
func (bucket) Redundant(l, other *quota.Limit) bool {
	return isMeter(other) && other.Capacity() <= l.Capacity() && !faster(other, l)
}

func (fixedWindow) Redundant(l, other *quota.Limit) bool {
	_, aligned := other.Algorithm.(fixedWindow)
	aligned = aligned && (l.Period%other.Period == 0 || other.Period%l.Period == 0)
	return maxAdmitted(other, l.Period, aligned) <= l.Quota
}

func (slidingLog) Redundant(l, other *quota.Limit) bool {
	return maxAdmitted(other, l.Period, false) <= l.Quota
}

func (anchoredWindow) Redundant(l, other *quota.Limit) bool {
	return smaller(l, other) || maxAdmitted(other, l.Period, false) <= l.Quota // windows of the same period begin at the same time
}

func (slidingWindow) Redundant(l, other *quota.Limit) bool { return smaller(l, other) }
func (calendar) Redundant(l, other *quota.Limit) bool      { return smaller(l, other) }

// smaller reports whether other is the same as l, except that its quota may be smaller.
func smaller(l, other *quota.Limit) bool {
	return l.Algorithm == other.Algorithm && l.Period == other.Period && other.Quota <= l.Quota
}

// faster reports whether a admits more units than b in the long run: whether the quotient of Quota
// and Period is larger.
func faster(a, b *quota.Limit) bool {
	ah, al := bits.Mul64(uint64(a.Quota), uint64(b.Period))
	bh, bl := bits.Mul64(uint64(b.Quota), uint64(a.Period))
	return ah > bh || ah == bh && al > bl
}

// maxAdmitted returns an upper bound on the units that the limit admits in any interval of length
// w: the worst case in docs/guide.md, with w rounded up to whole periods. If aligned is true, the
// interval must consist of whole windows of the limit or lie within one window.
func maxAdmitted(l *quota.Limit, w time.Duration, aligned bool) int64 {
	periods := int64((w-1)/l.Period) + 1
	if periods > math.MaxInt64/4/l.Quota {
		return math.MaxInt64 // the product could overflow
	}
	switch l.Algorithm.(type) {
	case bucket, leakyBucket:
		return periods*l.Quota + l.Capacity() - 1
	case slidingLog:
		return periods * l.Quota
	case fixedWindow, anchoredWindow, slidingWindow:
		if aligned {
			return periods * l.Quota
		}
		return (periods + 1) * l.Quota // the interval may begin and end within a window
	}
	return math.MaxInt64 // calendar windows differ in length, and requests in flight may last any time
}
