package algorithms

import (
	"fmt"

	"github.com/seed83679106/weir/quota"
)

// A window implements the arithmetic that fixed, anchored and calendar windows share: up to quota
// units may be spent in each window. They differ in when the window that contains an instant begins
// and ends. In a state, A is the number of units spent in its window.
type window struct {
	spent int64 // units spent in the window
	end   int64 // when the window ends
}

// windowOf returns the window from start to end, for start ≤ at < end.
func windowOf(s *quota.State, start, end int64) window {
	w := window{end: end}
	if s.At >= start {
		w.spent = s.A
	}
	return w
}

// step evaluates a charge in the window w, which contains the instant max(now, s.At). The argument
// b becomes the B of the next state.
func (w window) step(s *quota.State, d *quota.Decision, most, b, now, at, cost int64) {
	switch {
	case cost > most:
		w.view(most, at).decide(d, now, at, never, false)
		return
	case cost > 0:
		retry := int64(0)
		if w.spent > most-cost {
			retry = w.end - at
		}
		if retry > 0 || at > now {
			w.view(most, at).decide(d, now, at, retry, false)
			return
		}
		w.spent = min(w.spent+cost, 2*quota.MaxTicks) // the cap is more than any quota
		*s = quota.State{At: at, A: w.spent, B: b}
	case cost < 0:
		w.spent = max(0, w.spent-refundOf(cost))
		*s = quota.State{At: at, A: w.spent, B: b}
		if w.spent == 0 {
			*s = unspent(now, at)
		}
	}
	w.view(most, at).decide(d, now, at, 0, true)
}

func (w window) view(most, at int64) view {
	v := view{remaining: max(0, most-w.spent)}
	if w.spent > 0 {
		v.next = w.end - at
		v.reset = v.next
	}
	return v
}

// unspent returns a state in which no unit is spent. If at > now, no charge fits before at.
func unspent(now, at int64) quota.State {
	if at == now {
		return quota.State{}
	}
	return quota.State{At: at}
}

// cancelInWindow refunds n units that were to be spent at the time in the at argument, if that time
// lies in the window of s, which begins at start. If this leaves no unit in a window that has not
// begun yet, cancelInWindow returns a state of the previous window, and assumes that the previous
// window is full. The parameter before is the B of that state.
func cancelInWindow(s quota.State, most, start, before, now, at, n int64) quota.State {
	if at < start || at > s.At {
		return s
	}
	spent := max(0, s.A-n)
	switch {
	case spent > 0:
		return quota.State{At: s.At, A: spent, B: s.B}
	case start > now:
		return quota.State{At: start - 1, A: most, B: before}
	}
	return quota.State{}
}

// windowed has the methods that fixed, anchored, sliding and calendar windows share.
type windowed struct{}

func (windowed) Validate(l *quota.Limit) error { return validateWindow(l) }

// Additive: see lua.go.
func (windowed) Additive() {}

// Usable and Drains implement lease.Leaser: see lease.go. All n units are usable until the window
// ends, and then none. d.NextAfter is the time until the window ends. ResetAfter may be longer,
// because the state is also kept for the longer windows of other limits.
func (windowed) Usable(_ *quota.Limit, d quota.Decision, at, now, n int64) int64 {
	if now >= at+int64(d.NextAfter)/microsecond {
		return 0
	}
	return n
}
func (windowed) Drains() bool { return false }

// validateWindow returns an error if the quota, or the period in µs, exceeds 2^50. The
// numbers of a script are float64, which could not hold the sums of larger numbers
// exactly.
func validateWindow(l *quota.Limit) error {
	if l.Quota > quota.MaxTicks {
		return &uncountable{*l}
	}
	return validatePeriod(l)
}

func validatePeriod(l *quota.Limit) error {
	if int64(l.Period)/microsecond > quota.MaxTicks {
		return fmt.Errorf("period is %v; want at most 2^50 µs", l.Period)
	}
	return nil
}
