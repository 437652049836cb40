package weir

import "time"

// A Validator is an Algorithm that cannot count every limit. Validate says
// which number of the limit is too large. Quota and Period are positive, Burst
// is not negative.
type Validator interface {
	Validate(l *Limit) error
}

// A Stepper is an Algorithm that decides in place: Step does to *s and *d what
// Take returns. It saves the copies, which cost more than the arithmetic.
type Stepper interface {
	Step(s *State, d *Decision, l *Limit, now, cost int64)
}

// A Queuer is an Algorithm whose charges, where the caller accepts to wait,
// stand in a queue and leave it one after the other.
type Queuer interface {
	// Queue lets a charge of cost > 0 join at now and leave at its turn, or at
	// the instant at if that is later. It returns the state with the charge in
	// it and the wait for its turn. Where there is no room ok is false, next is
	// s, and wait is the time until there is room, or Never.
	Queue(s State, l *Limit, now, at, cost int64) (next State, wait time.Duration, ok bool)
}

// A Reserver is an Algorithm whose state would forget what a cancellation needs if
// a charge was taken at an instant to come.
type Reserver interface {
	// Reserve is Take at the instant at, for a charge that was asked for at now,
	// which is no later.
	Reserve(s State, l *Limit, now, at, cost int64) (State, Decision)
}

// A Canceler is an Algorithm that can take back a reservation. Others give back
// their newest units, which may free a slot that somebody else holds.
type Canceler interface {
	// Cancel gives back n > 0 units that were to be spent at the instant at, if
	// they still count, and none besides. What it can't tell stays spent. now is
	// in µs since 1970, as at is, and may lie before or after it.
	Cancel(s State, l *Limit, now, at, n int64) State
}

// Decide is the decision itself, for those who write stores: given the state of
// each charge it fills Decisions, At and Wait, and where everything fits it
// replaces states by those to be stored and returns true. Otherwise it returns
// false and leaves them as they were. The transaction must be valid, states as
// long as Charges, and now is the store's clock in microseconds since 1970.
func (t *Transaction) Decide(now int64, states []State) bool {
	n := len(t.Charges)
	if cap(t.Decisions) < n {
		t.Decisions = make([]Decision, n)
	}
	t.Decisions = t.Decisions[:n]
	t.At, t.Wait = time.UnixMicro(now), 0
	undo := t.Undo
	t.Undo = t.Undo[:0]
	if t.Forget {
		t.forget(now, states)
		return true
	}
	if n == 1 && t.Within <= 0 && t.Charges[0].Spent <= 0 {
		c := &t.Charges[0]
		t.Decisions[0].At = now
		if a, ok := c.Limit.Algorithm.(Stepper); ok {
			a.Step(&states[0], &t.Decisions[0], &c.Limit, now, c.Cost)
			return t.Decisions[0].Allowed
		}
	}
	if cap(t.next) < n {
		t.next = make([]State, n)
	}
	t.next = t.next[:n]

	within := min(t.Within, MaxTicks*time.Microsecond).Truncate(time.Microsecond)
	fits := true
	wait := min(t.Delay, within).Truncate(time.Microsecond)
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		if c.Cost < 0 && c.Spent > 0 {
			t.cancel(i, now, states[i], undo)
			continue
		}
		t.take(i, now, c.Cost, &states[i])
		if within > 0 && c.Cost > 0 {
			if q, ok := c.Limit.Algorithm.(Queuer); ok {
				_, d.RetryAfter, ok = q.Queue(states[i], &c.Limit, now, now, c.Cost)
				d.Allowed = ok && d.RetryAfter == 0
				fits = fits && ok
			}
		}
		wait = max(wait, d.RetryAfter)
	}
	if wait > 0 && (!fits || wait > within || !t.reserve(now, wait, states)) {
		t.explainRefusal(now, within, states)
		return false
	}
	copy(states, t.next)
	return true
}

// forget makes every key a new one.
func (t *Transaction) forget(now int64, states []State) {
	for i := range states {
		l := &t.Charges[i].Limit
		states[i] = State{}
		_, t.Decisions[i] = l.Algorithm.Take(State{}, l, now, 0)
		t.Decisions[i].At = now
	}
}

// take decides the i-th charge alone, at another cost, and leaves the state that
// follows in next.
func (t *Transaction) take(i int, now, cost int64, s *State) {
	c := &t.Charges[i]
	t.next[i].set(s)
	if a, ok := c.Limit.Algorithm.(Stepper); ok {
		a.Step(&t.next[i], &t.Decisions[i], &c.Limit, now, cost)
	} else {
		t.next[i], t.Decisions[i] = c.Limit.Algorithm.Take(*s, &c.Limit, now, cost)
	}
	t.Decisions[i].At = now
}

