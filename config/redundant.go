package config

import (
	"math"
	"math/big"
	"time"

	"github.com/seed83679106/weir/algorithms"
)

// redundant reports whether the limit a never refuses a request that the limit b admits. The
// two limits are charged together under one key, so each counts only requests that both have
// admitted.
//
// redundant finds plain cases only. It may return false for a redundant limit. It must not
// return true for any other limit, because a file with a redundant limit is not loaded. A
// leaky bucket is never redundant, because it spaces requests that wait.
func redundant(a, b limit) bool {
	name := a.Algorithm.Name()
	same := name == b.Algorithm.Name() && a.Period == b.Period && b.Quota <= a.Quota
	switch name {
	case "gcra", "token-bucket": // b is no larger, and is refilled no faster
		return isMeter(b) && b.Limit.Capacity() <= a.Limit.Capacity() && b.rate().Cmp(a.rate()) <= 0
	case "fixed-window":
		aligned := b.Algorithm.Name() == name && (a.Period%b.Period == 0 || b.Period%a.Period == 0)
		return b.most(a.Period, aligned) <= a.Quota
	case slidingLog:
		return b.most(a.Period, false) <= a.Quota
	case anchoredWindow: // if a and b have the same period, their windows begin together
		return same || b.most(a.Period, false) <= a.Quota
	case "sliding-window":
		return same
	case calendar:
		if b.unit != 0 {
			return a.location.String() == b.location.String() && windowsIn[a.unit][b.unit]*b.Quota <= a.Quota
		}
		return b.most(a.longest(), false) <= a.Quota
	}
	return false
}

// most returns an upper bound of the units that the limit admits in any span of
// length w: the worst case in docs/algorithms.md, for w rounded up to whole periods. The
// parameter aligned says that the span consists of whole windows of the limit, or lies
// within one window.
func (l limit) most(w time.Duration, aligned bool) int64 {
	periods := int64((w-1)/l.Period) + 1
	switch {
	case l.unit != 0 || l.Algorithm.Name() == inFlight || periods > math.MaxInt64/4/l.Quota:
		return math.MaxInt64 // no bound: calendar windows differ in length, in-flight units last any time, or the product overflows
	case isMeter(l):
		return periods*l.Quota + l.Limit.Capacity() - 1
	case aligned, l.Algorithm.Name() == slidingLog:
		return periods * l.Quota
	}
	return (periods + 1) * l.Quota // the span may begin and end within a window
}

// rate returns how many units the limit admits per nanosecond in the long run.
func (l limit) rate() *big.Rat { return big.NewRat(l.Quota, int64(l.Period)) }

// longest returns the length of the longest window of a calendar. A zone's clock may
// be set back by up to 26 hours: clocks are from 12 hours behind UTC to 14 ahead of it.
func (l limit) longest() time.Duration {
	w := l.Period
	if l.unit == algorithms.Month {
		w = 31 * 24 * time.Hour
	}
	if l.location != time.UTC {
		w += 26 * time.Hour
	}
	return w
}

// windowsIn[a][b] is how many windows of unit b one window of unit a can touch, in
// the same location.
var windowsIn = [...][4]int64{
	algorithms.Day:   {algorithms.Day: 1, algorithms.Week: 1, algorithms.Month: 1},
	algorithms.Week:  {algorithms.Day: 7, algorithms.Week: 1, algorithms.Month: 2},
	algorithms.Month: {algorithms.Day: 31, algorithms.Week: 6, algorithms.Month: 1},
}
