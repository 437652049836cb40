package algorithms

import "github.com/seed83679106/weir/quota"

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
// its own limit, which is at most that of M. Only units that are forced come on top.
//
// So M never owes more than its burst and would admit each of these charges. All limits
// together therefore admit at most Burst + Quota − 1 units of M in any span of M's period.
//
// An overdue debt stays in ticks of the limit that has written it. If a unit is worth
// another number of ticks under this limit, the debt drains in whole units. Charges do
// not convert the debt, because each conversion would round it up, and the debt could
// grow beyond 2^53.

// overdue returns the whole debt at an instant that is not before s.At, in ticks of the limit
// that has written the debt. If a unit is worth the same number of ticks under both limits, the
// debt drains in ticks, and otherwise in whole units.
func (m meter) overdue(s *quota.State, at int64) int64 {
	debt, drained := min(s.A, mostOwed), m.drained(at-s.At)
	if s.B == m.unit {
		return max(0, debt-drained)
	}
	if n := drained / m.unit; n < ceilDiv(debt, s.B) {
		return debt - n*s.B
	}
	return 0
}

// stepOver is meter.step for an overdue debt. seen is the part of the debt that the limit
// counts.
func (m meter) stepOver(s *quota.State, d *quota.Decision, seen, now, at, cost int64) {
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
		*s = m.refunded(*s, now, givenBack(cost))
	}
	m.viewOver(s, at).decide(d, now, at, 0, true)
}

// viewOver returns the view of a state whose debt may be overdue.
func (m meter) viewOver(s *quota.State, at int64) view {
	seen, over := m.debt(s, at)
	v := m.view(seen)
	if over {
		v.reset = min(maxReset, ceilDiv(m.convert(m.overdue(s, at), s.B), m.rate))
	}
	return v
}

// charged returns the state after a charge on top of an overdue debt. The parameter at is
// when the charge is spent. If the whole debt has drained by then, only the charge is
// owed.
func (m meter) charged(s *quota.State, at, cost int64) quota.State {
	debt := m.overdue(s, at)
	if debt == 0 {
		return quota.State{At: at, A: cost * m.unit, B: m.unit}
	}
	return quota.State{At: at, A: debt + cost*s.B, B: s.B}
}

// refunded returns the state after n units of an overdue debt were given back.
func (m meter) refunded(s quota.State, now, n int64) quota.State {
	switch debt := min(s.A, mostOwed); {
	case n < ceilDiv(debt, s.B):
		return quota.State{At: s.At, A: debt - n*s.B, B: s.B, C: max(0, s.C-n*s.B)}
	case s.At <= now:
		return quota.State{}
	}
	return quota.State{At: s.At, B: m.unit}
}

// cancelOver gives back n units that were to be spent at one instant, the parameter at. If
// they were not the last charge, some of them may have drained, and other limits may have
// drained them faster than this limit. They then reduce only what was forced.
func (m meter) cancelOver(s quota.State, now, at, n, drained int64) quota.State {
	if at < s.At {
		n = min(n-ceilDiv(drained, m.unit), s.C/s.B)
	}
	if n <= 0 {
		return s
	}
	return m.refunded(s, now, n)
}
