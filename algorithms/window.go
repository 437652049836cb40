package algorithms

import (
	"fmt"

	"github.com/seed83679106/weir"
)

// A window is the arithmetic that fixed, anchored and calendar windows share:
// up to quota units are spent in a window that ends. They differ in where the
// window that holds an instant begins and ends.
//
// A state holds how many units were spent (A) in the window of At.
type window struct {
	spent int64
	end   int64 // of the window that holds the instant asked for
}

// step spends in the window of the instant at = max(now, s.At). start stands in
// the next state, for those whose window begins where its first unit is spent.
func (w window) step(s *weir.State, d *weir.Decision, quota, start, now, at, cost int64) {
	switch {
	case cost > quota:
		w.view(quota, at).decide(d, now, at, never, false)
		return
	case cost > 0:
		retry := int64(0)
		if w.spent > quota-cost {
			retry = w.end - at
		}
		if retry > 0 || at > now {
			w.view(quota, at).decide(d, now, at, retry, false)
			return
		}
		w.spent += cost
		*s = weir.State{At: at, A: w.spent, B: start}
	case cost < 0:
		w.spent = max(0, w.spent-givenBack(cost))
		*s = weir.State{At: at, A: w.spent, B: start}
		if w.spent == 0 && at == now {
			*s = weir.State{}
		}
	}
	w.view(quota, at).decide(d, now, at, 0, true)
}

func (w window) view(quota, at int64) view {
	if w.spent == 0 {
		return view{remaining: quota}
	}
	return view{remaining: max(0, quota-w.spent), next: w.end - at, reset: w.end - at}
}

// cancel gives back n units that were to be spent at the instant at, if that was
// in the window of s, which began at start. Where none is left in a window to
// come, the one before it has its end: it is taken to be full.
func cancelInWindow(s weir.State, quota, start, before, now, at, n int64) weir.State {
	if at < start || at > s.At {
		return s
	}
	spent := max(0, s.A-n)
	switch {
	case spent > 0:
		return weir.State{At: s.At, A: spent, B: s.B}
	case start > now:
		return weir.State{At: start - 1, A: quota, B: before}
	}
	return weir.State{}
}

// validateWindow refuses numbers that a float64 could not add up.
func validateWindow(l *weir.Limit) error {
	if l.Quota > weir.MaxTicks {
		return fmt.Errorf("quota %d exceeds 2^50", l.Quota)
	}
	if int64(l.Period)/microsecond > weir.MaxTicks {
		return fmt.Errorf("period %v exceeds 2^50 µs", l.Period)
	}
	return nil
}
