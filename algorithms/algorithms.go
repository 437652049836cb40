// Package algorithms implements rate-limiting algorithms.
//
//	limit := algorithms.GCRA(100, time.Minute).WithBurst(20) // 100 a minute, at most 20 at once
//
// Each function returns a [quota.Limit], which the caller may modify.
//
// # Which algorithm
//
// [GCRA], [TokenBucket] and [LeakyBucket] are meters: each unit spent raises a level, which drains
// at a constant rate. They suit most limits.
//
// [FixedWindow], [AnchoredWindow] and [Calendar] count the units spent in the current window. They
// differ in when a window begins. They suit quotas that customers pay for, such as a number of
// requests per month.
//
// [SlidingWindow] and [SlidingLog] limit the units spent in the last period. SlidingWindow
// estimates their number, and SlidingLog counts them exactly. SlidingLog suits small limits that
// must never be exceeded, such as a limit on login attempts.
//
// [InFlight] limits the number of concurrent requests.
//
// # Rounding
//
// The arithmetic uses only integers. Results are rounded so that a limit never admits more units
// than it should.
package algorithms

import (
	"math/bits"
	"time"

	"github.com/seed83679106/weir/quota"
)

const microsecond = int64(time.Microsecond)

// A view holds what a quota.Decision reports about a state at one instant: Remaining, NextAfter and
// ResetAfter. The two times are in µs from that instant.
type view struct {
	remaining int64
	next      int64
	reset     int64
}

// decide fills in d, the decision about a charge that is made now. The view v is that of the first
// instant, now or later, at which any charge can fit. The charge itself fits retry µs after that
// instant, or never.
func (v view) decide(d *quota.Decision, now, at, retry int64, allowed bool) {
	ahead := at - now
	if ahead > 0 {
		if v.remaining > 0 {
			v.next = 0 // a unit is free as soon as a charge can fit
		}
		v.remaining = 0
	}
	d.Allowed, d.FellBack = allowed, false
	d.Remaining = v.remaining
	d.NextAfter = time.Duration((ahead + v.next) * microsecond)
	d.ResetAfter = time.Duration((ahead + v.reset) * microsecond)
	switch {
	case allowed:
		d.RetryAfter = 0
	case retry == never:
		d.RetryAfter = quota.Never
	default:
		d.RetryAfter = time.Duration((ahead + retry) * microsecond)
	}
}

// The constant never is used instead of a number of µs if a charge can never fit.
const never = -1

// ceilDiv returns ⌈a/b⌉ for b > 0, and 0 if a is negative.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return int64((uint64(a)-1)/uint64(b)) + 1
}

// mulDiv returns ⌊a·b/c⌋ and the remainder, for a, b ≥ 0 and c > 0. The quotient must fit
// into an int64.
func mulDiv(a, b, c int64) (quo, rem int64) {
	h, l := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(h, l, uint64(c))
	return int64(q), int64(r)
}

// refundOf returns how many units a negative cost refunds: −cost, but at most 4·MaxTicks. No state
// holds more than 4·MaxTicks units.
func refundOf(cost int64) int64 { return -max(cost, -4*quota.MaxTicks) }
