package weir

import (
	"math/bits"
	"time"
)

// Force spends what does not fit, and every algorithm then decides as if it had fitted. A
// window or a log counts the units at now, under a quota that holds them: like a quota
// that was lowered, the real one refuses until enough of them no longer count. A meter
// would cut such a debt to its capacity, so its units are spent at the instant at which
// the debt has drained to what the meter holds, and nothing fits before that.
//
// general.lua has the same arithmetic.

// force decides charges that are spent even if they do not fit.
func (t *Transaction) force(now int64, states []State) {
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		at := now
		if c.Cost > 0 {
			at = max(now, states[i].At)
			if m, ok := c.Limit.Algorithm.(meter); ok {
				at = forceMeter(&states[i], c, m, at, now)
			} else {
				l := c.Limit
				l.Quota = MaxTicks
				if next, d := l.Algorithm.Take(states[i], &l, at, min(c.Cost, mostForced)); d.Allowed {
					states[i] = next
				}
			}
		}
		_, *d = c.Limit.Algorithm.Take(states[i], &c.Limit, now, 0)
		d.At = at
	}
}

// mostForced is the most units that are forced at once, so that their sum stays exact.
const mostForced = MaxTicks / 2

// forceMeter spends units when a meter holds them, and returns that instant. As in a queue,
// a debt below 0 has been empty for a fraction of a microsecond.
func forceMeter(s *State, c *Charge, m meter, at, now int64) int64 {
	if at-now > MaxTicks {
		return at // it owes enough
	}
	unit, rate, full := m.Meter(&c.Limit)
	units := min(c.Cost, mostForced/unit)
	if s.A <= 0 || s.B == unit && s.A <= full {
		debt := units * unit
		if s.A < 0 && s.B == unit && s.At > now {
			debt += s.A
		}
		if hi, drained := bits.Mul64(uint64(at-s.At), uint64(rate)); hi == 0 && drained < uint64(max(0, s.A)) {
			debt += s.A - int64(drained)
		}
		later := max(0, (debt-full+rate-1)/rate)
		*s = State{At: at + later, A: debt - later*rate, B: unit}
		return s.At
	}
	// The debt is of a limit with other numbers: the first units are spent when they fit,
	// and those that the meter cannot hold at once move that instant.
	first := min(units, full/unit)
	next, d := c.Limit.Algorithm.Take(*s, &c.Limit, at, first)
	if !d.Allowed {
		next, _ = c.Limit.Algorithm.Take(*s, &c.Limit, at+int64(d.RetryAfter/time.Microsecond), first)
	}
	*s = next
	s.At += ((units-first)*unit + rate - 1) / rate
	return s.At
}
