package algorithms

import (
	"math/bits"

	"github.com/seed83679106/weir"
)

// A debt is overdue if it is more than the limit holds. A larger limit of the same name has
// left it: the limit of another tier, or the same limit before a change.
//
// The limit counts only as much of the debt as it can hold, as if it had been full at At,
// and drains that. A charge stores the whole debt, less what has drained, plus its cost. So
// each charge fills the limit again, until the whole debt is no more than the limit holds.
// Until then the limit admits its rate, and what has drained since the last charge may be
// spent at once.
//
// No unit is forgotten in this way, and the bound of the larger limit holds. Let a
// meter M have the largest burst and the largest rate of all limits that charge a key.
// The debt A, drained at M's rate, is never less than what M alone would owe for all that
// was spent, because a charge adds its cost to both and no limit drains faster than M.
// A never exceeds M's burst either. While the debt is overdue, a charge is admitted only if
// it costs no more than what has drained since At. Otherwise it must fit into the limit's
// own burst, which is at most M's. So M would admit everything that is admitted: at most
// Burst + Quota − 1 in any window of M's period.
//
// An overdue debt keeps its unit. If the unit of the limit is another, the debt drains in
// whole units. Converting the debt at each charge would round it up each time, and it could
// grow beyond 2^53.

// maxReset is the most µs for which a state is kept, however slowly its debt drains.
const maxReset = weir.MaxTicks

// overdue returns the debt at the instant at, in ticks of its own unit. The debt drains in
// steps: mine is a step in ticks of the limit, and its is the same step in ticks of the
// debt. A step is a tick if both units are the same, and otherwise a unit.
func (m meter) overdue(s *weir.State, at int64) (debt, mine, its int64) {
	mine, its = m.unit, s.B
	if its == mine {
		mine, its = 1, 1
	}
	debt = min(s.A, weir.MaxTicks)
	hi, drained := bits.Mul64(uint64(at-s.At), uint64(m.rate))
	if hi > 0 || drained > 1<<52 {
		drained = 1 << 52
	}
	n := int64(drained) / mine
	if n >= ceilDiv(debt, its) {
		return 0, mine, its
	}
	return debt - n*its, mine, its
}

// stepOver is step for an overdue debt. seen is the part of it that the limit counts.
func (m meter) stepOver(s *weir.State, d *weir.Decision, seen, now, at, cost int64) {
	switch {
	case cost > m.size:
		m.viewOver(s, at).decide(d, now, at, never, false)
		return
	case cost > 0:
		retry := ceilDiv(seen+cost*m.unit-m.full(), m.rate)
		if retry > 0 || at > now {
			m.viewOver(s, at).decide(d, now, at, retry, false)
			return
		}
		*s = m.charged(s, at, cost)
	case cost < 0:
		debt := min(s.A, weir.MaxTicks)
		if n := givenBack(cost); n < ceilDiv(debt, s.B) {
			*s = weir.State{At: s.At, A: debt - n*s.B, B: s.B}
		} else if at == now {
			*s = weir.State{}
		} else {
			*s = weir.State{At: at, B: m.unit}
		}
	}
	m.viewOver(s, at).decide(d, now, at, 0, true)
}

// viewOver returns the view of a state whose debt may be overdue.
func (m meter) viewOver(s *weir.State, at int64) view {
	seen, over := m.debt(s, at)
	v := m.view(seen)
	if over {
		debt, mine, its := m.overdue(s, at)
		v.reset = maxReset
		if hi, ticks := bits.Mul64(uint64(ceilDiv(debt, its)), uint64(mine)); hi == 0 && ticks < 1<<53 {
			v.reset = min(maxReset, ceilDiv(int64(ticks), m.rate))
		}
	}
	return v
}

// charged returns the state after a charge at the instant at that comes on top of an
// overdue debt. If all of the debt has drained by then, only the charge is owed.
func (m meter) charged(s *weir.State, at, cost int64) weir.State {
	debt, _, _ := m.overdue(s, at)
	if debt == 0 {
		return weir.State{At: at, A: cost * m.unit, B: m.unit}
	}
	return weir.State{At: at, A: debt + cost*s.B, B: s.B}
}

// cancelOver gives back n units if they were the last charge and their instant has not
// passed. Other units stay spent.
func (m meter) cancelOver(s weir.State, now, at, n int64) weir.State {
	if at != s.At || at < now {
		return s
	}
	debt := min(s.A, weir.MaxTicks)
	if n >= ceilDiv(debt, s.B) {
		if at == now {
			return weir.State{}
		}
		return weir.State{At: at, B: m.unit}
	}
	return weir.State{At: at, A: debt - n*s.B, B: s.B}
}
