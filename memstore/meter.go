package memstore

import (
	"math/bits"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/plans"
	"github.com/seed83679106/weir/quota"
)

// Most transactions have only charges of meters, such as GCRA, and do not wait. This file
// decides such transactions as the algorithms do, but faster, because it needs no quota.State.
// It knows what A and B of a quota.Metered mean, and TestMetersAlike proves it right.

// atOnce reports whether t spends its charges now or not at all.
func atOnce(t *quota.Transaction) bool { return t.Mode == quota.ModeSpend && t.Within <= 0 }

// meters reports whether the limit of c is a meter and the cost of c is from 0 to the
// capacity of that meter.
func meters(p *plans.Plan, c *quota.Charge) bool {
	return 0 <= c.Cost && c.Cost <= p.Size && p.Size > 0
}

// readable reports whether the meter of p can use the state in a slot as it is. It can if the
// slot is nil. It also can if the slot has all of the state, and there is no debt or a debt in
// the meter's unit that is at most what the meter holds.
func readable(s *slot, p *plans.Plan) bool {
	return s == nil || s.fate&hasLog == 0 && (s.a <= 0 || s.b == p.Unit && s.a <= p.Full)
}

// A debt has the units of a meter that are spent and have not drained, as seen from one
// instant. A unit is Plan.Unit ticks.
type debt struct {
	ticks int64 // the amount of the debt
	ahead int64 // µs until the debt begins to drain; no unit fits before that
	reset int64 // µs from the end of ahead until the debt has drained; 0 until it is computed, or if ticks is 0
}

// debtOf returns the debt in a slot, as seen from now, but does not compute its reset. The slot
// must be readable.
func debtOf(s *slot, p *plans.Plan, now int64) (d debt) {
	if s == nil || s.reset() <= now {
		return d
	}
	d.ahead, d.ticks = max(0, s.at-now), max(0, s.a)
	if hi, drained := bits.Mul64(uint64(now+d.ahead-s.at), uint64(p.Rate)); hi == 0 && drained < uint64(d.ticks) {
		d.ticks -= int64(drained)
	} else {
		d.ticks = 0
	}
	return d
}

// lack returns how many ticks a charge adds beyond what the meter holds. If the result is 0
// or less, the meter has room for the charge.
func (d debt) lack(p *plans.Plan, cost int64) int64 { return d.ticks + cost*p.Unit - p.Full }

// fits reports whether a charge is allowed.
func (d debt) fits(p *plans.Plan, cost int64) bool {
	return cost == 0 || d.ahead == 0 && d.lack(p, cost) <= 0
}

// save writes a debt to the slot. The debt includes the charge that was made at the instant now.
func (s *slot) save(d debt, p *plans.Plan, id uint64, now int64) {
	rank := int64(someLeft)
	if p.Full-d.ticks < p.Unit {
		rank = noneLeft
	}
	if s.reset() > now {
		rank = max(rank, s.rank())
	}
	s.id, s.at, s.a, s.b = id, now, d.ticks, p.Unit
	s.fate = (now+d.reset)<<fateBits | rank
}

// explain fills in the decision on a charge. If the charge was spent, d includes its units.
func (d debt) explain(to *quota.Decision, p *plans.Plan, now, cost int64, allowed bool) {
	remaining, next := p.Size, int64(0)
	if d.ticks > 0 {
		free := p.Full - d.ticks
		if remaining = 0; free >= p.Unit {
			remaining = int64(uint64(free) / uint64(p.Unit))
			free -= remaining * p.Unit
		}
		if remaining < p.Size { // otherwise only a fraction of what drains in a µs is owed
			next = ceil(p.Unit-free, p.Rate)
		}
	}
	to.Allowed, to.RetryAfter = allowed, 0
	if !allowed {
		retry := d.ahead
		switch lack := d.lack(p, cost); {
		case lack <= 0:
		case cost == 1:
			retry += next
		default:
			retry += ceil(lack, p.Rate)
		}
		to.RetryAfter = time.Duration(retry) * time.Microsecond
	}
	if d.ahead > 0 {
		if remaining > 0 {
			next = 0 // a unit is free at once when the debt begins to drain
		}
		remaining = 0
	}
	if d.reset == 0 && d.ticks > 0 {
		d.reset = ceil(d.ticks, p.Rate)
	}
	to.Remaining = remaining
	to.NextAfter = time.Duration(d.ahead+next) * time.Microsecond
	to.ResetAfter = time.Duration(d.ahead+d.reset) * time.Microsecond
	to.At = now
}

// ceil returns ⌈n/d⌉ for n > 0.
func ceil(n, d int64) int64 { return int64((uint64(n)-1)/uint64(d)) + 1 }

// takeMeter decides one charge. The caller has locked sh, and takeMeter unlocks sh.
func (sh *shard) takeMeter(t *quota.Transaction, p *plans.Plan, sl *slot, id uint64, now, cost int64) error {
	d := debtOf(sl, p, now)
	allowed := d.fits(p, cost)
	switch {
	case !allowed:
		if sl != nil && sl.reset() > now {
			sl.raise(refusing)
			sh.countRefusal(sl)
		}
	case cost > 0:
		if sl == nil {
			if sl = sh.add(id, now, nil); sl == nil {
				sh.mu.Unlock()
				return quota.ErrFull
			}
		}
		d.ticks += cost * p.Unit
		d.reset = ceil(d.ticks, p.Rate)
		sh.unpublish(id)
		sl.save(d, p, id, now)
	}
	sh.mu.Unlock()

	prepare(t, now)
	d.explain(&t.Decisions[0], p, now, cost, allowed)
	return nil
}

// takeMeters decides several charges of meters whose debts are in lanes. allowed says
// whether all charges fit. The caller holds the locks of the shards of all lanes.
func (s *Store) takeMeters(t *quota.Transaction, lanes []lane, now int64, allowed bool) error {
	prepare(t, now)
	for i := range lanes {
		ln, cost := &lanes[i], t.Charges[i].Cost
		p := ln.plan
		fits := ln.fits(p, cost)
		switch {
		case allowed && cost > 0:
			ln.ticks += cost * p.Unit
			ln.reset = ceil(ln.ticks, p.Rate)
		case !fits && ln.slot != nil && ln.slot.reset() > now:
			ln.slot.raise(refusing)
		}
		ln.explain(&t.Decisions[i], p, now, cost, fits)
	}
	if !allowed {
		return nil
	}
	if !s.addAll(t, lanes, now) {
		return quota.ErrFull
	}
	for i := range lanes {
		if ln := &lanes[i]; t.Charges[i].Cost > 0 {
			s.shards[ln.shard].unpublish(ln.id)
			ln.slot.save(ln.debt, ln.plan, ln.id, now)
		}
	}
	return nil
}

// prepare fills in the Result of t, and makes room for the decisions.
func prepare(t *quota.Transaction, now int64) {
	if n := len(t.Charges); len(t.Decisions) != n {
		t.Decisions = slices.Grow(t.Decisions[:0], n)[:n]
	}
	t.At, t.Wait, t.Granted, t.Undo = time.UnixMicro(now), 0, 0, t.Undo[:0]
}
