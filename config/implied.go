package config

import (
	"math"
	"math/bits"
	"time"

	"github.com/seed83679106/weir/algorithms"
)

// implied reports whether a can never be the one to refuse, because what b
// admits always fits in it. Both are charged together, under one key, so each
// sees only what both admitted.
//
// With M(w) the most that b admits in w µs, and L, P, B the numbers of a:
//
//	sliding log          M(P) ≤ L
//	fixed, calendar      M(P) ≤ L, in windows that lie as those of a do
//	anchored window      M(P) ≤ L
//	GCRA, token bucket   M(w) ≤ B + (w−1)·L/P for every w
//	sliding window       M(2·P) ≤ L, or a line above M is at most L at P+1: it
//	                     weighs units of two windows, 1 and less
//
// A leaky bucket is never implied: where requests wait it spaces them. Nor is
// anything implied by two others that neither of them implies alone. What this
// reports is always true; it is all there is to report, but for sliding windows
// and calendars, of which it takes a bound that is a little too large, and for
// costs of more than 1, which it takes to be any.
func implied(a, b limit) bool {
	if isMeter(b) && b.Limit.Capacity() == 1 {
		// It has drained before the next unit comes, at a whole µs.
		b.Quota, b.Period = 1, time.Duration(ceil(micros(b.Period), b.Quota))*time.Microsecond
	}
	period := micros(a.Period)
	same := a.Algorithm.Name() == b.Algorithm.Name() && a.Period == b.Period && b.Quota <= a.Quota
	switch a.Algorithm.Name() {
	case slidingLog:
		return b.most(period, 1) <= a.Quota
	case "fixed-window":
		return b.most(period, period) <= a.Quota
	case "anchored-window":
		return same || b.most(period, 1) <= a.Quota // side by side they begin together
	case "sliding-window":
		return same || b.most(2*period, 1) <= a.Quota || b.line(period) <= a.Quota
	case calendar:
		if b.unit != 0 && a.location.String() == b.location.String() {
			return sum(0, windows[a.unit][b.unit], b.Quota) <= a.Quota
		}
		grid := dayMicros
		if a.location != time.UTC {
			grid = 1
		}
		return b.most(a.longest(), grid) <= a.Quota
	case "gcra", "token-bucket":
		// b's steps come at w = 1 and 2 and then a period apart: where the first
		// two fit and b is not faster, all do.
		return !b.isElsewhere() && compare(b.Quota, period, a.Quota, b.shortest()) <= 0 &&
			b.most(1, 1) <= a.Limit.Capacity() &&
			compare(b.most(2, 1)-a.Limit.Capacity(), period, a.Quota, 1) <= 0
	}
	return false
}

// most returns how many units the limit admits in w µs at most, where these
// begin at a multiple of grid µs; MaxInt64 is an unknown number.
func (l limit) most(w, grid int64) int64 {
	p := l.shortest()
	switch l.Algorithm.Name() {
	case slidingLog:
		return sum(0, ceil(w, p), l.Quota)
	case "gcra", "token-bucket", "leaky-bucket":
		return sumDiv(l.Limit.Capacity(), w-1, l.Quota, p)
	case "anchored-window": // a window may have begun before, with one unit
		return max(sum(0, ceil(w, p), l.Quota), sum(l.Quota-1, ceil(w-1, p), l.Quota))
	case "fixed-window", "sliding-window": // as many windows as w can touch
		return sum(0, ceil(w+p-gcd(grid, p), p), l.Quota)
	}
	if l.isElsewhere() {
		return math.MaxInt64
	}
	return sum(0, ceil(w+p-gcd(grid, dayMicros), p), l.Quota)
}

// line returns a bound of most at w+1 µs that grows evenly with w, for limits
// that have a simple one.
func (l limit) line(w int64) int64 {
	switch l.Algorithm.Name() {
	case slidingLog, "gcra", "token-bucket", "leaky-bucket":
		n := sumDiv(l.Limit.Capacity(), w, l.Quota, l.shortest())
		if hi, lo := bits.Mul64(uint64(w), uint64(l.Quota)); n < math.MaxInt64 && bits.Rem64(hi, lo, uint64(l.shortest())) != 0 {
			n++
		}
		return n
	}
	return math.MaxInt64
}

var dayMicros = micros(24 * time.Hour)

// windows is how many windows of the calendar one of another unit can touch,
// the same location supposed.
var windows = [...][4]int64{
	algorithms.Day:   {algorithms.Day: 1, algorithms.Week: 1, algorithms.Month: 1},
	algorithms.Week:  {algorithms.Day: 7, algorithms.Week: 1, algorithms.Month: 2},
	algorithms.Month: {algorithms.Day: 31, algorithms.Week: 6, algorithms.Month: 1},
}

func (l limit) isElsewhere() bool { return l.unit != 0 && l.location != time.UTC }

// shortest is the length of the shortest window in µs. Of a calendar elsewhere
// nothing is said: zones have skipped whole days.
func (l limit) shortest() int64 {
	if l.unit == algorithms.Month {
		return 28 * dayMicros
	}
	return micros(l.Period)
}

// longest is the length of the longest window of a calendar in µs. Clocks have
// been from 12 hours behind UTC to 14 ahead of it.
func (l limit) longest() int64 {
	w := micros(l.Period)
	if l.unit == algorithms.Month {
		w = 31 * dayMicros
	}
	if l.location != time.UTC {
		w += micros(26 * time.Hour)
	}
	return w
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

func ceil(a, b int64) int64 { return (a + b - 1) / b }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sum returns n + a·b, or MaxInt64 if that is more. Nothing is negative.
func sum(n, a, b int64) int64 { return sumDiv(n, a, b, 1) }

// sumDiv returns n + ⌊a·b/c⌋, or MaxInt64 if that is more. Nothing is negative.
func sumDiv(n, a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	if q > uint64(math.MaxInt64-n) {
		return math.MaxInt64
	}
	return n + int64(q)
}

// compare returns the sign of a·b − c·d, for b, c, d ≥ 0.
func compare(a, b, c, d int64) int {
	if a < 0 {
		return -1
	}
	ah, al := bits.Mul64(uint64(a), uint64(b))
	ch, cl := bits.Mul64(uint64(c), uint64(d))
	switch {
	case ah == ch && al == cl:
		return 0
	case ah < ch || ah == ch && al < cl:
		return -1
	}
	return 1
}