// set copies s field by field: wider loads would stall on stores that are still
// on their way, at 10 ns a copy.
func (to *State) set(s *State) {
	to.At, to.A, to.B, to.Log, to.Until = s.At, s.A, s.B, s.Log, s.Until
}

// cancel gives back a reservation, or the newest units where the algorithm
// can't tell one from another.
func (t *Transaction) cancel(i int, now int64, s State, undo []Undo) {
	c, cost := &t.Charges[i], t.Charges[i].Cost
	var u Undo
	if len(undo) == len(t.Charges) {
		u = undo[i]
	}
	if u.undoes(&s) {
		t.take(i, now, 0, &u.Before)
		return
	}
	if a, ok := c.Limit.Algorithm.(Canceler); ok {
		last := s.At == c.Spent
		s = a.Cancel(s, &c.Limit, now, c.Spent, -max(cost, -2*MaxTicks))
		if u.Log && last {
			s.At = u.Before.At
			if n := len(s.Log); n > 0 {
				s.At = max(s.At, s.Log[n-1].At)
			}
		}
		cost = 0
	}
	t.take(i, now, cost, &s)
}

// reserve takes every charge at now + wait. What is looked at or given back
// need not wait.
func (t *Transaction) reserve(now int64, wait time.Duration, states []State) bool {
	at := now + int64(wait/time.Microsecond)
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 {
			continue
		}
		if q, ok := c.Limit.Algorithm.(Queuer); ok {
			t.next[i], _, _ = q.Queue(states[i], &c.Limit, now, at, c.Cost)
			continue
		}
		var d Decision
		if r, ok := c.Limit.Algorithm.(Reserver); ok {
			t.next[i], d = r.Reserve(states[i], &c.Limit, now, at, c.Cost)
		} else {
			t.next[i], d = c.Limit.Algorithm.Take(states[i], &c.Limit, at, c.Cost)
		}
		if !d.Allowed {
			return false // it fitted sooner, and no more: not one of our algorithms
		}
	}
	if n := len(t.Charges); cap(t.Undo) < n {
		t.Undo = make([]Undo, n)
	} else {
		t.Undo = t.Undo[:n]
		clear(t.Undo)
	}
	for i := range t.Charges {
		if c := &t.Charges[i]; c.Cost > 0 {
			_, t.Decisions[i] = c.Limit.Algorithm.Take(t.next[i], &c.Limit, now, 0)
			t.Decisions[i].At = at
			t.Undo[i] = undoOf(c, now, states[i], t.next[i])
		}
	}
	t.Wait = wait
	return true
}

// explainRefusal describes the states as they are, where take has described
// them as they would be with their charge spent.
func (t *Transaction) explainRefusal(now int64, within time.Duration, states []State) {
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		if c.Cost != 0 && (d.Allowed || t.Within > 0) {
			allowed, retry := d.Allowed, d.RetryAfter
			t.take(i, now, 0, &states[i])
			_, shut := c.Limit.Algorithm.(gate) // which says when it opens
			if q, ok := c.Limit.Algorithm.(Queuer); ok && !shut && within > 0 && c.Cost > 0 {
				retry = queueRetry(q, &states[i], &c.Limit, now, c.Cost, within)
				allowed = retry == 0
			}
			d.Allowed, d.RetryAfter = allowed, retry
		}
	}
}

// queueRetry returns the wait until a charge that accepts to wait for within gets
// into the queue: until there is room, and its turn is near enough. A turn comes
// nearer as time passes.
func queueRetry(q Queuer, s *State, l *Limit, now, cost int64, within time.Duration) (retry time.Duration) {
	_, turn, ok := q.Queue(*s, l, now, now, cost)
	if !ok && turn != Never {
		retry = turn
		now += int64(retry / time.Microsecond)
		_, turn, ok = q.Queue(*s, l, now, now, cost)
	}
	if !ok {
		return Never
	}
	return retry + max(0, turn-within)
}

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
	if d.ResetAfter > 0 {
		u.Before.Until = u.Until
	}
	return u
}

// undoes reports whether s may be replaced by the state before.
func (u *Undo) undoes(s *State) bool {
	a := &u.After
	return !u.Log && a.At != 0 && s.At == a.At && s.A == a.A && s.B == a.B
}
