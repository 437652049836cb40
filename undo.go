package weir

import "time"

// An Undo says what a reservation has made of the state of a charge, so that the
// last in line may leave the key as he found it: the arithmetic of a Canceler gives
// back the units, but not the instant before which nobody goes.
type Undo struct {
	Before, After State // without logs
	Until         int64 // when Before is as good as new, in µs since 1970

	// Log says that the state is a log. It has other units that may change meanwhile,
	// so only the instant of Before counts: the log goes back to that, or to its
	// newest unit.
	Log bool
}

// undoOf describes the reservation of a charge, which was made at now.
func undoOf(c *Charge, now int64, before, after State) Undo {
	_, d := c.Limit.Algorithm.Take(before, &c.Limit, now, 0)
	u := Undo{Before: before, After: after, Until: now + int64(d.ResetAfter/time.Microsecond), Log: len(after.Log) > 0}
	u.Before.Log, u.After.Log = nil, nil
	return u
}

// undoes reports whether s may be replaced by the state before.
func (u *Undo) undoes(s *State) bool {
	a := &u.After
	return !u.Log && a.At != 0 && s.At == a.At && s.A == a.A && s.B == a.B
}
