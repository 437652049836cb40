package quota

import (
	"math"
	"slices"
	"time"
)

// prepare fills in the Result of t for a decision at the given instant, and allocates the decisions
// if necessary.
func (t *Transaction) prepare(at int64) {
	n := len(t.Charges)
	t.Decisions = slices.Grow(t.Decisions[:0], n)[:n]
	t.At, t.Wait, t.Granted, t.Undo, t.Replicas = time.UnixMicro(at), 0, 0, t.Undo[:0], 0
}

// Decide evaluates t and fills in its Result. It is for implementations of Store. The slice states
// holds the current state of each charge. If all charges fit, Decide replaces these with the new
// states, which the store must keep, and returns true. Otherwise, and in ModePeek, it leaves them
// unchanged and returns false. The time (now) is that of the store's clock, in microseconds since
// 1970. The transaction must be valid.
func (t *Transaction) Decide(now int64, states []State) bool {
	n := len(t.Charges)
	t.prepare(now)
	within := time.Duration(0)
	switch t.Mode {
	case ModeSpend:
		if n == 1 && t.Within <= 0 && t.Charges[0].Spent <= 0 && t.Charges[0].Headroom == 0 {
			c := &t.Charges[0]
			t.Decisions[0].At = now
			if a, ok := c.Limit.Algorithm.(stepper); ok {
				a.Step(&states[0], &t.Decisions[0], &c.Limit, now, c.Cost)
				return t.Decisions[0].Allowed
			}
		}
		within = min(t.Within, MaxTicks*time.Microsecond).Truncate(time.Microsecond)
	case ModeAtMost:
		return t.decideAtMost(now, states)
	case ModeForce:
		t.force(now, states)
		return true
	case ModeForget:
		t.forget(now, states)
		return true
	}
	t.next = slices.Grow(t.next[:0], n)[:n]
	fits, wait := t.takeEach(now, within, states)
	if t.Mode != ModeSpend || !fits || wait > 0 && (wait > within || !t.reserve(now, wait, states)) {
		t.explainRefusal(now, within, states)
		return false
	}
	copy(states, t.next)
	return true
}

// takeEach evaluates each charge separately. It reports whether every queue has room, and returns
// the longest RetryAfter.
func (t *Transaction) takeEach(now int64, within time.Duration, states []State) (fits bool, wait time.Duration) {
	fits = true
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		if c.Cost < 0 && c.Spent > 0 {
			t.cancel(i, now, states[i])
			continue
		}
		t.take(i, now, c.Cost, &states[i])
		if within > 0 && c.Cost > 0 {
			fits = t.joins(i, now, &states[i]) && fits
		}
		wait = max(wait, d.RetryAfter)
	}
	return fits, wait
}

// decideAtMost finds, by binary search, how many times all charges fit (at most Most times), and
// spends them that many times. If the charges do not fit even once, decideAtMost refuses them. In
// package redisstore, general.lua performs the same search.
func (t *Transaction) decideAtMost(now int64, states []State) bool {
	whole := t.Charges
	t.next = slices.Grow(t.next[:0], len(whole))[:len(whole)]
	t.Mode, t.Charges = ModeSpend, slices.Clone(whole)
	times, high := int64(1), min(t.Most, MaxTicks)
	for try := high; times < high; try = times + (high-times+1)/2 {
		t.costTimes(whole, try)
		fits := true
		for i := range t.Charges {
			t.take(i, now, t.Charges[i].Cost, &states[i])
			fits = fits && t.Decisions[i].Allowed
		}
		if fits {
			times = try
		} else {
			high = try - 1
		}
	}
	t.costTimes(whole, times)
	fits := t.Decide(now, states)
	if fits {
		t.Granted = times
	}
	t.Mode, t.Charges = ModeAtMost, whole
	return fits
}

// costTimes sets the cost of every charge to n times the cost of the same charge in whole, or to
// math.MaxInt64 if the product overflows.
func (t *Transaction) costTimes(whole []Charge, n int64) {
	for i := range whole {
		t.Charges[i].Cost = whole[i].Cost * n
		if whole[i].Cost > math.MaxInt64/n {
			t.Charges[i].Cost = math.MaxInt64
		}
	}
}

