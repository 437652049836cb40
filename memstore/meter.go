package memstore

import (
	"math/bits"
	"slices"
	"time"

	"github.com/seed83679106/weir/quota"
)

// Most transactions have only charges of meters, such as GCRA, and do not wait. For such
// transactions, this file makes the same decisions as the algorithms, but faster, because it needs
// no quota.State. It relies on the meaning of A and B in the states of an optional.Metered.
// TestMetersAlike compares both implementations.

// A meter holds the numbers of a limit. A unit has as many parts as the period has µs. In each µs,
// as many parts drain as the quota has units. The size is the maximum number of units that can be
// spent at once, or 0 for limits that this file does not handle. A debt may exceed the size by less
// than a unit, and by fewer than quota parts: see package algorithms.
type meter struct{ period, quota, size int64 }

// atOnce reports whether t spends all its charges now or none of them.
func atOnce(t *quota.Transaction) bool { return t.Mode == quota.ModeSpend && t.Within <= 0 }

// decides reports whether m is a meter and the cost is between 0 and its capacity.
func (m *meter) decides(cost int64) bool { return 0 <= cost && cost <= m.size && m.size > 0 }

// readable reports whether the meter can use the state in a slot without conversion. It can if the
// slot is nil, or if the slot holds the whole state, with a debt that the meter can hold.
func (m *meter) readable(s *slot) bool {
	return s == nil || s.fate&hasLog == 0 && (s.a < m.size || s.a == m.size && s.b < m.quota)
}

// A debt represents the units of a meter that have been spent and have not drained, as seen from
// one instant.
type debt struct {
	units int64
	parts int64 // parts of one more unit
	ahead int64 // µs until the debt begins to drain; before that, no unit fits
	reset int64 // µs from the end of ahead until the debt has drained; 0 until it is computed, or if there is no debt
}

// debtOf returns the current debt in a slot, without its reset. The slot must be readable.
func (m *meter) debtOf(s *slot, now int64) (d debt) {
	if s == nil || s.reset() <= now {
		return d
	}
	d.ahead, d.units, d.parts = max(0, s.at-now), s.a, s.b
	hi, gone := bits.Mul64(uint64(now+d.ahead-s.at), uint64(m.quota))
	switch {
	case hi > 0:
		return debt{ahead: d.ahead}
	case gone < uint64(m.period): // this case, which needs no division, is the usual one for busy keys
		d.parts -= int64(gone)
	default:
		units := gone / uint64(m.period)
		d.units, d.parts = d.units-int64(min(units, 1<<53)), d.parts-int64(gone-units*uint64(m.period))
	}
	if d.parts < 0 {
		d.units, d.parts = d.units-1, d.parts+m.period
	}
	if d.units < 0 {
		d.units, d.parts = 0, 0
	}
	return d
}

// lacksUnits reports whether the meter has too few units left for a charge of the given cost.
func (m *meter) lacksUnits(d *debt, cost int64) bool {
	return d.units+cost > m.size || d.units+cost == m.size && d.parts >= m.quota
}

// allows reports whether a charge of the given cost is allowed.
func (m *meter) allows(d *debt, cost int64) bool {
	return cost == 0 || d.ahead == 0 && !m.lacksUnits(d, cost)
}

// wait returns the time in which a debt of the given units and parts drains, in µs, rounded up. The
// number of parts may be negative.
func (m *meter) wait(units, parts int64) int64 { return ceil(units*m.period+parts, m.quota) }

// spend adds a charge to the debt.
func (m *meter) spend(d *debt, cost int64) {
	d.units += cost
	d.reset = m.wait(d.units, d.parts)
}

// save writes a debt to the slot. The debt already includes the charge that was just made.
func (m *meter) save(s *slot, d *debt, id uint64, now int64) {
	rank := s.rankAfter(m.lacksUnits(d, 1), now)
	s.id, s.at, s.a, s.b = id, now, d.units, d.parts
	s.fate = (now+d.reset)<<fateBits | rank
}

