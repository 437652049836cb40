// Package tally counts the decisions of limiters, for the packages that export metrics.
package tally

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

// A Label names what a count is about: a limit of a rule, enforced or in shadow. It
// never contains a key.
type Label struct {
	Rule, Limit string
	Shadow      bool
}

// Mode returns "enforced" or "shadow".
func (l Label) Mode() string { return mode(l.Shadow) }

func mode(shadow bool) string {
	if shadow {
		return "shadow"
	}
	return "enforced"
}

// Counts are the counts of one label. They fill a cache line.
type Counts struct {
	Allowed, Delayed, Refused atomic.Int64 // decisions
	Near                      atomic.Int64 // decisions that left less than a fifth of the limit
	requests                  atomic.Int64 // requests whose first charge was of this limit
	more                      atomic.Int64 // units spent, less one for each decision that spent
	_                         [2]int64
}

// Units returns how many units were spent.
func (c *Counts) Units() int64 { return c.Allowed.Load() + c.Delayed.Load() + c.more.Load() }

// A Tally counts events. The zero Tally is ready to use.
type Tally struct {
	Unlimited atomic.Int64 // requests that went on and owed nothing: no rule applied, or the cost was 0

	undecided [len(causes)][len(outcomes)]atomic.Int64 // requests

	limits    table[Counts]
	refused   table[atomic.Int64] // requests by rule and reason
	bans      table[atomic.Int64] // by rule
	uncharged atomic.Int64        // requests whose charges all cost 0, or that have none
}

// Most is the largest number of labels, because LimitsFor may return any number of
// different limits. Further limits are counted together, as the limit Other.
const (
	Most  = 1000
	Other = "other"
)

// Observe counts e. It returns how long the request waits, or 0 if it does not.
func (t *Tally) Observe(e *weir.Event) (wait time.Duration) {
	f := &e.Refusal
	switch f.Reason {
	case 0:
	case weir.ReasonError:
		t.observeError(e)
		return 0
	default:
		t.refused.of(key{f.Rule, f.Reason.String(), 0, e.Shadow}).Add(1)
		if e.BanBegan {
			t.bans.of(key{rule: f.Rule}).Add(1)
		}
	}
	first := t.observeCharges(e)
	switch {
	case e.Shadow:
	case first != nil:
		first.requests.Add(1)
	default:
		t.uncharged.Add(1)
		if f.Reason == 0 {
			t.Unlimited.Add(1)
		}
	}
	if f.Reason != 0 || e.Shadow {
		return 0
	}
	return e.Transaction.Wait
}

// observeCharges counts the charges of e, and returns the counts of the first.
func (t *Tally) observeCharges(e *weir.Event) (first *Counts) {
	tx := e.Transaction
	paused := e.Refusal.Reason == weir.ReasonPause // a pause refuses even if the limits have room
	spent := !paused                               // true after a ban too: a request that a ban refuses may have spent units
	for i := range tx.Decisions {
		spent = spent && tx.Decisions[i].Allowed
	}
	for i := range tx.Charges {
		c, d := &tx.Charges[i], &tx.Decisions[i]
		if c.Cost == 0 { // the charge spends nothing
			continue
		}
		n := t.limits.of(key{c.Rule, c.Limit.Name, c.Limit.Period, e.Shadow})
		if first == nil {
			first = n
		}
		switch {
		case !d.Allowed, paused && c.Rule == e.Refusal.Rule:
			n.Refused.Add(1)
		case spent: // if not, this limit had room, and another refused
			n.spend(c, d, tx.Wait > 0)
		}
	}
	return first
}

// spend counts a charge that has spent its units.
func (c *Counts) spend(charge *quota.Charge, d *quota.Decision, delayed bool) {
	if delayed {
		c.Delayed.Add(1)
	} else {
		c.Allowed.Add(1)
	}
	if charge.Cost != 1 {
		c.more.Add(charge.Cost - 1)
	}
	if full := cmp.Or(charge.Limit.Burst, charge.Limit.Quota); uint64(d.Remaining) <= uint64(full-1)/5 { // -1 is unknown
		c.Near.Add(1)
	}
}

// Requests returns how many requests were decided or could not be decided.
func (t *Tally) Requests() int64 {
	sum := t.uncharged.Load()
	t.EachError(func(_, outcome string, n int64) {
		if outcome != outcomes[inShadow] { // the rules that are not in shadow have decided
			sum += n
		}
	})
	t.limits.each(func(_ key, n *Counts) { sum += n.requests.Load() })
	return sum
}

// EachLimit calls f for each label.
func (t *Tally) EachLimit(f func(Label, *Counts)) {
	t.limits.each(func(k key, n *Counts) {
		name := k.name
		if name == "" && k.rule != "" {
			name = (&weir.Limit{Period: k.period}).StoredName()
		}
		f(Label{k.rule, name, k.shadow}, n)
	})
}

// EachRefused calls f for each rule and reason with the number of requests that the rule
// refused, or would have refused.
func (t *Tally) EachRefused(f func(rule, reason, mode string, n int64)) {
	t.refused.each(func(k key, n *atomic.Int64) { f(k.rule, k.name, mode(k.shadow), n.Load()) })
}

// EachBans calls f for each rule with the number of bans that its penalty began.
func (t *Tally) EachBans(f func(rule string, n int64)) {
	t.bans.each(func(k key, n *atomic.Int64) { f(k.rule, n.Load()) })
}
