package algorithms

import "github.com/seed83679106/weir/quota"

// Units that are forced add to the debt of a meter like other units, but the debt may then
// exceed the capacity. It drains at the rate of the limit, and nothing fits until there is
// room again.
//
// A limit that is smaller than the limit of an earlier charge counts only as much of a debt as
// it can hold: see overdue.go. It must count the forced units in full. A state therefore says
// how many ticks of the debt exceeded the capacity when they were forced (C). These ticks drain
// first, and units that are given back reduce them first. A limit counts C in full, and as much
// of the rest as it can hold.

// forced returns how many of the ticks that were forced are still owed at the instant at, after
// back ticks were given back.
func (m meter) forced(s *quota.State, at, back int64) int64 {
	if s.C == 0 {
		return 0
	}
	return max(0, m.convert(s.C, s.B)-m.drained(at-s.At)-back)
}

// force spends units at the instant at, which is not before s.At. The debt never exceeds
// mostOwed, nor what drains in maxReset. Units beyond that are not spent.
func (m meter) force(s quota.State, at, cost int64) quota.State {
	seen, over := m.debt(&s, at)
	debt, unit := seen, m.unit
	if over {
		if debt = m.overdue(&s, at); debt > 0 {
			unit = s.B
		}
	}
	n := min(cost, max(0, min(m.rate, 4)*maxReset-debt)/unit)
	if n == 0 {
		return s
	}
	forced := max(m.forced(&s, at, 0), min(mostOwed, seen+m.convert(n, 1))-m.full(), 0)
	if unit != m.unit {
		forced = ceilDiv(forced, m.unit) * unit
	}
	return quota.State{At: at, A: debt + n*unit, B: unit, C: forced}
}