// mostForced is the maximum number of units that a charge spends in ModeForce if its algorithm is
// not a Forcer. Sums then stay exact.
const mostForced = MaxTicks / 2

// force spends all charges, even if they do not fit. Its decisions describe the new states. In
// package redisstore, general.lua does the same.
func (t *Transaction) force(now int64, states []State) {
	for i := range t.Charges {
		c, s := &t.Charges[i], &states[i]
		at := now
		if c.Cost > 0 {
			at = max(now, s.At)
			if f, ok := c.Limit.Algorithm.(forcer); ok {
				*s = f.Force(*s, &c.Limit, at, c.Cost)
			} else {
				l := c.Limit
				l.Quota = MaxTicks
				if next, d := takeAt(*s, &l, now, at, min(c.Cost, mostForced)); d.Allowed {
					*s = next
				}
			}
		}
		_, t.Decisions[i] = c.Limit.Algorithm.Take(*s, &c.Limit, now, 0)
		t.Decisions[i].At = at
	}
}

// forget replaces every state with the zero State.
func (t *Transaction) forget(now int64, states []State) {
	for i := range states {
		l := &t.Charges[i].Limit
		states[i] = State{}
		_, t.Decisions[i] = l.Algorithm.Take(State{}, l, now, 0)
		t.Decisions[i].At = now
	}
}

// take evaluates charge i alone, from the state s, with the given cost instead of the charge's own
// cost. It stores the new state in t.next.
func (t *Transaction) take(i int, now, cost int64, s *State) {
	if t.Charges[i].Headroom > 0 {
		t.takeLeaving(i, now, cost, s)
		return
	}
	t.step(i, now, cost, s)
}

// takeLeaving is like take, but for a charge with headroom. The cost and the headroom must fit
// together, but only the cost is spent. The decision describes what is left for charges with this
// headroom.
func (t *Transaction) takeLeaving(i int, now, cost int64, s *State) {
	c, d := &t.Charges[i], &t.Decisions[i]
	allowed, retry := true, time.Duration(0)
	if cost > 0 {
		t.step(i, now, min(cost, math.MaxInt64-c.Headroom)+c.Headroom, s)
		if allowed, retry = d.Allowed, d.RetryAfter; !allowed {
			cost = 0
		}
	}
	t.step(i, now, cost, s)
	d.Allowed, d.RetryAfter = allowed, retry
	if d.Remaining >= c.Headroom {
		d.Remaining -= c.Headroom
		return
	}
	d.Remaining = 0
	_, one := c.Limit.Algorithm.Take(t.next[i], &c.Limit, now, c.Headroom+1)
	switch {
	case one.RetryAfter != Never:
		d.NextAfter = one.RetryAfter
	case !c.Limit.InFlight(): // the headroom is the whole limit
		d.NextAfter = d.ResetAfter
	}
}

// step is like take, but ignores the headroom.
func (t *Transaction) step(i int, now, cost int64, s *State) {
	c := &t.Charges[i]
	t.next[i].set(s)
	if a, ok := c.Limit.Algorithm.(stepper); ok {
		a.Step(&t.next[i], &t.Decisions[i], &c.Limit, now, cost)
	} else {
		t.next[i], t.Decisions[i] = c.Limit.Algorithm.Take(*s, &c.Limit, now, cost)
	}
	t.Decisions[i].At = now
}

// If the algorithm of charge i is a Queuer, joins determines when the charge's slot would begin. If
// the queue has no room, joins returns false.
func (t *Transaction) joins(i int, now int64, s *State) bool {
	c, d := &t.Charges[i], &t.Decisions[i]
	q, ok := c.Limit.Algorithm.(queuer)
	if !ok {
		return true
	}
	_, d.RetryAfter, ok = q.Queue(*s, &c.Limit, now, now, c.Cost)
	d.Allowed = ok && d.RetryAfter == 0
	return ok
}

// set copies s field by field. Copying the whole struct would take about 10 ns longer, because it
// uses wide loads, which must wait for the narrower stores before them.
func (to *State) set(s *State) {
	to.At, to.A, to.B, to.C, to.Log = s.At, s.A, s.B, s.C, s.Log
}

