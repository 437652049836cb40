package algorithms

import (
	"github.com/seed83679106/weir/quota"
)

// A lease spends units in advance, and these are used later. The limit must hold as if the units
// were spent only when they are used.
//
// The units of a window may be used until the window ends, because only the window in which a unit
// is spent matters. Unused units may be refunded at any time.
//
// Under a meter, spent units are a debt that drains: see meter.go. The units that may still be used
// are at most what remains of the debt. The following proof counts parts of a unit. Let the lease
// be taken at the instant T, let D be the debt immediately afterwards, and let at most D −
// (s−T)·rate of the lease be used from a later instant s on. Other callers can spend only what the
// meter has room for above this debt, so from T to any instant u after s they spend at most full +
// (u−T)·rate − D. From s to u, the lease and the other callers together therefore spend at most
// full + (u−s)·rate, which a meter admits. If there are several leases, the proof for the first
// suffices, because it counts the later leases among the other callers. A lease under a meter
// refunds no units, because it is not known how many of the leased units have drained.
//
// SlidingLog is not a lease.Leaser, because a log records the instant of each unit.

// Usable implements lease.Leaser. Leased units are usable until the current window ends.
func (slidingWindow) Usable(l *quota.Limit, _ quota.Decision, at, now, n int64) int64 {
	if period := int64(l.Period) / microsecond; at/period != now/period {
		return 0
	}
	return n
}

// held returns how many of n leased units may still be used. Once the debt of a leased unit has
// drained, the meter admits another unit in its place, so the lease must no longer use the leased
// unit. held therefore returns at most as many units as remain of the debt. After the decision d,
// the debt drains in d.ResetAfter, which is rounded up to a whole µs.
func (m meter) held(d quota.Decision, at, now, n int64) int64 {
	// What remains of the debt takes at least this many µs to drain.
	lasts := min(int64(d.ResetAfter)/microsecond-1, m.floor(m.full())) - (now - at)
	return min(n, m.drained(max(0, lasts)).units)
}
