package storetest

import (
	"math"
	"slices"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// Most tests use these limits. The period of an hour is longer than a test takes.
var (
	three = algorithms.GCRA(3, time.Hour).Named("three")
	one   = algorithms.AnchoredWindow(1, time.Hour).Named("one")
)

// clock: Transaction.At is the time of the store's clock, in whole microseconds. It never
// decreases, and advances as fast as the local clock or up to a tenth more slowly.
func clock(p *replay) {
	const naps, nap = 10, 1237 * time.Microsecond
	begin := time.Now()
	first := p.takeOne("", three, 0).At
	fine, last := false, first
	for range naps {
		time.Sleep(nap)
		at := p.takeOne("", three, 0).At
		if at.Before(last) {
			p.Errorf("At: got %v, want no less than the %v before", at, last)
		}
		fine = fine || at.UnixMicro()%1000 != 0
		last = at
	}
	// The clock of another machine may run a little faster or slower.
	if got, want := last.Sub(first), naps*nap; got < want-want/10 {
		p.Errorf("At: got an advance of %v during a sleep of %v", got, want)
	}
	if got, want := last.Sub(first), time.Since(begin); got > want+want/10 {
		p.Errorf("At: got an advance of %v within %v", got, want)
	}
	if !fine {
		p.Errorf("At: got whole milliseconds %d times, want microseconds", naps)
	}
}

// allOrNothing: a refused transaction spends nothing under any limit of any key.
func allOrNothing(p *replay) {
	p.takeOne("full", one, 1)
	five := algorithms.SlidingLog(5, time.Hour)
	fit := []quota.Charge{p.charge("a", three, 1), p.charge("b", three, 2), p.charge("a", five, 4)}
	looks := []quota.Charge{p.charge("a", three, 0), p.charge("b", three, 0), p.charge("a", five, 0)}
	for _, last := range []quota.Charge{p.charge("full", one, 1), p.charge("new", one, 2)} {
		charges := append(slices.Clone(fit), last)
		for range charges { // in each round, another charge is the one that does not fit
			charges = append(charges[1:], charges[0])
			p.checkResults(p.takeAll(0, charges...), false)
		}
		p.checkResults(p.takeAll(0, looks...), true, 3, 3, 5)
	}
	p.checkResults(p.takeAll(0, fit...), true, 2, 1, 1)
	p.checkResults(p.takeAll(0, looks...), true, 2, 1, 1)
}

// refused: a refused transaction has a decision for every charge. In the decision on a charge that
// would fit alone, Allowed is true. Each Remaining is the number of units that were left before the
// transaction.
func refused(p *replay) {
	p.takeOne("full", one, 1)
	p.takeOne("some", three, 1)
	tx := p.takeAll(0, p.charge("full", one, 1), p.charge("some", three, 1), p.charge("new", three, 3), p.charge("some", one, 2))
	p.checkResults(tx, false, 0, 2, 3, 1)
	for i, want := range []bool{false, true, true, false} {
		if got := tx.Decisions[i].Allowed; got != want {
			p.Errorf("charge %d: got Allowed %v, want %v, for %s", i, got, want, describe(tx))
		}
	}
	p.checkResults(p.takeAll(0, p.charge("some", three, 2), p.charge("new", three, 3), p.charge("some", one, 1)), true, 0, 0, 0)
}

// look: a charge of cost 0 spends nothing, and is allowed even if nothing remains.
func look(p *replay) {
	for _, l := range limits(2, time.Hour) {
		p.takeOne("", l, 0)
		p.takeOne("", l, 1)
		p.takeOne("", l, 0)
		for p.takeOne("", l, 1).Allowed() {
		}
		for _, within := range []time.Duration{0, time.Hour} {
			tx := p.takeAll(within, p.charge("", l, 0))
			if d := tx.Decisions[0]; !d.Allowed || d.Remaining != 0 || tx.Wait != 0 {
				p.Errorf("%v, used up: got %+v and Wait %v, want Allowed at once and 0 Remaining", l, d, tx.Wait)
			}
		}
	}
}

// peek: ModePeek reports for each charge whether and when it would fit, and spends nothing. A
// charge with a negative cost refunds nothing.
func peek(p *replay) {
	for _, l := range limits(5, time.Hour) {
		for i := range int64(4) {
			for _, cost := range []int64{-1, 0, 1, 3, 6} {
				charges := []quota.Charge{p.charge("", l, cost), p.charge("", one, cost)}
				p.take(&quota.Transaction{Charges: charges, Mode: quota.ModePeek})
			}
			p.takeOne("", l, 1+i%2)
			p.takeAll(0, p.charge("", l, 0), p.charge("", one, 0))
		}
	}
}

// atMost: in ModeAtMost, the charges are spent as many times as all of them fit, but at most Most
// times.
func atMost(p *replay) {
	take := func(most, granted int64, remaining []int64, charges ...quota.Charge) {
		p.Helper()
		tx := &quota.Transaction{Charges: charges, Mode: quota.ModeAtMost, Most: most}
		p.take(tx)
		p.checkResults(tx, granted > 0, remaining...)
		if tx.Granted != granted {
			p.Errorf("got Granted %d, want %d, for %s", tx.Granted, granted, describe(tx))
		}
	}
	for _, l := range limits(7, time.Hour) {
		size := l.Capacity()
		take(2, 2, []int64{size - 2}, p.charge("", l, 1))
		take(2, 2, []int64{size - 6}, p.charge("", l, 2))
		take(9, size-6, []int64{0}, p.charge("", l, 1))
		take(9, 0, []int64{0}, p.charge("", l, 1))
		take(math.MaxInt64, size/3, []int64{size % 3}, p.charge("costly", l, 3))
		take(math.MaxInt64, 0, []int64{size}, p.charge("never", l, math.MaxInt64))
	}
	two := algorithms.FixedWindow(2, 1000*time.Hour).Named("two")
	take(5, 2, []int64{1, 0}, p.charge("several", three, 1), p.charge("several", two, 1))
	take(5, 0, []int64{1, 0}, p.charge("several", three, 1), p.charge("several", two, 1))
	take(5, 1, []int64{0, 0}, p.charge("several", three, 1), p.charge("several", two, 0))
}

// headroom: a charge with a Headroom of n is spent only if at least n units are left afterwards.
// Other charges of the key may spend these units. A cached refusal of one class must not refuse a
// charge of another class.
func headroom(p *replay) {
	class := func(key string, l quota.Limit, cost, headroom int64) quota.Charge {
		c := p.charge(key, l, cost)
		c.Headroom = headroom
		return c
	}
	for _, l := range limits(7, time.Hour) {
		size := l.Capacity()
		p.checkResults(p.takeAll(0, class("", l, 1, 3)), true, size-4)
		p.checkResults(p.takeAll(0, class("", l, size-3, 3)), false, size-4)
		p.checkResults(p.takeAll(0, class("", l, size-4, 3)), true, 0)
		for range 10 { // the store may refuse some charges from memory
			p.checkResults(p.takeAll(0, class("", l, 1, 3)), false, 0)
		}
		p.checkResults(p.takeOne("", l, 1), true, 2)
		p.checkResults(p.takeAll(0, class("", l, 1, 2)), false, 0)
		p.checkResults(p.takeAll(0, class("", l, 1, 1)), true, 0)
		p.checkResults(p.takeOne("", l, 1), true, 0)
		p.checkResults(p.takeAll(0, class("", l, 0, 3)), true, 0)
		p.checkResults(p.takeAll(0, class("", l, -5, 3)), true, 2)
		p.take(&quota.Transaction{Charges: []quota.Charge{class("", l, 1, 5)}, Mode: quota.ModeForce})
		p.checkResults(p.takeOne("", l, 0), true, 4)

		never := p.takeAll(0, class("new", l, 1, size))
		p.checkResults(never, false, 0)
		if got := never.RetryAfter(); got != quota.Never {
			p.Errorf("got RetryAfter %v, want Never, for %s", got, describe(never))
		}
		most := &quota.Transaction{Charges: []quota.Charge{class("most", l, 1, 3)}, Mode: quota.ModeAtMost, Most: 99}
		if p.take(most); most.Granted != size-3 {
			p.Errorf("got Granted %d, want %d, for %s", most.Granted, size-3, describe(most))
		}
		one := algorithms.FixedWindow(1, 1000*time.Hour).Named("one " + l.Algorithm.Name())
		p.checkResults(p.takeAll(0, class("several", l, 1, 3), p.charge("several", one, 1)), true, size-4, 0)
		p.checkResults(p.takeAll(0, class("several", l, 1, 3), class("several", one, 1, 1)), false, size-4, 0)
	}
}

// badModes: Take returns an error and spends nothing if the Mode is unknown or conflicts with the
// other fields.
func badModes(p *replay) {
	for _, bad := range []quota.Transaction{
		{Mode: quota.ModeForget + 1},
		{Mode: 255},
		{Mode: quota.ModePeek, Within: time.Hour},
		{Mode: quota.ModeAtMost, Most: 1, Within: time.Hour},
		{Mode: quota.ModeForce, Within: time.Hour},
		{Mode: quota.ModeForget, Within: time.Hour},
		{Mode: quota.ModeAtMost},
		{Mode: quota.ModeAtMost, Most: -1},
		{Most: 1},
		{Mode: quota.ModePeek, Most: 1},
		{Mode: quota.ModeForce, Most: 1},
		{Mode: quota.ModeForget, Most: 1},
		{Mode: quota.ModeAtMost, Most: 1, Charges: []quota.Charge{p.charge("", three, 0)}},
		{Mode: quota.ModeAtMost, Most: 1, Charges: []quota.Charge{p.charge("", three, 1), p.charge("", one, -1)}},
		{Mode: quota.ModeForce, Charges: []quota.Charge{p.charge("", three, -1)}},
		{Charges: []quota.Charge{{Rule: "storetest", Limit: three, Cost: 1, Headroom: -1}}},
		{Charges: []quota.Charge{{Rule: "storetest", Limit: three, Cost: 1, Headroom: 1}}, Within: time.Microsecond},
	} {
		if bad.Charges == nil {
			bad.Charges = []quota.Charge{p.charge("", three, 1)}
		}
		p.takeError(p.Context(), &bad)
	}
	p.checkResults(p.takeOne("", three, 0), true, 3)
}

// force: ModeForce spends charges that do not fit, under every limit. The key is then refused
// until the units beyond the quota have drained.
func force(p *replay) {
	forced := func(charges ...quota.Charge) *quota.Transaction {
		p.Helper()
		tx := &quota.Transaction{Charges: charges, Mode: quota.ModeForce}
		p.take(tx)
		p.checkResults(tx, true)
		return tx
	}
	for _, l := range limits(5, time.Hour) {
		forced(p.charge("", l, 3))
		p.checkResults(forced(p.charge("", l, 4), p.charge("", one, 1)), true, max(0, l.Capacity()-7), 0)
		p.checkResults(p.takeOne("", l, 3), false)
		p.checkResults(forced(p.charge("", l, 100), p.charge("", one, 0)), true, 0, 0)
		forced(p.charge("", l, math.MaxInt64))
		forced(p.charge("", l, math.MaxInt64))
		p.checkResults(p.takeOne("", l, 1), false, 0)
		p.run += "."
	}
	// A debt drains at the rate of the current limit, and refunds reduce the debt.
	raised := algorithms.GCRA(300, time.Hour).Named("three")
	first := p.takeOne("debt", three, 2).Decisions[0].At
	forced(p.charge("debt", three, 50))
	p.checkResults(p.takeOne("debt", raised, 1), true)
	p.checkResults(p.takeOne("debt", three, 1), false, 0)
	back := p.charge("debt", three, -2)
	back.Spent = first
	p.take(&quota.Transaction{Charges: []quota.Charge{back}})
	p.takeOne("debt", three, -50)
	p.checkResults(p.takeOne("debt", three, 1), true)
	forced(p.charge("debt", three, 50))
	p.checkResults(p.takeOne("debt", three, -quota.MaxTicks), true, 3)
	// A forced charge does not change reserved slots.
	p.takeOne("slot", three, 3)
	p.takeAll(time.Hour, p.charge("slot", three, 1))
	forced(p.charge("slot", three, 2))
	p.takeAll(9*time.Hour, p.charge("slot", three, 1))
}

// refund: a negative cost refunds units, but never leaves more than the quota.
func refund(p *replay) {
	for _, l := range []quota.Limit{three, algorithms.SlidingLog(3, time.Hour), algorithms.AnchoredWindow(3, time.Hour)} {
		p.checkResults(p.takeOne("", l, -1), true, 3) // a new key stays full
		p.checkResults(p.takeOne("", l, 3), true, 0)
		p.checkResults(p.takeOne("", l, -2), true, 2)
		p.checkResults(p.takeOne("", l, 2), true, 0)
		p.checkResults(p.takeOne("", l, 1), false, 0)
		p.checkResults(p.takeOne("", l, -5), true, 3)
		p.checkResults(p.takeOne("", l, 3), true, 0)
	}
	// If another charge is refused, nothing is refunded.
	p.checkResults(p.takeAll(0, p.charge("", three, -1), p.charge("full", one, 2)), false, 0, 1)
	p.checkResults(p.takeOne("", three, 0), true, 0)
}

// spent: a charge with Spent refunds units that were spent at the given instant, and no others.
func spent(p *replay) {
	for _, l := range limits(6, time.Hour) {
		var at [2][2]int64 // by round and key: when the units were spent
		for i := range at {
			for j, key := range []string{"a", "b"} {
				at[i][j] = p.takeOne(key, l, 2).Decisions[0].At
				time.Sleep(1500 * time.Microsecond)
			}
		}
		for i := range at {
			back := quota.Transaction{Charges: []quota.Charge{p.charge("a", l, -1), p.charge("b", l, -1)}}
			for j := range back.Charges {
				back.Charges[j].Spent = at[i][j]
			}
			p.take(&back)
			p.takeAll(0, p.charge("a", l, 0), p.charge("b", l, 0))
		}
	}
	// Two limits of one key, each with a different instant.
	one, two := algorithms.SlidingLog(9, time.Hour).Named("one"), algorithms.SlidingLog(9, time.Hour).Named("two")
	first := p.takeAll(0, p.charge("", one, 1), p.charge("", two, 1)).Decisions[0].At
	time.Sleep(1500 * time.Microsecond)
	second := p.takeAll(0, p.charge("", one, 1), p.charge("", two, 1)).Decisions[0].At
	back := quota.Transaction{Charges: []quota.Charge{p.charge("", one, -1), p.charge("", two, -1)}}
	back.Charges[0].Spent, back.Charges[1].Spent = first, second
	p.take(&back)
	p.takeAll(0, p.charge("", one, 8), p.charge("", two, 9))
}

// forget: ModeForget drops the states of the charges, whatever they contain, and no other
// states.
func forget(p *replay) {
	all := limits(4, time.Hour)
	for i, l := range all {
		all[i] = l.Named(l.Algorithm.Name())
	}
	all = append(all, algorithms.SlidingLog(4, time.Hour).Named("second"), algorithms.GCRA(4, time.Hour).Named("second"))
	for i, l := range all {
		spend := func(key string) {
			for _, l := range all {
				p.takeOne(key, l, 3)
				p.takeAll(100*time.Hour, p.charge(key, l, 2)) // a reservation
			}
		}
		spend("a")
		spend("b")
		charges := []quota.Charge{p.charge("a", l, 1), p.charge("a", all[(i+3)%len(all)], 0)}
		forgotten := &quota.Transaction{Charges: charges, Mode: quota.ModeForget}
		p.take(forgotten)
		p.take(&quota.Transaction{Charges: []quota.Charge{p.charge("new", l, 0)}, Mode: quota.ModeForget})
		for j, other := range all {
			d := p.takeOne("a", other, 0).Decisions[0]
			if isNew := d.ResetAfter == 0; isNew != (j == i || j == (i+3)%len(all)) {
				p.Errorf("%v forgotten: got %+v of %v", l, d, other)
			}
			p.takeOne("b", other, 0)
			p.takeOne("a", other, 1)
		}
		p.run += "."
	}
	// One transaction may forget all limits of a key, and several keys.
	var charges []quota.Charge
	for i, l := range all {
		charges = append(charges, p.charge([]string{"a", "b"}[i%2], l, 2))
	}
	p.takeAll(0, charges...)
	p.take(&quota.Transaction{Charges: charges, Mode: quota.ModeForget})
	for _, d := range p.takeAll(0, charges...).Decisions {
		if !d.Allowed {
			p.Errorf("all forgotten: got %+v", d)
		}
	}
}
