package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/seed83679106/weir/quota"
)

// ReportUsage records that a request has used a number of units, such as LLM tokens. The usage from
// several calls is added up. The total for a rule's Unit ("requests" by default) is passed to the
// rule's Settle function in Outcome.Used. If some rules have a Settle function but none of them has
// the given unit, a warning is logged. If no rule has a Settle function, a warning is logged only
// if some rule has the given unit. If the request was already settled, nothing is charged and a
// warning is logged. A negative number counts as 0. ReportUsage is safe for concurrent use.
func ReportUsage(ctx context.Context, unit string, used int64) {
	var l *Limiter
	var unsettled *rule
	known, late := false, false
	for v := verdictOf(ctx); v != nil; v = v.outside() {
		if v.extra != nil && v.extra.l != nil {
			l = v.extra.l
			known = l.settlesUnit(unit) || known
			late = !v.extra.used.add(unit, max(0, used)) || late
		} else {
			unsettled = cmp.Or(v.unsettled(unit), unsettled)
		}
	}
	switch {
	case l == nil && unsettled != nil && !unsettled.unread.Swap(true):
		unsettled.miswired("usage reported to a rule without Settle", "the usage is not charged", "Settle: weir.ChargeUsed was forgotten")
	case l != nil && !known && !l.strayUnit.Swap(true):
		loggerOr(l.o.Logger).WarnContext(ctx, "weir: usage reported in a unit that no rule with Settle has", "unit", unit, "effect", nothingCharged)
	case late && !l.lateUnit.Swap(true):
		loggerOr(l.o.Logger).WarnContext(ctx, "weir: usage reported after its request was settled", "unit", unit, "effect", nothingCharged)
	}
}

// nothingCharged is the effect of usage that is logged. Only the first such usage is.
const nothingCharged = "nothing is charged for it; later usage of this kind is not logged"

// Draw takes up to n more units for a request that is being served, and returns how many of them
// the handler may use. A handler that streams a response calls Draw before it sends each part, and
// stops when Draw returns fewer units than the part needs. If Draw returns less than n, no further
// units are currently available. If Draw returns 0 because no units were available, err is a
// *quota.LimitedError whose RetryAfter is the wait until a unit becomes available.
//
// Draw applies to rules that have a Settle function and whose Unit is the given unit. It first uses
// the units reserved by Rule.Cost. Any further units are charged to all of these rules or to none
// of them, as with a quota.Stream. Outcome.Used includes the drawn units, so ChargeUsed charges
// them together with the units passed to ReportUsage. Units that Draw took in advance but did not
// hand out are refunded when the handler returns or panics, or when Done is called.
//
// Draw returns 0 and an error if the context is done, if the request was already settled, or if n
// is negative. If some rules have a Settle function, Draw also returns an error if none of those
// rules has the given unit. If no rule has a Settle function, Draw returns an error if the request
// was charged under a rule that has the unit. Otherwise, it returns n, because no rule limits the
// unit. If the store fails, OnError decides whether the handler may use the n units. If so, Settle
// charges them.
func Draw(ctx context.Context, unit string, n int64) (drawn int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, fmt.Errorf("weir: Draw: n is %d %s; want at least 0", n, unit)
	}
	settles, known, unsettled := false, false, (*rule)(nil)
	drawn = n
	innermost := verdictOf(ctx)
	for v := innermost; v != nil; v = v.outside() {
		if v.extra == nil || v.extra.l == nil {
			unsettled = cmp.Or(v.unsettled(unit), unsettled)
			continue
		}
		settles, known = true, known || v.extra.l.settlesUnit(unit)
		got, err := v.draw(ctx, unit, drawn)
		for in := innermost; got < drawn && in != v; in = in.outside() { // has drawn more than can be used
			in.undraw(unit, drawn-got)
		}
		if drawn = got; err != nil {
			return 0, err
		}
	}
	if !settles && unsettled != nil {
		return 0, fmt.Errorf("weir: Draw: rule %q has the unit %q, but no Settle, so it would not limit what is drawn", unsettled.Name, unit)
	}
	if settles && !known {
		return 0, fmt.Errorf("weir: Draw: no rule with Settle has the unit %q", unit)
	}
	return drawn, nil
}

// draw draws up to n units under the rules of one Limiter.
func (v *verdict) draw(ctx context.Context, unit string, n int64) (drawn int64, err error) {
	l, u := v.extra.l, &v.extra.used
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return 0, errors.New("weir: Draw came after its request was settled")
	}
	var charges []quota.Charge
	reserved := int64(math.MaxInt64)
	for i := range v.items {
		if it := &v.items[i]; it.rule.Settle != nil && it.rule.Unit == unit && !it.inFlight {
			c := v.Charges[i]
			c.Cost, reserved = 1, min(reserved, it.cost)
			charges = append(charges, c)
		}
	}
	w := u.unit(unit)
	w.reported = true
	if len(charges) == 0 { // nothing limits the unit
		w.used = sum(w.used, n)
		return n, nil
	}
	if drawn = min(n, max(0, min(reserved, math.MaxInt64-w.drawn)+w.drawn-w.used)); drawn < n {
		if w.stream == nil {
			w.stream = quota.NewStream(l.store, charges...)
		}
		var more int64
		more, err = w.stream.Draw(asking{ctx}, n-drawn)
		w.drawn, drawn = w.drawn+more, drawn+more
		if limited := new(quota.LimitedError); err != nil && !errors.As(err, &limited) {
			l.log.warn(ctx, "units not drawn", charges[0].Rule, err)
			if err = v.extra.onError(v.event.Request, err); err == nil {
				drawn = n
			}
		}
	}
	w.used = sum(w.used, drawn)
	if drawn > 0 {
		err = nil
	}
	return drawn, err
}

func (v *verdict) undraw(unit string, n int64) {
	if v.extra != nil && v.extra.l != nil {
		u := &v.extra.used
		u.mu.Lock()
		defer u.mu.Unlock()
		if !u.over {
			u.unit(unit).used -= n
		}
	}
}

// unsettled returns a rule that has charged the request and has the unit, but no Settle; nil if
// there is none.
func (v *verdict) unsettled(unit string) *rule {
	for i := range v.items {
		if r := v.items[i].rule; r.Unit == unit && r.Settle == nil {
			return r
		}
	}
	return nil
}

func (l *Limiter) settlesUnit(unit string) bool {
	for _, r := range l.rules {
		if r.Settle != nil && r.Unit == unit {
			return true
		}
	}
	return false
}

func (u *usedUnits) unit(name string) *unitUse {
	if u.of == nil {
		u.of = map[string]*unitUse{}
	}
	if u.of[name] == nil {
		u.of[name] = new(unitUse)
	}
	return u.of[name]
}

// add returns false if the request was settled.
func (u *usedUnits) add(unit string, n int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return false
	}
	w := u.unit(unit)
	w.used, w.reported = sum(w.used, n), true
	return true
}

// end gives back what was taken in advance. From then on nothing changes.
func (u *usedUnits) end(ctx context.Context, l *Limiter) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	for _, w := range u.of {
		if w.stream != nil {
			if err := w.stream.Close(ctx); err != nil {
				l.log.warn(ctx, "units not refunded", l.rules[0].Name, err)
			}
		}
	}
}

// sum returns a + b, both of at least 0, or math.MaxInt64 if that is less.
func sum(a, b int64) int64 { return min(a, math.MaxInt64-b) + b }
