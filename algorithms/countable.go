package algorithms

import (
	"fmt"
	"math/bits"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// An uncountable is the error for a limit whose quota or burst is too large to be counted exactly.
type uncountable struct{ limit quota.Limit }

func (e *uncountable) Error() string {
	l, near := &e.limit, e.Nearest()
	if near.Quota != l.Quota && l.Quota <= quota.MaxTicks {
		return fmt.Sprintf("quota %d is too large for a burst of %d, which is less than what becomes free in each µs; quota %d can be counted", l.Quota, l.Burst, near.Quota)
	}
	if near.Quota != l.Quota {
		return fmt.Sprintf("quota %d exceeds 2^50; quota %d can be counted", l.Quota, near.Quota)
	}
	return fmt.Sprintf("burst %d exceeds 2^50 or what becomes free in 2^50 µs (35 years); burst %d can be counted", l.Burst, near.Burst)
}

func isMeter(l *quota.Limit) bool {
	_, ok := l.Algorithm.(optional.Metered)
	return ok
}

// Nearest implements optional.Uncountable. A Limiter enforces the result in place of an uncountable
// limit of a Policy. It is the same limit, with quota and burst lowered as little as possible.
func (e *uncountable) Nearest() quota.Limit {
	l := e.limit
	l.Quota = min(l.Quota, quota.MaxTicks)
	if !isMeter(&l) || l.Burst == 0 {
		return l
	}
	l.Burst = min(l.Burst, meterOf(&l).maxDebt())
	if hi, parts := bits.Mul64(uint64(l.Burst), uint64(int64(l.Period)/microsecond)); hi == 0 && parts < uint64(l.Quota) {
		l.Quota = int64(parts)
	}
	return l
}
