package algorithms

import (
	"fmt"
	"math/bits"

	"github.com/seed83679106/weir"
)

// A meter is the arithmetic that GCRA, token bucket and leaky bucket share: a
// debt grows with what is spent and drains at a constant rate. It counts in
// ticks, so that nothing is ever rounded: a unit is worth the period's number
// of µs, and as many ticks as the quota drain in each µs.
//
// A state holds the debt (A) as it was at At, and the ticks of a unit (B), so
// that a debt in units outlives a change of the limit. A debt above the capacity
// of a limit is one that a larger limit of the same name has left: see overdue.go.
type meter struct {
	unit int64 // ticks a unit is worth
	rate int64 // ticks that drain in a µs
	size int64 // most units at once
}

func meterOf(l *weir.Limit) meter {
	m := meter{unit: int64(l.Period) / microsecond, rate: l.Quota, size: l.Burst}
	if m.size == 0 {
		m.size = l.Quota
	}
	if !countable(max(m.size, m.rate), m.unit) { // a million a day: 86,400 µs each
		g := gcd(m.unit, m.rate)
		m.unit /= g
		m.rate /= g
	}
	return m
}

// ticks returns what a unit is worth, what drains in a µs, and the most that may be
// owed.
func (m meter) ticks() (unit, rate, full int64) { return m.unit, m.rate, m.full() }

func (m meter) full() int64 { return m.size * m.unit }

// debt returns the ticks owed at the instant at ≥ s.At. over says that more was
// owed than the limit holds; debt is then what the limit sees of it.
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

// convert carries a debt over to a limit of another period, in whole units,
// rounded up. One that the limit can't hold is more than full.
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

// queue lets cost > 0 join at now and leave at or after the instant at. It
// returns the state with the charge in it and the µs until it leaves, or, where
// there is no room, s and the µs until there is.
func (m meter) queue(s weir.State, now, at, cost int64) (next weir.State, wait int64, ok bool) {
	if cost > m.size {
		return s, never, false
	}
	last := max(now, s.At)
	debt, over := m.debt(&s, last)
	if last == s.At && s.A < 0 && s.B == m.unit {
		debt = s.A // the queue is empty since a fraction of this microsecond
	}
	ahead := last - now
	// Until last the debt drains as it does after it: who leaves makes room.
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
		// Departures fall between microseconds. Who leaves at the next whole
		// one must not delay those behind.
		next.A -= (next.At-last)*m.rate - debt
	}
	return next, wait, true
}

// cancel gives back n units that were to be spent at the instant at. If they
// are the last in line the debt is less by all of them; if others come after
// them, only by what can't have drained until the last of those.
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
	// Someone after them would have left a debt of one unit more, at least, but
	// for what a queue's departures lose by falling on whole microseconds.
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

// validate refuses a limit whose numbers would not stay below MaxTicks.
func (m meter) validate(l *weir.Limit) error {
	if countable(max(m.size, m.rate), m.unit) {
		return nil
	}
	name, n := "quota", l.Quota
	if l.Burst > l.Quota {
		name, n = "burst", l.Burst
	}
	return fmt.Errorf("%s %d in a period of %v cannot be counted exactly: their product in µs exceeds 2^50 and they have no common divisor that helps", name, n, l.Period)
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
