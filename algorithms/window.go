package algorithms

import (
	"fmt"

	"github.com/seed83679106/weir/quota"
)

// A window is the arithmetic that fixed, anchored and calendar windows share: up to quota
// units may be spent in each window. The algorithms differ in when the window of an instant
// begins and ends.
//
// Limits of one name may have windows of different lengths. A state holds how many units
// were spent in the longest of these windows (A). The states of fixed and calendar
// windows also hold when that window ends (B). A limit with a shorter window counts A
// units if At lies in its own window, and otherwise none.
type window struct {
	spent int64 // units spent in the window
	end   int64 // when the window ends
	kept  int64 // units spent in the longest window
	until int64 // when the longest window ends
}

// windowOf returns the window from start to end, for start ≤ at < end.
func windowOf(s *quota.State, start, end, at int64) window {
	w := window{end: end, until: end}
	if s.At >= start {
		w.spent = s.A
	}
	w.kept = w.spent
	if at < s.B {
		w.kept, w.until = s.A, max(end, s.B)
	}
	return w
}

// step decides a charge in the window w, which contains at = max(now, s.At). b becomes
// the B of the next state.
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
		w.kept = min(w.kept+cost, 2*quota.MaxTicks) // the cap is more than any quota
		w.spent = w.kept
		*s = quota.State{At: at, A: w.kept, B: b, Until: w.until}
	case cost < 0:
		last := at
		if w.spent == 0 && w.kept > 0 {
			last = s.At // the units belong to an earlier window, and must not count in this one
		}
		n := givenBack(cost)
		w.spent, w.kept = max(0, w.spent-n), max(0, w.kept-n)
		*s = quota.State{At: last, A: w.kept, B: b, Until: w.until}
		if w.kept == 0 {
			*s = unspent(b, now, at)
		}
	}
	w.view(most, at).decide(d, now, at, 0, true)
}

func (w window) view(most, at int64) view {
	v := view{remaining: max(0, most-w.spent)}
	if w.spent > 0 {
		v.next = w.end - at
	}
	if w.kept > 0 {
		v.reset = w.until - at
	}
	return v
}

// unspent returns a state in which no unit is spent. If at > now, no charge fits until then.
func unspent(b, now, at int64) quota.State {
	if at == now {
		return quota.State{}
	}
	return quota.State{At: at, B: b, Until: at}
}

// cancelInWindow gives back n units that were to be spent at one instant, the parameter
// at, if that instant lies in the window of s, which begins at start. If this leaves no
// unit in a window that has not begun yet, the next state is a state of the previous
// window, and cancelInWindow assumes that the previous window is full. The parameter
// before is the B of that state.
func cancelInWindow(s quota.State, most, start, before, until, now, at, n int64) quota.State {
	if at < start || at > s.At {
		return s
	}
	spent := max(0, s.A-n)
	switch {
	case spent > 0:
		return quota.State{At: s.At, A: spent, B: s.B, Until: until}
	case start > now:
		return quota.State{At: start - 1, A: most, B: before, Until: start}
	}
	return quota.State{}
}

// validateWindow returns an error if the quota, or the period in µs, exceeds 2^50. The
// numbers of a script are float64, which could not hold the sums of larger numbers
// exactly.
func validateWindow(l *quota.Limit) error {
	if l.Quota > quota.MaxTicks {
		return &uncountable{*l}
	}
	if int64(l.Period)/microsecond > quota.MaxTicks {
		return fmt.Errorf("period is %v; want at most 2^50 µs", l.Period)
	}
	return nil
}
