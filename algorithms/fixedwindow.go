package algorithms

import (
	"time"

	"github.com/seed83679106/weir"
)

// FixedWindow allows quota units in each window of one period. Windows are aligned to the
// Unix epoch: windows of an hour begin with the hours of UTC. In any span of one period,
// FixedWindow admits at most 2·quota units: the quota of one window at its end, and the
// quota of the next window at its beginning.
func FixedWindow(quota int64, period time.Duration) weir.Limit {
	return weir.Limit{Algorithm: fixedWindow{}, Quota: quota, Period: period}
}

type fixedWindow struct{}

func (fixedWindow) Name() string                 { return "fixed-window" }
func (fixedWindow) String() string               { return "fixed-window" }
func (fixedWindow) Validate(l *weir.Limit) error { return validateWindow(l) }

func (f fixedWindow) Take(s weir.State, l *weir.Limit, now, cost int64) (_ weir.State, d weir.Decision) {
	f.Step(&s, &d, l, now, cost)
	return s, d
}

// Step is Take in place: it changes *s and fills in *d. weir calls it instead of Take.
func (fixedWindow) Step(s *weir.State, d *weir.Decision, l *weir.Limit, now, cost int64) {
	at, period := max(now, s.At), int64(l.Period)/microsecond
	start := at - at%period
	w := windowOf(s, start, start+period, at)
	w.step(s, d, l.Quota, w.until, now, at, cost)
}

// Cancel implements weir.Canceler.
func (fixedWindow) Cancel(s weir.State, l *weir.Limit, now, at, n int64) weir.State {
	period := int64(l.Period) / microsecond
	start := s.At - s.At%period
	return cancelInWindow(s, l.Quota, start, 0, max(start+period, s.B), now, at, n)
}
