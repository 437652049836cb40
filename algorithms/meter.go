package algorithms

import (
	"math/bits"

	"github.com/seed83679106/weir"
)

// A meter is the arithmetic that GCRA, token bucket and leaky bucket share: a debt grows
// with each charge and drains at a constant rate. The debt is counted in ticks, so that a
// debt that drains need not be rounded. A unit is as many ticks as the period has µs, and
// in each µs as many ticks drain as the quota has units. If these two numbers are too
// large, meterOf divides both by their greatest common divisor.
//
// A state holds the debt at the instant At (A), and how many ticks a unit is worth (B). A
// limit with other numbers needs B to convert the debt. For a debt that exceeds the
// capacity of the limit, see overdue.go.
type meter struct {
	unit int64 // ticks that a unit is worth
	rate int64 // ticks that drain in a µs
	size int64 // the most units that may be spent at once
}

func meterOf(l *weir.Limit) meter {
	m := meter{unit: int64(l.Period) / microsecond, rate: l.Quota, size: l.Burst}
	if m.size == 0 {
		m.size = l.Quota
	}
	// Under a limit of 10^9 units a day, for example, a unit becomes 432 ticks, and 5 ticks
	// drain in a µs.
	if !countable(max(m.size, m.rate), m.unit) {
		g := gcd(m.unit, m.rate)
		m.unit /= g
		m.rate /= g
	}
	return m
}

// ticks returns how many ticks a unit is worth, how many drain in a µs, and how many the debt
// may have.
func (m meter) ticks() (unit, rate, full int64) { return m.unit, m.rate, m.full() }

func (m meter) full() int64 { return m.size * m.unit }

// debt returns how many ticks are owed at an instant that is not before s.At. If more was
// owed at s.At than the limit holds, over is true, and debt is the part that this limit
// counts.
func (m meter) debt(s *weir.State, at int64) (debt int64, over bool) {
	debt = s.A
	if debt <= 0 {
		return 0, false
	}
	if s.B != m.unit {
		debt = m.convert(debt, s.B)
	}
	if full := m.full(); debt > full {
		debt, over = full, true
	}
	if hi, drained := bits.Mul64(uint64(at-s.At), uint64(m.rate)); hi == 0 && drained < uint64(debt) {
		return debt - int64(drained), over
	}
	return 0, over
}

// convert returns a debt in ticks of this limit. The parameter unit is how many ticks a
// unit was worth under the limit that wrote the debt. convert rounds the debt up to whole
// units. If this limit cannot hold the debt, the result exceeds m.full().
func (m meter) convert(debt, unit int64) int64 {
	if unit < 1 || debt < 0 {
		return m.full()
	}
	if n := ceilDiv(debt, unit); n <= m.size {
		return n * m.unit
	}
	return m.full() + 1
}

func (m meter) view(debt int64) view {
	if debt == 0 {
		return view{remaining: m.size}
	}
	free := uint64(m.full() - debt)
	n := free / uint64(m.unit)
	return view{
		remaining: int64(n),
		next:      ceilDiv(m.unit-int64(free-n*uint64(m.unit)), m.rate),
		reset:     ceilDiv(debt, m.rate),
	}
}

func (m meter) step(s *weir.State, d *weir.Decision, now, cost int64) {
	at := max(now, s.At)
	debt, over := m.debt(s, at)
	if over {
		m.stepOver(s, d, debt, now, at, cost)
		return
	}
	switch {
	case cost > m.size:
		m.view(debt).decide(d, now, at, never, false)
		return
	case cost > 0:
		retry := ceilDiv(debt+cost*m.unit-m.full(), m.rate)
		if retry > 0 || at > now {
			m.view(debt).decide(d, now, at, retry, false)
			return
		}
		debt += cost * m.unit
		*s = weir.State{At: at, A: debt, B: m.unit}
	case cost < 0:
		debt = max(0, debt-min(givenBack(cost), m.size)*m.unit)
		*s = weir.State{At: at, A: debt, B: m.unit}
		if debt == 0 && at == now {
			*s = weir.State{}
		}
	}
	m.view(debt).decide(d, now, at, 0, true)
}

// queue lets a charge of cost > 0 join a queue at the instant now. The charge leaves the
// queue when its turn comes, but not before a second instant, the parameter at. queue
// returns the next state and the µs until the turn. If there is no room, ok is false,
// next is s, and wait is the µs until there is room, or never.
func (m meter) queue(s weir.State, now, at, cost int64) (next weir.State, wait int64, ok bool) {
	if cost > m.size {
		return s, never, false
	}
	last := max(now, s.At)
	debt, over := m.debt(&s, last)
	if last == s.At && s.A < 0 && s.B == m.unit {
		debt = s.A // below 0: the queue has been empty for a fraction of a microsecond
	}
	ahead := last - now
	// The debt also drains between now and last: each charge that leaves makes room.
	lack := debt + cost*m.unit - m.full()
	if lack > 0 {
		return s, ahead + ceilDiv(lack, m.rate), false
	}
	if hi, drained := bits.Mul64(uint64(ahead), uint64(m.rate)); hi > 0 || drained > uint64(-lack) {
		return s, ahead - (-lack)/m.rate, false
	}
	wait = ahead + ceilDiv(debt, m.rate)
	if over {
		return m.charged(&s, max(now+wait, at), cost), wait, true
	}
	next = weir.State{At: max(now+wait, at), A: cost * m.unit, B: m.unit}
	if next.At == now+wait {
		// The exact turn may lie between two microseconds. The charge then leaves at
		// the later one, which must not delay the charges behind it.
		next.A -= (next.At-last)*m.rate - debt
	}
	return next, wait, true
}

// cancel gives back n units that were to be spent at one instant, the parameter at. If no
// charge came after them, the debt falls by all n units. Otherwise some of these units may
// have drained by now, or by the last charge if that lies in the future. Then the debt falls
// only by the ticks that have not drained.
func (m meter) cancel(s weir.State, now, at, n int64) weir.State {
	if at > s.At || s.A <= 0 && at < now {
		return s
	}
	last := max(now, s.At)
	debt, over := m.debt(&s, last)
	if over {
		return m.cancelOver(s, now, at, n)
	}
	back := min(n, m.size) * m.unit
	hi, drained := bits.Mul64(uint64(last-at), uint64(m.rate))
	// alone says that no charge came later: a later charge would have added at least a
	// unit to the debt. A queue rounds departures to whole microseconds, so m.rate is
	// subtracted.
	alone := at == s.At && at >= now || hi == 0 && drained < weir.MaxTicks && debt+int64(drained) < back+m.unit-m.rate
	if !alone {
		if hi > 0 || drained >= uint64(back) {
			return s
		}
		back -= int64(drained)
	}
	debt -= back
	if debt < 0 {
		last = max(now, last-(-debt)/m.rate)
		debt = 0
	}
	if debt == 0 && last == now {
		return weir.State{}
	}
	return weir.State{At: last, A: debt, B: m.unit}
}

// validate returns an error if a debt could exceed MaxTicks.
func (m meter) validate(l *weir.Limit) error {
	if countable(max(m.size, m.rate), m.unit) {
		return nil
	}
	return &uncountable{*l}
}

func countable(a, b int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return hi == 0 && lo <= weir.MaxTicks
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
