package algorithms

import (
	"fmt"
	"math/bits"

	"github.com/seed83679106/weir/quota"
)

// An uncountable is the error of a limit whose quota or burst is too large to be counted
// exactly.
type uncountable struct{ limit quota.Limit }

func (e *uncountable) Error() string {
	l := &e.limit
	name, n := "quota", l.Quota
	if l.Burst > l.Quota {
		name, n = "burst", l.Burst
	}
	text := fmt.Sprintf("%s %d in a period of %v cannot be counted exactly: their product in µs exceeds 2^50, and no common divisor makes it small enough", name, n, l.Period)
	switch {
	case !isMeter(&e.limit):
		text = fmt.Sprintf("quota %d exceeds 2^50", l.Quota)
	case l.Quota > rateOf(l):
		text = fmt.Sprintf("quota %d in a period of %v cannot be counted exactly: a burst of %d is less than what becomes free in each µs", l.Quota, l.Period, l.Burst)
	}
	switch near := e.Nearest(); {
	case near.Quota != l.Quota:
		return fmt.Sprintf("%s; quota %d can be counted", text, near.Quota)
	case near.Burst != l.Burst:
		return fmt.Sprintf("%s; burst %d can be counted", text, near.Burst)
	}
	return text
}

func isMeter(l *quota.Limit) bool {
	_, ok := l.Algorithm.(quota.Metered)
	return ok
}

// Nearest implements quota.Uncountable. It returns the limit that a Limiter counts instead if a Policy has the
// uncountable limit. Nearest lowers the quota, as little as it can, until the limit can
// be counted. If the burst is too large for every quota, Nearest lowers the burst and
// keeps the quota. If a lower burst does not help either, Nearest returns the limit
// unchanged.
func (e *uncountable) Nearest() quota.Limit {
	l, near := &e.limit, e.limit
	if !isMeter(&e.limit) {
		near.Quota = min(l.Quota, quota.MaxTicks)
		return near
	}
	near.Quota = 0
	period, rate := int64(l.Period)/microsecond, rateOf(l)
	for _, d := range divisors(period) { // a quota of d·k makes a unit of period/d ticks, or fewer
		most := quota.MaxTicks / (period / d)
		switch {
		case l.Burst == 0: // the whole quota may be spent at once, and d·k units are at most period·k ticks
			most = quota.MaxTicks / period
		case l.Burst > most:
			continue
		}
		near.Quota = max(near.Quota, d*min(rate/d, most))
	}
	if near.Quota == 0 {
		near.Quota = l.Quota
		near.Burst = min(l.Burst, quota.MaxTicks/(period/gcd(period, l.Quota)))
	}
	if near.Burst == 0 && l.Burst > 0 || !meterOf(&near).counts() {
		return e.limit
	}
	return near
}

// rateOf returns the quota of l, or the highest quota below it that the burst allows: a meter
// spends at most its burst in a µs.
func rateOf(l *quota.Limit) int64 {
	if hi, most := bits.Mul64(uint64(l.Burst), uint64(int64(l.Period)/microsecond)); hi == 0 && most > 0 && most < uint64(l.Quota) {
		return int64(most)
	}
	return l.Quota
}

// divisors returns the divisors of n. To bound its time, it looks for prime factors up to
// 4,096 only and assumes that the rest is a prime. If it is not, divisors misses some
// divisors, and Nearest may return a lower quota than necessary. Usual periods have small
// factors.
func divisors(n int64) []int64 {
	all := []int64{1}
	for p := int64(2); n > 1; p++ {
		if p > 4096 {
			p = n
		}
		before := len(all)
		for power := p; n%p == 0; n, power = n/p, power*p {
			for _, d := range all[:before] {
				all = append(all, d*power)
			}
		}
	}
	return all
}
