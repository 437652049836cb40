package algorithms

import "github.com/seed83679106/weir"

// A lease spends units in advance. They are used later, and the limit must hold as if they
// were spent only then.
//
// The units of a window may be used until the window ends, because it counts a unit alike
// at each of its instants. They may be given back at any time.
//
// Under a meter, a lease may use as many units as the meter still owes. Let the lease be
// taken at T, and let D be the debt after that. At a later instant s, at least
// D − (s−T)·rate of D is still owed, and other callers get only what fits beside that debt.
// Let the lease use at most that much from s on. From s to any later u, its units and
// those of other callers are then at most D − (s−T)·rate, plus the
// full + (u−T)·rate − D that other callers can have spent since T. The sum is
// full + (u−s)·rate, which a meter admits. With several leases, the proof for the first
// covers all, because the later leases are among what other callers spent. Nothing may be
// given back: other debts may have kept the units of the lease from draining.
//
// SlidingLog is no lease.Leaser, because a log records the instant of each unit.

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

// heldInWindow returns how many of n units are usable in a window: all until it ends, then
// none. The window ends when one more unit is free (NextAfter), even if the state is kept
// for a longer window of the same name.
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
