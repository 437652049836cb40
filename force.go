package weir

import (
	"math/bits"
	"time"
)

// Transaction.Force spends units that do not fit. Every algorithm then decides as if they
// had fitted. A window or a log counts the units under a quota that is large enough. The
// real quota then refuses until enough of the units no longer count, as it does after a
// quota was lowered. A meter cannot hold a debt above its capacity. Its units are therefore
// spent at the later instant at which the debt has drained to the capacity, and nothing
// fits before that instant.
//
// general.lua of package redisstore has the same arithmetic.

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
				if next, d := takeAt(states[i], &l, now, at, min(c.Cost, mostForced)); d.Allowed {
					states[i] = next
				}
			}
		}
		_, *d = c.Limit.Algorithm.Take(states[i], &c.Limit, now, 0)
		d.At = at
	}
}

// mostForced is the most units that one charge forces, so that sums stay exact.
const mostForced = MaxTicks / 2

// forceMeter spends units at the instant at which the meter can hold them, and returns that
// instant. A queue may leave a debt below 0, which says that the debt was paid off a
// fraction of a microsecond before.
func forceMeter(s *State, c *Charge, m meter, at, now int64) int64 {
	if at-now > MaxTicks {
		return at // the debt lasts for more than MaxTicks already
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
	// The debt was written under a limit with other numbers. As many units as the meter
	// holds are spent at the instant at which they fit. The other units make that instant
	// later.
	first := min(units, full/unit)
	next, d := c.Limit.Algorithm.Take(*s, &c.Limit, at, first)
	if !d.Allowed {
		next, _ = c.Limit.Algorithm.Take(*s, &c.Limit, at+int64(d.RetryAfter/time.Microsecond), first)
	}
	*s = next
	s.At += ((units-first)*unit + rate - 1) / rate
	return s.At
}
