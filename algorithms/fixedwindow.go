package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// FixedWindow allows n units in each window of one period. Windows are aligned to the Unix epoch,
// so one-hour windows begin on the hour in UTC. In any interval of one period, FixedWindow admits
// at most 2·n units: n at the end of one window and n at the start of the next.
func FixedWindow(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: fixedWindow{}, Quota: n, Period: period}
}

type fixedWindow struct{ windowed }

func (fixedWindow) Name() string   { return "fixed-window" }
func (fixedWindow) String() string { return "fixed-window" }

func (f fixedWindow) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	f.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (fixedWindow) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at, period := max(now, s.At), int64(l.Period)/microsecond
	start := at - at%period
	windowOf(s, start, start+period).step(s, d, l.Quota, 0, now, at, cost)
}

// Cancel implements optional.Canceler.
func (fixedWindow) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	start := s.At - s.At%(int64(l.Period)/microsecond)
	return cancelInWindow(s, l.Quota, start, 0, now, at, n)
}
