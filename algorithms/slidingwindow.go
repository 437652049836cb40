package algorithms

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// SlidingWindow estimates how many units were spent in the last period, and allows a charge if the
// estimate plus the charge is at most n. The estimate is the number of units spent in the current
// window, plus a share of the number spent in the previous window. For example, if a quarter of the
// previous window lies within the last period, a quarter of the previous window's units are
// counted. The estimate is exact if the previous window's units were spent evenly. If they were
// not, SlidingWindow may admit up to 2·n − 1 units in an interval (t − period, t]. It admits at
// most 1.5·n units in half a period, and at most 1.1·n units in a tenth of a period.
//
// A client that sends as fast as it can gets about n − 1 units in each period, because a fraction
// of a unit counts as a whole unit. If n is 1, it gets half a unit. For a small n, SlidingLog is
// therefore better.
//
// Cloudflare described this algorithm in "How we built rate limiting capable of scaling to millions
// of domains" (2017).
func SlidingWindow(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: slidingWindow{}, Quota: n, Period: period}
}

// In the State of a slidingWindow, A is the number of units spent in the window that contains At,
// and B is the number of units spent in the previous window.
type slidingWindow struct{ windowed }

func (slidingWindow) Name() string   { return "sliding-window" }
func (slidingWindow) String() string { return "sliding-window" }

func (w slidingWindow) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	w.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (slidingWindow) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at := max(now, s.At)
	w := twoWindows{quota: l.Quota, period: int64(l.Period) / microsecond}
	w.load(s, at)
	switch {
	case cost > w.quota:
		w.view().decide(d, now, at, never, false)
		return
	case cost > 0:
		retry := w.wait(cost)
		if retry > 0 || at > now {
			w.view().decide(d, now, at, retry, false)
			return
		}
		w.cur += cost
		*s = quota.State{At: at, A: w.cur, B: w.prev}
	case cost < 0:
		n := refundOf(cost)
		newest := min(n, w.cur)
		w.cur -= newest
		w.prev = max(0, w.prev-(n-newest))
		*s = quota.State{At: at, A: w.cur, B: w.prev}
		if w.cur == 0 && w.prev == 0 && at == now {
			*s = quota.State{}
		}
	}
	w.view().decide(d, now, at, 0, true)
}

// Cancel implements optional.Canceler.
func (slidingWindow) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	period := int64(l.Period) / microsecond
	start := s.At - s.At%period
	cur, prev := s.A, s.B
	switch {
	case at > s.At || at < start-period:
		return s
	case at < start:
		prev = max(0, prev-n)
	default:
		cur = max(0, cur-n)
	}
	switch {
	case cur == 0 && start > now:
		// Return to the previous window, and assume that the window before that is full.
		return quota.State{At: start - 1, A: prev, B: l.Quota}
	case cur == 0 && prev == 0:
		if s.At <= now {
			return quota.State{}
		}
		return quota.State{At: s.At}
	}
	return quota.State{At: s.At, A: cur, B: prev}
}

type twoWindows struct {
	quota, period int64
	gone          int64 // µs since the current window began
	cur, prev     int64 // units spent in the current window and in the previous window
}

// load reads the counters of s into w.
func (w *twoWindows) load(s *quota.State, at int64) {
	w.gone = at % w.period
	switch start := at - w.gone; {
	case s.At >= start:
		w.cur, w.prev = s.A, s.B
	case s.At >= start-w.period:
		w.prev = s.A
	}
}

// wait returns the µs until n more units fit, for n ≤ quota.
func (w *twoWindows) wait(n int64) int64 {
	free := w.quota - w.cur - n
	if free < 0 { // part of the current window must first become older than a period
		quo, _ := mulDiv(w.quota-n, w.period, w.cur)
		return w.period - w.gone + w.period - quo
	}
	if w.prev <= free {
		return 0
	}
	// The last period may still cover quo µs of the previous window.
	quo, _ := mulDiv(free, w.period, w.prev)
	return max(0, w.period-w.gone-quo)
}

func (w *twoWindows) view() view {
	if w.cur == 0 && w.prev == 0 {
		return view{remaining: w.quota}
	}
	weighted, rem := mulDiv(w.prev, w.period-w.gone, w.period)
	if rem > 0 {
		weighted++
	}
	n := max(0, w.quota-w.cur-weighted)
	v := view{remaining: n, reset: w.period - w.gone}
	if w.cur > 0 {
		v.reset += w.period
	}
	if n < w.quota {
		v.next = w.wait(n + 1)
	}
	return v
}
