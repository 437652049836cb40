package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// noCharges: a transaction without charges is allowed.
func noCharges(p *replay) {
	tx := quota.Transaction{Result: quota.Result{Decisions: make([]quota.Decision, 3), Wait: time.Hour}}
	p.take(&tx)
	p.checkResults(&tx, true)
	p.checkResults(p.takeAll(time.Hour), true)
}

// manyCharges: a transaction may have 40 charges, for one key or for many.
func manyCharges(p *replay) {
	var charges []quota.Charge
	all := limits(5, time.Hour)
	for i := range 40 {
		l := all[i%len(all)].Named(fmt.Sprint(i / len(all)))
		c := p.charge(fmt.Sprint(max(0, i-20)), l, int64(i/2%3)) // the costs under limits with the same algorithm differ
		charges = append(charges, c)
	}
	for range 4 {
		p.takeAll(0, charges...)
	}
	p.takeAll(24*time.Hour, charges...)
	slices.Reverse(charges)
	p.takeAll(0, charges...)
}

// decisions: Take reuses the memory of Decisions if there is enough, and otherwise
// allocates.
func decisions(p *replay) {
	p.takeOne("first", three, 1)
	mine := make([]quota.Decision, 5)
	for i := range mine {
		mine[i] = quota.Decision{FellBack: true, Remaining: 99, RetryAfter: time.Hour}
	}
	for _, n := range []int{3, 5, 1, 4} {
		tx := quota.Transaction{Result: quota.Result{Decisions: mine, Wait: time.Hour, At: time.Unix(1, 1)}}
		for i := range n {
			tx.Charges = append(tx.Charges, p.charge(fmt.Sprint(i), three, 1))
		}
		p.take(&tx)
		if &tx.Decisions[0] != &mine[0] {
			p.Errorf("%d charges, room for %d decisions: got a new slice, want it reused", n, len(mine))
		}
	}
	tx := quota.Transaction{Result: quota.Result{Decisions: mine[:1:1]}}
	for i := range 9 {
		tx.Charges = append(tx.Charges, p.charge(fmt.Sprint(i), three, 1))
		p.take(&tx)
	}
}

// manyLimits: a key may have hundreds of limits, with one algorithm or with several.
func manyLimits(p *replay) {
	kinds := []func(n int64, period time.Duration) quota.Limit{algorithms.GCRA, algorithms.SlidingLog, algorithms.AnchoredWindow}
	for _, n := range []int{1, 30, 31, 32, 33, 100, 250} {
		for k := range len(kinds) + 1 {
			var charges []quota.Charge
			for i := range n {
				// If k is len(kinds), the limits are of each kind in turn; otherwise all are of
				// kind k.
				kind := kinds[(k+i*(k/len(kinds)))%len(kinds)]
				limit := kind(int64(3+i%7), time.Hour+time.Duration(i)*time.Second)
				charges = append(charges, p.charge(fmt.Sprint(n, k), limit, 1))
			}
			for range 3 {
				p.takeAll(0, charges...)
			}
			if got := p.takeAll(0, charges...); got.Allowed() {
				p.Errorf("%d limits of kind %d: got a fourth unit admitted by a quota of 3", n, k)
			}
			p.takeAll(time.Minute, charges...)
		}
	}
}

// duplicate: charging the same limit of the same key twice is an error and spends nothing.
func duplicate(p *replay) {
	a, b := p.charge("a", three, 1), p.charge("b", three, 1)
	again := a
	again.Cost, again.Limit.Quota = 0, 7 // charges with different costs and quotas can still be duplicates
	nameless, named := again, again
	nameless.Limit.Name = ""
	named.Limit.Name = nameless.Limit.Label()
	for _, charges := range [][]quota.Charge{{a, a}, {b, a, again}, {a, b, b}, {nameless, named}, {named, a, nameless}} {
		if err := p.takeError(p.Context(), &quota.Transaction{Charges: charges}); !errors.Is(err, quota.ErrDuplicate) {
			p.Errorf("got error %q, want %q", err, quota.ErrDuplicate)
		}
	}
	p.checkResults(p.takeAll(0, p.charge("a", three, 0), p.charge("b", three, 0)), true, 3, 3)
	// Charges with different rules, limit names or algorithms are not duplicates.
	other, algorithm := a, a
	named = a
	other.Rule = "other"
	named.Limit.Name = "other"
	algorithm.Limit = algorithms.SlidingLog(3, time.Hour).Named(three.Name)
	other.Cost, named.Cost, algorithm.Cost = 2, 3, 0
	p.checkResults(p.takeAll(0, a, other, named, algorithm), true, 2, 1, 0, 3)
	a.Cost, other.Cost, named.Cost = 0, 0, 0
	p.checkResults(p.takeAll(0, algorithm, named, other, a), true, 3, 0, 1, 2)
}

// invalid: a limit that cannot be counted, or a Mode that is unknown or conflicts with the other
// fields, is an error, not a panic, and nothing is spent.
func invalid(p *replay) {
	bad := []quota.Limit{
		{},
		{Quota: 1, Period: time.Second},
		algorithms.GCRA(0, time.Second),
		algorithms.GCRA(-1, time.Second),
		algorithms.GCRA(1, 0),
		algorithms.GCRA(1, -time.Second),
		algorithms.GCRA(1, time.Nanosecond),
		algorithms.GCRA(1, 1500*time.Nanosecond),
		algorithms.GCRA(1, time.Second).WithBurst(-1),
		algorithms.GCRA(quota.MaxTicks+1, time.Microsecond),
		algorithms.SlidingLog(quota.MaxTicks+1, time.Second),
		algorithms.Calendar(1, 0, nil),
	}
	good := p.charge("good", three, 1)
	for _, l := range bad {
		p.takeError(p.Context(), &quota.Transaction{Charges: []quota.Charge{p.charge("bad", l, 1)}})
		p.takeError(p.Context(), &quota.Transaction{Charges: []quota.Charge{good, p.charge("bad", l, 0)}})
	}
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
			bad.Charges = []quota.Charge{good}
		}
		p.takeError(p.Context(), &bad)
	}
	p.checkResults(p.takeOne("good", three, 0), true, 3)
}

// canceled: if the context is already done, Take returns the context's error and spends nothing.
func canceled(p *replay) {
	gone, cancel := context.WithCancel(p.Context())
	cancel()
	late, cancel := context.WithDeadline(p.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{gone, late} {
		for _, charges := range [][]quota.Charge{
			{p.charge("a", three, 1)}, {p.charge("a", three, 1), p.charge("b", three, 1)},
		} {
			if err := p.takeError(ctx, &quota.Transaction{Charges: charges}); !errors.Is(err, ctx.Err()) {
				p.Errorf("got error %q, want %q", err, ctx.Err())
			}
		}
	}
	p.checkResults(p.takeOne("a", three, 0), true, 3)
	p.checkResults(p.takeOne("b", three, 0), true, 3)
}
