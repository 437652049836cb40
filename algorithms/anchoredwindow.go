package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// AnchoredWindow allows n units in each window of one period. A key's first unit starts a window.
// After that window has ended, the key's next unit starts a new one. In any interval (t − period,
// t], AnchoredWindow admits at most 2·n − 1 units, or 2·n if the first unit of a window is
// refunded. FixedWindow has almost the same bound, but the windows of all keys end at the same
// time.
func AnchoredWindow(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: anchoredWindow{}, Quota: n, Period: period}
}

// In the State of an anchoredWindow, A is the number of units spent in the window, and B is the
// start of the window.
type anchoredWindow struct{ windowed }

func (anchoredWindow) Name() string   { return "anchored-window" }
func (anchoredWindow) String() string { return "anchored-window" }

func (a anchoredWindow) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	a.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (anchoredWindow) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at, period := max(now, s.At), int64(l.Period)/microsecond
	start, spent := at, int64(0)
	if s.A > 0 && at < s.B+period {
		start, spent = s.B, s.A
	}
	window{spent, start + period}.step(s, d, l.Quota, start, now, at, cost)
}

// Cancel implements optional.Canceler.
func (anchoredWindow) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	return cancelInWindow(s, l.Quota, s.B, s.B-int64(l.Period)/microsecond, now, at, n)
}
