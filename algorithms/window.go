package algorithms

import (
	"fmt"

	"github.com/seed83679106/weir/quota"
)

// A window implements the arithmetic that fixed, anchored and calendar windows share: up to quota
// units may be spent in each window. These algorithms differ in when the window that contains an
// instant begins and ends. In a state, A is the number of units spent in the state's window.
type window struct {
	spent int64 // units spent in the window
	end   int64 // when the window ends
}

// windowOf returns the window from start to end, for a state s that does not belong to a later one.
func windowOf(s *quota.State, start, end int64) window {
	w := window{end: end}
	if s.At >= start {
		w.spent = s.A
	}
	return w
}

// step evaluates a charge in the window w, which contains the instant max(now, s.At). The next
// state has b as its B.
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
		w.spent = min(w.spent+cost, 2*quota.MaxTicks) // the maximum exceeds any quota
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

// unspent returns a state without spent units, in which no charge fits before a given time (at).
func unspent(now, at int64) quota.State {
	if at == now {
		return quota.State{}
	}
	return quota.State{At: at}
}

// cancelInWindow refunds n units that were reserved for a given time, if this time lies in the
// window of s, which begins at start. If no units are left and the window has not begun yet,
// cancelInWindow returns a state in the previous window, which it assumes to be full. The B of that
// state is the given one.
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

// A windowed value provides the methods that fixed, anchored, sliding and calendar windows share.
type windowed struct{}

func (windowed) Validate(l *quota.Limit) error { return validateWindow(l) }

// Additive: see lua.go.
func (windowed) Additive() {}

// Usable and Drains implement lease.Leaser: see lease.go. All n units are usable until the window
// ends. The time until then is d.NextAfter, not d.ResetAfter, which may be longer because the state
// is also kept for longer windows of other limits.
func (windowed) Usable(_ *quota.Limit, d quota.Decision, at, now, n int64) int64 {
	if now >= at+int64(d.NextAfter)/microsecond {
		return 0
	}
	return n
}
func (windowed) Drains() bool { return false }

// validateWindow returns an error if the quota, or the period in µs, exceeds 2^50. Numbers in
// scripts are float64, which could not represent the sums of larger numbers exactly.
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
