package algorithms

import (
	"math/bits"

	"github.com/seed83679106/weir/quota"
)

// A meter is the arithmetic that GCRA, token bucket and leaky bucket share: a debt grows
// with each charge and drains at a constant rate. The debt is counted in ticks, so that a
// debt that drains need not be rounded. A unit is as many ticks as the period has µs, and
// in each µs as many ticks drain as the quota has units. If these two numbers are too
// large, meterOf divides both by their greatest common divisor.
//
// A state holds the debt at the instant At (A), and how many ticks a unit is worth (B). A
// limit with other numbers needs B to convert the debt. The debt exceeds the capacity of the
// limit if units were forced (C, see force.go), or if it was written under a larger limit
// (see overdue.go).
type meter struct {
	unit int64 // ticks that a unit is worth
	rate int64 // ticks that drain in a µs
	size int64 // the most units that may be spent at once
}

func meterOf(l *quota.Limit) meter {
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

// full returns the most ticks that may be owed. A unit is free in the whole µs in which it
// becomes free, so a charge may exceed size units by less than what drains in a µs, and by
// less than a unit. The excess stays in the state and delays the units that follow. A meter
// with room for a single unit therefore keeps its rate exactly.
func (m meter) full() int64 { return m.size*m.unit + min(m.unit, m.rate) - 1 }

// mostOwed is the largest debt in ticks. Sums of mostOwed and a few capacities stay below
// 2^53, so the scripts of package redisstore are exact.
const mostOwed = 4 * quota.MaxTicks

// maxReset is the most µs for which a state is kept, however slowly its debt drains.
const maxReset = quota.MaxTicks

// drained returns how many ticks drain in so many µs, or 2·mostOwed if they are more.
func (m meter) drained(micros int64) int64 {
	if hi, ticks := bits.Mul64(uint64(micros), uint64(m.rate)); hi == 0 && ticks < 2*mostOwed {
		return int64(ticks)
	}
	return 2 * mostOwed
}

// debt returns how many ticks are owed at an instant that is not before s.At. If more was
// owed at s.At than the limit counts, over is true, and debt is the part that this limit
// counts.
func (m meter) debt(s *quota.State, at int64) (debt int64, over bool) {
	debt = s.A
	if debt <= 0 {
		return 0, false
	}
	most := m.full()
	if s.B != m.unit || s.C != 0 {
		debt = m.convert(debt, s.B)
		most += m.convert(s.C, s.B)
	}
	if debt > most {
		debt, over = most, true
	}
	return max(0, debt-m.drained(at-s.At)), over
}

// convert returns a debt in ticks of this limit, at most mostOwed. The parameter unit is how
// many ticks a unit was worth under the limit that wrote the debt. If that was another number,
// convert rounds the debt up to whole units.
func (m meter) convert(debt, unit int64) int64 {
	switch {
	case debt < 0, unit < 1: // only a broken store returns such a state
		return m.full()
	case unit == m.unit:
		return min(debt, mostOwed)
	}
	if hi, ticks := bits.Mul64(uint64(ceilDiv(debt, unit)), uint64(m.unit)); hi == 0 && ticks < mostOwed {
		return int64(ticks)
	}
	return mostOwed
}

// owing returns the state that follows s: debt ticks are owed at the instant at. The parameter
// back is how many ticks were given back. They reduce what was forced, because they are the
// newest.
func (m meter) owing(s *quota.State, at, debt, back int64) quota.State {
	next := quota.State{At: at, A: debt, B: m.unit}
	if s.C != 0 {
		next.C = min(debt, m.forced(s, max(at, s.At), back))
	}
	return next
}

func (m meter) view(debt int64) view {
	if debt == 0 {
		return view{remaining: m.size}
	}
	free := m.full() - debt
	v := view{remaining: max(0, free) / m.unit, reset: min(maxReset, ceilDiv(debt, m.rate))}
	if v.remaining < m.size {
		v.next = ceilDiv(m.unit-(free-v.remaining*m.unit), m.rate)
	}
	return v
}

func (m meter) step(s *quota.State, d *quota.Decision, now, cost int64) {
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
		*s = m.owing(s, at, debt, 0)
	case cost < 0:
		back := m.convert(givenBack(cost), 1)
		debt = max(0, debt-back)
		*s = m.owing(s, at, debt, back)
		if debt == 0 && at == now {
			*s = quota.State{}
		}
	}
	m.view(debt).decide(d, now, at, 0, true)
}

// queue lets a charge of cost > 0 join a queue at the instant now. The charge leaves the
// queue when its turn comes, but not before a second instant, the parameter at. queue
// returns the next state and the µs until the turn. If there is no room, ok is false,
// next is s, and wait is the µs until there is room, or never.
func (m meter) queue(s quota.State, now, at, cost int64) (next quota.State, wait int64, ok bool) {
	if cost > m.size {
		return s, never, false
	}
	last := max(now, s.At)
	debt, over := m.debt(&s, last)
	ahead := last - now
	// The debt also drains between now and last: each charge that leaves makes room.
	lack := debt + cost*m.unit - m.full()
	if lack > 0 {
		return s, ahead + ceilDiv(lack, m.rate), false
	}
	if m.drained(ahead) > -lack {
		return s, ahead - (-lack)/m.rate, false
	}
	// The exact turn may lie between two microseconds. The charge leaves at the earlier one,
	// and the rest of the debt delays the charges behind it.
	wait = ahead + debt/m.rate
	turn := max(now+wait, at)
	if over {
		return m.charged(&s, turn, cost), wait, true
	}
	debt = max(0, debt-m.drained(turn-last)) + cost*m.unit
	return m.owing(&s, turn, debt, 0), wait, true
}

// cancel gives back n units that were to be spent at one instant, the parameter at. If no
// charge came after them, the debt falls by all n units. Otherwise some of these units may
// have drained before the last charge, and then the debt falls only by the other ticks.
func (m meter) cancel(s quota.State, now, at, n int64) quota.State {
	if at > s.At || s.A <= 0 && at < now {
		return s
	}
	drained := m.drained(s.At - at)
	debt, over := m.debt(&s, s.At)
	if over {
		return m.cancelOver(s, now, at, n, drained)
	}
	back := m.convert(n, 1)
	// alone says that no charge came later: a later charge would have added at least a
	// unit to the debt.
	alone := at == s.At && at >= now || debt+drained < back+m.unit
	if !alone {
		if back -= drained; back <= 0 {
			return s
		}
	}
	last := max(now, s.At)
	debt = max(0, debt-m.drained(last-s.At)) - back
	if debt < 0 {
		last = max(now, last-(-debt)/m.rate)
		debt = 0
	}
	if debt == 0 && last == now {
		return quota.State{}
	}
	return m.owing(&s, last, debt, back)
}

// validate returns an error if the capacity could exceed MaxTicks, or if more units drain in a
// µs than the limit has room for. The limit could not keep such a rate.
func (m meter) validate(l *quota.Limit) error {
	if m.counts() {
		return nil
	}
	return &uncountable{*l}
}

func (m meter) counts() bool {
	return countable(max(m.size, m.rate), m.unit) && m.rate <= m.size*m.unit
}

func countable(a, b int64) bool {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return hi == 0 && lo <= quota.MaxTicks
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