// cancel refunds a reservation, or the newest units if the algorithm is not a Canceler.
func (t *Transaction) cancel(i int, now int64, s State) {
	c, cost := &t.Charges[i], t.Charges[i].Cost
	var u Undo
	if len(t.Cancels) == len(t.Charges) {
		u = t.Cancels[i]
	}
	if u.canUndo(&s) {
		t.take(i, now, 0, &u.Before)
		return
	}
	if a, ok := c.Limit.Algorithm.(canceler); ok {
		last := s.At == c.Spent
		s = a.Cancel(s, &c.Limit, now, c.Spent, -max(cost, -4*MaxTicks))
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

// reserve reserves every charge that spends units, for the instant now + wait. It returns false if
// one of these charges does not fit at that instant.
func (t *Transaction) reserve(now int64, wait time.Duration, states []State) bool {
	at := now + int64(wait/time.Microsecond)
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost <= 0 {
			continue
		}
		if q, ok := c.Limit.Algorithm.(queuer); ok {
			t.next[i], _, _ = q.Queue(states[i], &c.Limit, now, at, c.Cost)
			continue
		}
		var d Decision
		if t.next[i], d = takeAt(states[i], &c.Limit, now, at, c.Cost); !d.Allowed {
			return false // fits sooner but not later, which package algorithms excludes
		}
	}
	n := len(t.Charges)
	t.Undo = slices.Grow(t.Undo[:0], n)[:n]
	clear(t.Undo)
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

// takeAt evaluates a charge that is made now and spends its units at a given instant, now or later.
func takeAt(s State, l *Limit, now, at, cost int64) (State, Decision) {
	if r, ok := l.Algorithm.(reserver); ok {
		return r.Reserve(s, l, now, at, cost)
	}
	return l.Algorithm.Take(s, l, at, cost)
}

// explainRefusal makes the decisions of a transaction that spends nothing describe the current
// states. Without it, the decision on a charge that fits would describe the state after the charge.
func (t *Transaction) explainRefusal(now int64, within time.Duration, states []State) {
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		if c.Cost != 0 && (d.Allowed || within > 0) {
			allowed, retry := d.Allowed, d.RetryAfter
			t.take(i, now, 0, &states[i])
			if q, ok := c.Limit.Algorithm.(queuer); ok && within > 0 && c.Cost > 0 {
				retry = queueRetry(q, &states[i], &c.Limit, now, c.Cost, within)
				allowed = retry == 0
			}
			d.Allowed, d.RetryAfter = allowed, retry
		}
	}
}

// queueRetry returns the wait until a charge can join the queue. It can join if there is room and
// its slot begins within the time that the caller is willing to wait.
func queueRetry(q queuer, s *State, l *Limit, now, cost int64, within time.Duration) (retry time.Duration) {
	_, slot, ok := q.Queue(*s, l, now, now, cost)
	if !ok && slot != Never {
		retry = slot
		now += int64(retry / time.Microsecond)
		_, slot, ok = q.Queue(*s, l, now, now, cost)
	}
	if !ok {
		return Never
	}
	return retry + max(0, slot-within)
}

// An Undo holds the state of a key before and after a reservation. Only stores use the fields. If
// no other charge has changed the state in the meantime, cancelling the reservation restores the
// state Before.
type Undo struct {
	Before, After State // without logs
	Until         int64 // when Before becomes equivalent to the zero State, in µs since 1970

	// Log reports whether the algorithm keeps a log in its State. Because other charges may have
	// changed the log in the meantime, a cancellation restores only the field At. It sets this
	// field to Before.At or to the instant of the newest unit in the log, whichever is later.
	Log bool
}

// undoOf returns the Undo of a reservation that is made now.
func undoOf(c *Charge, now int64, before, after State) Undo {
	_, d := c.Limit.Algorithm.Take(before, &c.Limit, now, 0)
	u := Undo{Before: before, After: after, Until: now + int64(d.ResetAfter/time.Microsecond), Log: len(after.Log) > 0}
	u.Before.Log, u.After.Log = nil, nil
	return u
}

// canUndo reports whether Before may replace s, that is, whether no other charge has changed s in
// the meantime.
func (u *Undo) canUndo(s *State) bool {
	a := &u.After
	return !u.Log && a.At != 0 && s.At == a.At && s.A == a.A && s.B == a.B
}
