package algorithms

import "github.com/seed83679106/weir"

// Units that are spent in advance may be used later as if they were spent when they are
// used:
//
// In a window, until the window ends, because its counters are the same until then. They
// may be given back at any time.
//
// Under a meter, as many as the meter still owes. Let a lease of n units be spent at T,
// and let D be the debt after that. At s the meter still owes at least D − (s−T)·rate of
// it, whatever other callers spend, and other callers get only what fits beside that. Let
// at most that much of the lease be used from s on. Then the units used from s to any
// later u are these, and what other callers have spent since T, which is at most
// full + (u−T)·rate − D. The sum is at most full + (u−s)·rate, which a meter admits. If
// there are several leases, the first one proves it for all, because the later leases are
// among what other callers spent. But nothing may be given back: other debts may have kept
// the units of the lease from draining.
//
// A log dates each unit, so SlidingLog is no lease.Leaser.

func (fixedWindow) Usable(_ *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return heldInWindow(d, at, now, n)
}

func (anchoredWindow) Usable(_ *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return heldInWindow(d, at, now, n)
}

func (calendar) Usable(_ *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return heldInWindow(d, at, now, n)
}

func (slidingWindow) Usable(l *weir.Limit, _ weir.Decision, at, now, n int64) int64 {
	if period := int64(l.Period) / microsecond; at/period != now/period {
		return 0
	}
	return n
}

func (gcra) Usable(l *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return meterOf(l).held(d, at, now, n)
}

func (tokenBucket) Usable(l *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return meterOf(l).held(d, at, now, n)
}

func (leakyBucket) Usable(l *weir.Limit, d weir.Decision, at, now, n int64) int64 {
	return meterOf(l).held(d, at, now, n)
}

func (fixedWindow) Drains() bool    { return false }
func (anchoredWindow) Drains() bool { return false }
func (calendar) Drains() bool       { return false }
func (slidingWindow) Drains() bool  { return false }
func (gcra) Drains() bool           { return true }
func (tokenBucket) Drains() bool    { return true }
func (leakyBucket) Drains() bool    { return true }

// heldInWindow returns how many of n units are usable in a window: all until it ends. That
// is when one more unit is free (NextAfter), even if the state is kept for a longer window
// of the same name.
func heldInWindow(d weir.Decision, at, now, n int64) int64 {
	if now >= at+int64(d.NextAfter)/microsecond {
		return 0
	}
	return n
}

// held returns how many of n units the meter still owes at now. ResetAfter of d is the time
// that its debt takes to drain from the instant at on, rounded up to a whole µs.
func (m meter) held(d weir.Decision, at, now, n int64) int64 {
	owed := min(int64(d.ResetAfter)/microsecond-1, m.full()/m.rate) - (now - at)
	if owed <= 0 {
		return 0
	}
	units, _ := mulDiv(owed, m.rate, m.unit)
	return min(n, units)
}
