package algorithms

import (
	"cmp"
	"math/bits"

	"github.com/seed83679106/weir/quota"
)

// A meter implements the arithmetic that GCRA, token bucket and leaky bucket share: a debt grows
// with each charge and drains at a constant rate. A debt consists of whole units and a remainder,
// the rest, which is counted in parts of a unit. If the period is p µs and the quota is q units, a
// unit has p parts, and q parts drain in each µs. A debt is therefore exact, and means the same
// under every limit with the same period, whatever the limit's quota and burst.
//
// In a state, A and B are the units and the rest of the debt at the instant At. C is above 0 if
// units were forced: see counted.
type meter struct {
	period int64 // in µs; also the number of parts in a unit
	quota  int64 // parts that drain in a µs
	size   int64 // maximum number of units that may be spent at once
}

func meterOf(l *quota.Limit) meter {
	return meter{int64(l.Period) / microsecond, l.Quota, cmp.Or(l.Burst, l.Quota)}
}

// A debt consists of whole units and a rest in parts of a unit. The rest is below the period.
type debt struct{ units, rest int64 }

func (d debt) above(other debt) bool {
	return d.units > other.units || d.units == other.units && d.rest > other.rest
}

// maxReset is the longest time, in µs, for which a state is kept, however slowly its debt drains.
// If a limit is valid, size units drain within MaxTicks µs. A debt may exceed the size only by what
// drains within one more µs: see full.
const maxReset = quota.MaxTicks + 1

// full returns the maximum debt after a charge. A unit that becomes free within a µs counts as free
// during the whole µs. The debt may therefore exceed size units, but by less than what drains in a
// µs, and by less than a unit. The excess stays in the state and delays later units. Even a meter
// with room for a single unit therefore keeps its exact rate.
func (m meter) full() debt { return debt{m.size, min(m.period, m.quota) - 1} }

// drained returns how much debt drains in the given number of µs: at most 2^53 units, which is more
// than any debt has.
func (m meter) drained(micros int64) debt {
	hi, lo := bits.Mul64(uint64(micros), uint64(m.quota))
	if hi >= uint64(m.period) {
		return debt{1 << 53, 0}
	}
	units, rest := bits.Div64(hi, lo, uint64(m.period))
	return debt{int64(min(units, 1<<53)), int64(rest)}
}

// minus returns d minus the debt other. If the result is negative, its units are negative, but its
// rest is not.
func (m meter) minus(d, other debt) debt {
	d.units, d.rest = d.units-other.units, d.rest-other.rest
	if d.rest < 0 {
		d.units, d.rest = d.units-1, d.rest+m.period
	}
	return d
}

// debtAfter returns what is left of d after the given number of µs.
func (m meter) debtAfter(d debt, micros int64) debt {
	if d = m.minus(d, m.drained(micros)); d.units < 0 {
		return debt{}
	}
	return d
}

// wait returns how many µs a debt of the given units and rest takes to drain, rounded up, but at
// most maxReset. The rest may be negative.
func (m meter) wait(units, rest int64) int64 {
	hi, lo := bits.Mul64(uint64(units), uint64(m.period))
	if hi == 0 && lo < 1<<62 {
		return min(maxReset, ceilDiv(int64(lo)+rest, m.quota))
	}
	if hi >= uint64(m.quota) {
		return maxReset
	}
	micros, left := bits.Div64(hi, lo, uint64(m.quota))
	if micros > maxReset+uint64(m.period) {
		return maxReset
	}
	rest += int64(left)
	if rest < 0 {
		return min(maxReset, int64(micros)-(-rest)/m.quota)
	}
	return min(maxReset, int64(micros)+ceilDiv(rest, m.quota))
}

// debtAt returns the debt of a state at the instant At.
func (m meter) debtAt(s *quota.State) debt {
	switch {
	case s.A < 0: // only a broken store returns such a state, or one as in the next case
		return debt{}
	case s.B < 0 || s.B >= m.period:
		return debt{m.size, 0}
	}
	return debt{s.A, s.B}
}

