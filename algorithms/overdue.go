package algorithms

import (
	"math/bits"

	"github.com/seed83679106/weir"
)

// A debt is overdue to a limit if it is more than the limit holds: a larger limit
// of the same name, of another tier or from before a change, has left it. The limit
// sees of it what it can hold itself, as from At, and drains that. What is stored is
// all of the debt, less what has drained, and the charge. Until it is no more than
// the limit holds, each charge so fills the limit again: it admits its rate, and
// what it has drained since its last charge all at once.
//
// Nothing that was spent is forgotten for it, and the bound of the larger limit
// holds. Let a meter M have the largest burst and the largest rate of all limits
// that charge a key. The debt A, drained at M's rate, is never less than what M by
// itself would owe for all that was spent: a charge adds to both what it costs, and
// no limit drains faster than M. Nor does A ever exceed what M holds: a charge of a
// debt that is overdue fits only into what has drained since At. So M admits all
// that is admitted: in any window of M's period at most Burst + Quota − 1.
//
// An overdue debt keeps its unit, and drains in whole units if that is another than
// the limit's: rounded up to the limit's each time, it would grow, beyond 2^53 even.

// maxReset bounds how long a debt is kept that a limit would take ages to drain.
const maxReset = weir.MaxTicks

// overdue returns the debt in the ticks of its unit at the instant at, and by how
// many ticks of the limit's, and of the debt's own, it drains at once.
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

// stepOver is step for an overdue debt, of which the limit sees seen.
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

// viewOver is what can be said of a debt that may be overdue.
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

// charged returns the state in which an overdue debt and a charge at the instant at
// are owed. Where nothing is left of the debt the limit has seen all of it drain.
func (m meter) charged(s *weir.State, at, cost int64) weir.State {
	debt, _, _ := m.overdue(s, at)
	if debt == 0 {
		return weir.State{At: at, A: cost * m.unit, B: m.unit}
	}
	return weir.State{At: at, A: debt + cost*s.B, B: s.B}
}

// cancelOver gives back the last in line. What others were stays spent.
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
