package algorithms

import "github.com/seed83679106/weir"

// Units that are spent in advance and used later are as good as spent when they
// are used:
//
// In a window, until it ends. Its counters are then the same. They may be given
// back at any time.
//
// Of a meter, as many as it owes. Let n units be spent at T, when it owes D with
// them. At s it owes D − (s−T)·rate of that at least, whatever others spend, and
// they are refused what would not fit beside it. If no more are used from s on, all
// that is used from s to any u is what others spent since T, which is at most
// full + (u−T)·rate − D, and those: full + (u−s)·rate, which a meter admits. Of
// several leases the one that was taken first proves it for all, for what was taken
// after it is among what others spent. But nothing may be given back: what was owed
// beside a lease keeps it from draining.
//
// A log dates each unit, so SlidingLog has none of this.

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

// heldInWindow: what is spent is forgotten when the window ends. That is when one more
// unit is free, also if the state is kept for a longer window of the same name.
func heldInWindow(d weir.Decision, at, now, n int64) int64 {
	if now >= at+int64(d.NextAfter)/microsecond {
		return 0
	}
	return n
}

// held: ResetAfter is the debt at the instant at, rounded up to a whole µs.
func (m meter) held(d weir.Decision, at, now, n int64) int64 {
	owed := min(int64(d.ResetAfter)/microsecond-1, m.full()/m.rate) - (now - at)
	if owed <= 0 {
		return 0
	}
	units, _ := mulDiv(owed, m.rate, m.unit)
	return min(n, units)
}