// counted returns the part of the debt that the limit counts at a given time, and the whole debt at
// that time. This time is never earlier than s.At. A debt is overdue if it exceeds what the limit
// can hold. A larger limit with the same name has then stored it: the limit of another tier, or the
// same limit before a change.
//
// The limit counts only as much of the debt as it can hold. This part drains as if the limit had
// just become full at the instant At. A charge adds its cost to what is left of the whole debt, and
// stores the sum. While a debt is overdue, the limit therefore has no room right after a charge.
// The limit admits units at its own rate, and what has drained since the last charge may be spent
// at once.
//
// Therefore no unit is forgotten, and the bound of the larger limit holds. For the proof, let a
// meter M have the largest burst and the largest rate of all limits that charge a key, and let M
// count every charge that these limits admit.
//
// First, the debt of M never exceeds the stored debt. Each charge adds its cost to the stored debt
// and to the debt of M, and no limit drains the stored debt faster than M drains its own.
//
// Second, the stored debt never exceeds the burst of M. A charge that adds to an overdue debt costs
// no more than what has drained since At, rounded up to a whole µs. Such a charge therefore makes
// the debt grow by less than a unit. Any other charge fits into the burst of its own limit, which
// is at most the burst of M. Only forced units can raise the debt further.
//
// The debt of M therefore never exceeds the burst of M, and M would admit each of these charges.
// All limits together therefore admit at most Burst + Quota − 1 units of M in any window of M's
// period.
//
// Forced units must count under a smaller limit too. A state therefore records the forced part: how
// much of the debt exceeded the size when units were forced. If C is zero, there is no forced part;
// otherwise it consists of C − 1 units and the rest B. The forced part drains first, and refunds
// reduce it first, so its rest is always equal to the rest of the debt. A limit counts at most its
// size plus the forced part.
func (m meter) counted(s *quota.State, at int64) (counts, whole debt) {
	whole = m.debtAt(s)
	counts = whole
	if most := m.size + max(0, s.C-1); whole.units >= most {
		counts.units = most
		if s.C <= 0 {
			counts.rest = min(whole.rest, m.full().rest)
		}
	}
	if at == s.At {
		return counts, whole
	}
	if counts == whole {
		whole = m.debtAfter(whole, at-s.At)
		return whole, whole
	}
	return m.debtAfter(counts, at-s.At), m.debtAfter(whole, at-s.At)
}

// forced returns the C of the state s after the debt has fallen by the given amount.
func (m meter) forced(s *quota.State, by debt) int64 {
	if s.C <= 0 {
		return 0
	}
	return max(0, m.minus(debt{s.C - 1, m.debtAt(s).rest}, by).units+1)
}

// view returns the view of a debt. Its remaining and next depend on the part that the limit counts,
// and its reset on the whole debt.
func (m meter) view(counts, whole debt) (v view) {
	if whole == (debt{}) {
		return view{remaining: m.size}
	}
	full := m.full()
	if counts.rest > full.rest {
		v.remaining = -1
	}
	v.remaining = max(0, v.remaining+m.size-counts.units)
	if v.remaining < m.size {
		v.next = m.wait(counts.units+v.remaining+1-m.size, counts.rest-full.rest)
	}
	v.reset = m.wait(whole.units, whole.rest)
	return v
}

func (m meter) step(s *quota.State, d *quota.Decision, now, cost int64) {
	at := max(now, s.At)
	counts, whole := m.counted(s, at)
	switch {
	case cost > m.size:
		m.view(counts, whole).decide(d, now, at, never, false)
		return
	case cost > 0:
		after, full := debt{counts.units + cost, counts.rest}, m.full()
		if after.above(full) || at > now {
			retry := int64(0)
			if after.above(full) {
				retry = m.wait(after.units-full.units, after.rest-full.rest)
			}
			m.view(counts, whole).decide(d, now, at, retry, false)
			return
		}
		over := counts != whole
		whole.units += cost
		*s = quota.State{At: at, A: whole.units, B: whole.rest, C: m.forced(s, m.drained(at-s.At))}
		counts = whole
		if over {
			counts, _ = m.counted(s, at)
		}
	case cost < 0:
		*s = m.refunded(*s, now, refundOf(cost))
		counts, whole = m.counted(s, at)
	}
	m.view(counts, whole).decide(d, now, at, 0, true)
}

// refunded returns the state after n units of the debt were refunded.
func (m meter) refunded(s quota.State, now, n int64) quota.State {
	d := m.debtAt(&s)
	switch d.units -= n; {
	case d.above(debt{}):
		return quota.State{At: s.At, A: d.units, B: d.rest, C: max(0, s.C-n)}
	case s.At <= now:
		return quota.State{}
	}
	return quota.State{At: s.At}
}

