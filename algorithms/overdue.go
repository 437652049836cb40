package algorithms

import (
	"math/bits"

	"github.com/seed83679106/weir"
)

// A debt is overdue if it is more than the limit holds. A larger limit of the same name has
// written it: the limit of another tier, or the same limit before a change.
//
// The limit counts only the part of the debt that it can hold, as if the limit had been
// full at the instant At, and lets that part drain. A charge stores the whole debt, minus
// what has drained, plus the cost of the charge. While the whole debt is more than the limit
// holds, the limit therefore has no room right after a charge. In that time it admits its
// rate, and what has drained since the last charge may be spent at once.
//
// No unit is forgotten in this way, and the bound of the larger limit holds. For the
// proof, let a meter M have the largest burst and the largest rate of all limits that
// charge a key, and let M count every charge that these limits admit.
//
// First, M never owes more than the stored debt A. Each charge adds its cost to A and to the
// debt of M, and no limit drains A faster than M drains its own debt.
//
// Second, A never exceeds the burst of M. A charge on top of an overdue debt costs no more
// than what has drained since At, so A does not grow. Any other charge fits into the burst of
// its own limit, which is at most that of M.
//
// So M never owes more than its burst and would admit each of these charges. All limits
// together therefore admit at most Burst + Quota − 1 units of M in any span of M's period.
//
// An overdue debt stays in ticks of the limit that has written it. If a unit is worth
// another number of ticks under this limit, the debt drains in whole units. Charges do
// not convert the debt, because each conversion would round it up, and the debt could
// grow beyond 2^53.

// maxReset is the most µs for which a state is kept, however slowly its debt drains.
const maxReset = weir.MaxTicks

// overdue returns the debt at an instant that is not before s.At, in ticks of the limit
// that has written the debt. The debt drains in steps. The results own and stored are
// what a step is worth: in ticks of this limit, and in ticks of the debt. If a unit is
// worth the same number of ticks under both limits, a step is one tick. Otherwise a step
// is one unit.
func (m meter) overdue(s *weir.State, at int64) (debt, own, stored int64) {
	own, stored = m.unit, s.B
	if stored == own {
		own, stored = 1, 1
	}
	debt = min(s.A, weir.MaxTicks)
	hi, drained := bits.Mul64(uint64(at-s.At), uint64(m.rate))
	if hi > 0 || drained > 1<<52 {
		drained = 1 << 52
	}
	n := int64(drained) / own
	if n >= ceilDiv(debt, stored) {
		return 0, own, stored
	}
	return debt - n*stored, own, stored
}

// stepOver is meter.step for an overdue debt. seen is the part of the debt that the limit
// counts.
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
		debt, own, stored := m.overdue(s, at)
		v.reset = maxReset
		if hi, ticks := bits.Mul64(uint64(ceilDiv(debt, stored)), uint64(own)); hi == 0 && ticks < 1<<53 {
			v.reset = min(maxReset, ceilDiv(int64(ticks), m.rate))
		}
	}
	return v
}

// charged returns the state after a charge on top of an overdue debt. The parameter at is
// when the charge is spent. If the whole debt has drained by then, only the charge is
// owed.
func (m meter) charged(s *weir.State, at, cost int64) weir.State {
	debt, _, _ := m.overdue(s, at)
	if debt == 0 {
		return weir.State{At: at, A: cost * m.unit, B: m.unit}
	}
	return weir.State{At: at, A: debt + cost*s.B, B: s.B}
}

// cancelOver gives back n units that were to be spent at one instant, the parameter at,
// if they were the last charge and that instant has not passed. Otherwise the units stay
// spent.
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
