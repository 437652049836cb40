// Package tally counts the decisions of limiters, for the packages that export metrics.
package tally

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
)

func mode(shadow bool) string {
	if shadow {
		return "shadow"
	}
	return "enforced"
}

// counts holds the counts of one limit of a rule, either enforced or in shadow mode. A counts value
// has the size of a cache line.
type counts struct {
	allowed, delayed, refused atomic.Int64 // decisions
	near                      atomic.Int64 // decisions that left less than a fifth of the limit
	units                     atomic.Int64 // spent
	_                         [3]int64
}

// A Tally counts events. The zero Tally is ready to use.
type Tally struct {
	stores []quota.Store

	requests  atomic.Int64
	unlimited atomic.Int64 // requests that were not charged: no rule applied, or the cost was 0

	undecided [len(causes)][len(outcomes)]atomic.Int64 // requests

	limits  family[counts]
	refused family[atomic.Int64] // requests by rule and reason
	bans    family[atomic.Int64] // by rule
}

// New returns a Tally that also provides the metrics of stores. If a store is a stack, with a
// method Stores, the stores within it are included. Each store is included once. A store has
// metrics if its Stats method returns a struct that Metrics reads.
func New(stores ...quota.Store) *Tally { return &Tally{stores: StoresOf(stores)} }

// Most is the maximum number of limits that are counted separately. This number is bounded because
// Rule.Policy may return any number of different limits. Further limits are counted together, as
// the limit Other.
const (
	Most  = 1000
	Other = "other"
)

// Observe counts the event e. Observe returns a duration for each histogram of Metrics, in the same
// order: the time for which the request waits, and the time that the store took. Histograms do not
// count durations of 0.
func (t *Tally) Observe(e *weir.Event) [2]time.Duration {
	if !e.Shadow {
		t.requests.Add(1)
	}
	f := &e.Refusal
	switch f.Reason {
	case 0:
	case weir.ReasonError:
		t.observeError(e)
		return [...]time.Duration{0, e.Took}
	default:
		t.refused.seriesOf(key{f.Rule, f.Reason.String(), 0, e.Shadow}).Add(1)
		if e.BanBegan {
			t.bans.seriesOf(key{rule: f.Rule}).Add(1)
		}
	}
	charged := t.observeCharges(e)
	if f.Reason != 0 || e.Shadow {
		return [...]time.Duration{0, e.Took}
	}
	if !charged {
		t.unlimited.Add(1)
	}
	return [...]time.Duration{e.Transaction.Wait, e.Took}
}

// observeCharges counts the charges of e, and reports whether there is one that spends units.
func (t *Tally) observeCharges(e *weir.Event) (charged bool) {
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
		n := t.limits.seriesOf(key{c.Rule, c.Limit.Name, c.Limit.Period, e.Shadow})
		charged = true
		switch {
		case !d.Allowed, paused && c.Rule == e.Refusal.Rule:
			n.refused.Add(1)
		case spent: // otherwise this limit had room, and another limit refused
			n.spend(c, d, &tx.Result)
		}
	}
	return charged
}

// spend counts a charge that has spent its units.
func (c *counts) spend(charge *quota.Charge, d *quota.Decision, of *quota.Result) {
	if of.Wait > 0 {
		c.delayed.Add(1)
	} else {
		c.allowed.Add(1)
	}
	c.units.Add(charge.Cost)
	if IsNear(&charge.Limit, d, of.Replicas) {
		c.near.Add(1)
	}
}

// IsNear reports whether a decision left less than a fifth of a limit, or of its share if it was
// divided among replicas.
func IsNear(l *quota.Limit, d *quota.Decision, replicas int) bool {
	full := max(1, cmp.Or(l.Burst, l.Quota)/max(1, int64(replicas)))
	return uint64(d.Remaining) <= uint64(full-1)/5 // -1 is unknown
}

// readLimits returns a Read that calls read for each limit. The Emit that is passed to read adds
// the values of "rule", "limit" and "mode".
func (t *Tally) readLimits(read func(n *counts, emit Emit)) Read {
	return func(emit Emit) {
		t.limits.each(func(k key, n *counts) {
			name := k.name
			if name == "" && k.rule != "" {
				name = (&quota.Limit{Period: k.period}).Label()
			}
			read(n, func(n int64, values ...string) { emit(n, append([]string{k.rule, name, mode(k.shadow)}, values...)...) })
		})
	}
}