// queue adds a charge with cost > 0 to the queue. The charge leaves the queue at its slot, but
// never before a given time (at). The first two results are the next state and the µs until the
// slot. If there is no room, queue returns s, the µs until there is room (or never), and false.
func (m meter) queue(s quota.State, now, at, cost int64) (next quota.State, wait int64, ok bool) {
	if cost > m.size {
		return s, never, false
	}
	last := max(now, s.At)
	counts, _ := m.counted(&s, last)
	ahead, full := last-now, m.full()
	// The debt also drains between now and last, because each charge that leaves the queue makes
	// room.
	room := m.minus(full, debt{counts.units + cost, counts.rest})
	if room.units < 0 {
		return s, ahead + m.wait(counts.units+cost-full.units, counts.rest-full.rest), false
	}
	if m.drained(ahead).above(room) {
		return s, ahead - m.floor(room), false
	}
	// The exact slot may lie between two microseconds. The charge leaves at the earlier one, and
	// the rest of the debt delays later charges.
	wait = ahead + m.floor(counts)
	slot := max(now+wait, at)
	_, whole := m.counted(&s, slot)
	whole.units += cost
	return quota.State{At: slot, A: whole.units, B: whole.rest, C: m.forced(&s, m.drained(slot-s.At))}, wait, true
}

// floor is like wait, but rounds down.
func (m meter) floor(d debt) int64 { return m.wait(d.units, d.rest-m.quota+1) }

// cancel refunds n units that were reserved for a given time. If no charge came after them, the
// debt falls by n units. If a charge came later, some of the n units may have drained before it,
// and the debt falls only by the others. If the debt is also overdue, other limits may have drained
// the units faster than this limit does, and the debt falls at most by the forced part.
func (m meter) cancel(s quota.State, now, at, n int64) quota.State {
	if at > s.At || s.A <= 0 && s.B <= 0 && at < now {
		return s
	}
	drained := m.drained(s.At - at)
	counts, whole := m.counted(&s, s.At)
	if counts != whole {
		return m.cancelOverdue(s, now, at, n, drained)
	}
	back := debt{n, 0}
	// If a charge came later, it has added at least a unit to the debt.
	isLast := at == s.At && at >= now || m.minus(whole, m.minus(debt{n + 1, 0}, drained)).units < 0
	if !isLast {
		if back = m.minus(back, drained); back.units < 0 || back == (debt{}) {
			return s
		}
	}
	next, last := m.minus(whole, back), s.At
	if next.above(debt{}) {
		return quota.State{At: s.At, A: next.units, B: next.rest, C: m.forced(&s, back)}
	}
	if last -= m.floor(m.minus(debt{}, next)); last <= now {
		return quota.State{}
	}
	return quota.State{At: last}
}

// cancelOverdue is like cancel, but for an overdue debt. It is given the debt that drains between
// at and s.At.
func (m meter) cancelOverdue(s quota.State, now, at, n int64, drained debt) quota.State {
	if at < s.At {
		if drained.rest > 0 {
			drained.units++
		}
		n = min(n-drained.units, s.C-1)
	}
	if n <= 0 {
		return s
	}
	return m.refunded(s, now, n)
}

// force spends units even if they do not fit. It spends them at a given time, which is never
// earlier than s.At. The debt may then exceed the size. It drains at the rate of the limit, and
// until there is room again, nothing fits. Units that would raise the debt above maxDebt are not
// spent.
func (m meter) force(s quota.State, at, cost int64) quota.State {
	counts, whole := m.counted(&s, at)
	n := min(cost, m.maxDebt()-whole.units)
	if whole.rest > 0 {
		n = min(cost, m.maxDebt()-whole.units-1)
	}
	if n <= 0 {
		return s
	}
	next := quota.State{At: at, A: whole.units + n, B: whole.rest, C: m.forced(&s, m.drained(at-s.At))}
	over := debt{counts.units + n - m.size, counts.rest}
	if over.above(debt{0, m.full().rest}) {
		if over.rest > whole.rest { // round up, because the forced part has the same rest as the debt
			over.units++
		}
		next.C = max(next.C, over.units+1)
	}
	return next
}

// validate returns an error if a number of the limit exceeds 2^50, if its size would take longer
// than MaxTicks to drain, or if more than size units drain in a µs, because the limit could not
// sustain such a rate.
func (m meter) validate(l *quota.Limit) error {
	if err := validatePeriod(l); err != nil {
		return err
	}
	if m.counts() {
		return nil
	}
	return &uncountable{*l}
}

func (m meter) counts() bool {
	hi, parts := bits.Mul64(uint64(m.size), uint64(m.period))
	return m.quota <= quota.MaxTicks && m.size <= m.maxDebt() && (hi > 0 || uint64(m.quota) <= parts)
}

// maxDebt returns the largest debt, in units, that a state may hold: what drains in MaxTicks µs,
// but at most 2^50.
func (m meter) maxDebt() int64 { return min(m.drained(quota.MaxTicks).units, quota.MaxTicks) }