// explain fills in the decision on a charge. If the charge was spent, the debt d includes the
// charge's units.
func (m *meter) explain(to *quota.Decision, d *debt, now, cost int64, allowed bool) {
	remaining, next := m.size-d.units, int64(0)
	if d.parts >= m.quota {
		remaining = max(0, remaining-1)
	}
	if remaining < m.size { // otherwise the debt drains within a µs
		next = m.wait(d.units+remaining+1-m.size, d.parts-min(m.period, m.quota)+1)
	}
	to.Allowed, to.FellBack, to.RetryAfter = allowed, false, 0
	if !allowed {
		retry := d.ahead
		switch {
		case !m.lacksUnits(d, cost):
		case cost == remaining+1:
			retry += next
		default:
			retry += m.wait(d.units+cost-m.size, d.parts-min(m.period, m.quota)+1)
		}
		to.RetryAfter = time.Duration(retry) * time.Microsecond
	}
	if d.ahead > 0 {
		if remaining > 0 {
			next = 0 // a unit becomes free as soon as the debt begins to drain
		}
		remaining = 0
	}
	if d.reset == 0 && d.units|d.parts > 0 {
		d.reset = m.wait(d.units, d.parts)
	}
	to.Remaining = remaining
	to.NextAfter = time.Duration(d.ahead+next) * time.Microsecond
	to.ResetAfter = time.Duration(d.ahead+d.reset) * time.Microsecond
	to.At = now
}

// ceil returns ⌈n/d⌉ for n > 0.
func ceil(n, d int64) int64 { return int64((uint64(n)-1)/uint64(d)) + 1 }

// takeMeter evaluates one charge. The caller has locked sh, and takeMeter unlocks it. If the caller
// had to wait for the lock, waited is true.
func (sh *shard) takeMeter(t *quota.Transaction, m *meter, sl *slot, id uint64, now, cost int64, waited bool) error {
	d := m.debtOf(sl, now)
	allowed := m.allows(&d, cost)
	switch {
	case !allowed:
		if sl != nil && sl.reset() > now {
			sl.raise(refusing)
			sh.promote(m, sl, now)
		}
	case cost > 0:
		if sl == nil {
			if sl = sh.add(id, now, nil); sl == nil {
				sh.mu.Unlock()
				return quota.ErrFull
			}
		}
		m.spend(&d, cost)
		m.save(sl, &d, id, now)
		if waited {
			sh.promote(m, sl, now)
		}
	}
	sh.mu.Unlock()

	prepare(t, now)
	m.explain(&t.Decisions[0], &d, now, cost, allowed)
	return nil
}

// takeMeters evaluates several charges of meters whose debts are in lanes. If all charges fit,
// allowed is true. The caller holds the locks of the shards of all lanes.
func takeMeters(t *quota.Transaction, lanes []lane, now int64, allowed bool) error {
	prepare(t, now)
	for i := range lanes {
		ln, c := &lanes[i], &t.Charges[i]
		fits := allowed || ln.allows(&ln.debt, c.Cost)
		if allowed && c.Cost > 0 {
			ln.spend(&ln.debt, c.Cost)
		}
		ln.explain(&t.Decisions[i], &ln.debt, now, c.Cost, fits)
		ln.slot.rankRefusal(&t.Decisions[i], now)
	}
	if !allowed {
		return nil
	}
	if !addAll(t, lanes, now) {
		return quota.ErrFull
	}
	for i := range lanes {
		if ln, c := &lanes[i], &t.Charges[i]; c.Cost > 0 {
			ln.save(ln.slot, &ln.debt, ln.id, now)
		}
	}
	return nil
}

// prepare fills in the Result of t, and allocates the decisions if necessary.
func prepare(t *quota.Transaction, now int64) {
	if n := len(t.Charges); len(t.Decisions) != n {
		t.Decisions = slices.Grow(t.Decisions[:0], n)[:n]
	}
	t.At, t.Wait, t.Granted, t.Undo, t.Replicas = time.UnixMicro(now), 0, 0, t.Undo[:0], 0
}