func (t *Tally) readRefused(emit Emit) {
	t.refused.each(func(k key, n *atomic.Int64) { emit(n.Load(), k.rule, k.name, mode(k.shadow)) })
}

func (t *Tally) readBans(emit Emit) {
	t.bans.each(func(k key, n *atomic.Int64) { emit(n.Load(), k.rule) })
}

// Alerts watch two kinds of counters: the refusals by limits and, under a rule with a Penalty, the
// bans. Expect sets these counters of the rules to 0, so that alerts see the first increase.
func (t *Tally) Expect(rules []weir.Rule) {
	for i := range rules {
		r := &rules[i]
		reasons := []weir.Reason{weir.ReasonLimit}
		if r.Penalty != nil {
			t.bans.seriesOf(key{rule: r.Name})
			reasons = append(reasons, weir.ReasonBan)
		}
		for _, reason := range reasons {
			t.refused.seriesOf(key{r.Name, reason.String(), 0, r.Enforce == weir.Percent(0)})
		}
	}
}

// StoresOf returns the given stores, each once. A stack of stores has a method Stores; StoresOf
// replaces such a stack with the stores that the method returns.
func StoresOf(stores []quota.Store) (all []quota.Store) {
	for _, s := range stores {
		list := []quota.Store{s}
		if stack, ok := s.(interface{ Stores() []quota.Store }); ok {
			list = StoresOf(stack.Stores())
		}
		for _, s := range list {
			if !slices.ContainsFunc(all, func(other quota.Store) bool { return safe.Equal(other, s) }) {
				all = append(all, s)
			}
		}
	}
	return all
}

// causes lists the results of quota.Cause. The first element stands for any cause that is not
// listed.
var causes = [...]string{"error", "busy", "full", "limit", "open", "slow", "timeout", "unusable"}

// outcomes lists what can happen to a request for which no decision was possible.
var outcomes = [...]string{"refused", "passed", mode(true)}

const refused, passed, inShadow = 0, 1, 2

func (t *Tally) observeError(e *weir.Event) {
	outcome := refused
	switch {
	case e.Shadow:
		outcome = inShadow
	case e.Passed:
		outcome = passed
	}
	t.undecided[max(0, slices.Index(causes[:], quota.Cause(e.Err)))][outcome].Add(1)
}

// readErrors also emits zeros, so that an alert sees the first error as a change.
func (t *Tally) readErrors(emit Emit) {
	for i := range t.undecided {
		for j := range t.undecided[i] {
			emit(t.undecided[i][j].Load(), causes[i], outcomes[j])
		}
	}
}

// A key identifies a series of a family. It contains a rule and the name and period of a limit, or
// a rule and a reason, or only a rule.
type key struct {
	rule, name string
	period     time.Duration
	shadow     bool
}

// A family of metrics maps keys to series, which are never removed. A series that was used
// recently is usually found without a lock.
type family[V any] struct {
	slots [64]atomic.Pointer[series[V]]

	mu  sync.Mutex
	all map[key]*series[V]
}

type series[V any] struct {
	key
	value V
}

var seed = maphash.MakeSeed()

// seriesOf returns the series for a key, and adds the series if there is none. Once the family has
// Most series, new keys share the series named Other.
func (f *family[V]) seriesOf(k key) *V {
	slot := &f.slots[(maphash.String(seed, k.rule)+maphash.String(seed, k.name)+uint64(k.period)>>10)%uint64(len(f.slots))]
	if e := slot.Load(); e != nil && e.key == k {
		return &e.value
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.all[k]
	if e == nil {
		if len(f.all) >= Most {
			k = key{name: Other, shadow: k.shadow}
		}
		if e = f.all[k]; e == nil {
			k.rule, k.name = strings.Clone(k.rule), strings.Clone(k.name)
			e = &series[V]{key: k}
			if f.all == nil {
				f.all = map[key]*series[V]{}
			}
			f.all[k] = e
		}
	}
	slot.Store(e)
	return &e.value
}

// each calls do for each series.
func (f *family[V]) each(do func(key, *V)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, e := range f.all {
		do(k, &e.value)
	}
}
