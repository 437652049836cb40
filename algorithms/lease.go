package algorithms

import "github.com/seed83679106/weir"

// A lease spends units in advance and uses them later. The limit must hold as if the units
// were spent only when they are used.
//
// The units of a window may be used until the window ends, because a window counts a unit
// in the same way at each of its instants. Unused units may be given back at any time.
//
// Under a meter, a lease may use as many units as the meter still owes. Let the lease be
// taken at T, and let D be the debt after that. At a later instant s, at least
// D − (s−T)·rate of D is still owed, and other callers get only what fits beside that debt.
// Let the lease use at most D − (s−T)·rate units from s on. From s to any later u, its units and
// those of other callers are then at most D − (s−T)·rate, plus the
// full + (u−T)·rate − D that other callers can have spent since T. The sum is
// full + (u−s)·rate, which a meter admits. With several leases, the proof for the first
// covers all, because the later leases are among what other callers spent. A lease must not
// give units back: it cannot tell its own units from other debts, and so does not know how
// many of its own have drained.
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

// heldInWindow returns how many of n units are usable in a window: all n until the window
// ends, and then none. The window ends when one more unit is free (NextAfter), even if the state is kept
// for a longer window of the same name.
func heldInWindow(d weir.Decision, at, now, n int64) int64 {
	if now >= at+int64(d.NextAfter)/microsecond {
		return 0
	}
	return n
}

// held returns how many of n units the meter still owes at the instant now. ResetAfter of d
// is the time, from the instant at, in which the debt of the meter drains. It is rounded up
// to a whole µs.
func (m meter) held(d weir.Decision, at, now, n int64) int64 {
	owed := min(int64(d.ResetAfter)/microsecond-1, m.full()/m.rate) - (now - at)
	if owed <= 0 {
		return 0
	}
	units, _ := mulDiv(owed, m.rate, m.unit)
	return min(n, units)
}
