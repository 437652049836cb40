// Package tally counts the decisions of limiters, for the packages that export metrics.
package tally

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/lease"
)

// A Label names what a count is about: a limit of a rule, enforced or in shadow. It
// never contains a key.
type Label struct {
	Rule, Limit string
	Shadow      bool
}

// Mode is "enforced" or "shadow".
func (l Label) Mode() string {
	if l.Shadow {
		return "shadow"
	}
	return "enforced"
}

// Counts are the counts of one label.
type Counts struct {
	Allowed, Delayed, Refused atomic.Int64 // decisions
	Units                     atomic.Int64 // units spent
}

// A Tally counts events. The zero Tally is ready to use.
type Tally struct {
	Errors atomic.Int64 // requests that could not be decided

	mu             sync.RWMutex
	counts         map[Label]*Counts
	banned, denied rules
}

// rules has the number of requests that each rule refused.
type rules map[string]*atomic.Int64

// Most is the largest number of labels, because LimitsFor may return any number of
// different limits. Limits beyond it are counted together, as the limit Other.
const (
	Most  = 1000
	Other = "other"
)

// Observe counts e. It returns how long the request waits, or 0 if it does not.
func (t *Tally) Observe(e weir.Event) (wait time.Duration) {
	switch e.Refusal.Reason {
	case weir.ReasonError:
		t.Errors.Add(1)
		return 0
	case weir.ReasonDeny:
		t.count(&t.denied, e.Refusal.Rule)
	case weir.ReasonBan:
		t.count(&t.banned, e.Refusal.Rule)
	}
	tx := e.Transaction
	paused := e.Refusal.Reason == weir.ReasonPause // a pause refuses even if the limits have room
	spent := !paused                               // a request that a ban refuses may have spent units
	for i := range tx.Decisions {
		spent = spent && tx.Decisions[i].Allowed
	}
	for i := range tx.Charges {
		c := &tx.Charges[i]
		if c.Cost == 0 { // it spends nothing
			continue
		}
		n := t.of(Label{c.Rule, c.Limit.StoredName(), e.Shadow})
		switch {
		case !tx.Decisions[i].Allowed, paused && c.Rule == e.Refusal.Rule:
			n.Refused.Add(1)
		case !spent: // this limit had room, another did not
		default:
			n.Units.Add(c.Cost)
			if tx.Wait > 0 {
				n.Delayed.Add(1)
			} else {
				n.Allowed.Add(1)
			}
		}
	}
	if e.Refusal.Reason == 0 && !e.Shadow {
		return tx.Wait
	}
	return 0
}

// of returns the counts of a label.
func (t *Tally) of(l Label) *Counts {
	t.mu.RLock()
	n := t.counts[l]
	t.mu.RUnlock()
	if n != nil {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n = t.counts[l]; n != nil {
		return n
	}
	if len(t.counts) >= Most {
		l = Label{Limit: Other, Shadow: l.Shadow}
		if n = t.counts[l]; n != nil {
			return n
		}
	}
	if t.counts == nil {
		t.counts = map[Label]*Counts{}
	}
	l.Rule, l.Limit = strings.Clone(l.Rule), strings.Clone(l.Limit)
	n = new(Counts)
	t.counts[l] = n
	return n
}

// count adds a request to those that a rule refused.
func (t *Tally) count(of *rules, rule string) {
	t.mu.RLock()
	n := (*of)[rule]
	t.mu.RUnlock()
	if n == nil {
		t.mu.Lock()
		if n = (*of)[rule]; n == nil {
			if *of == nil {
				*of = rules{}
			}
			n = new(atomic.Int64)
			(*of)[rule] = n
		}
		t.mu.Unlock()
	}
	n.Add(1)
}

// Each calls f for each label, and banned and denied for each rule, with the number of
// requests that its bans or its Deny refused.
func (t *Tally) Each(f func(Label, *Counts), banned, denied func(rule string, n int64)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for l, n := range t.counts {
		f(l, n)
	}
	for rule, n := range t.banned {
		banned(rule, n.Load())
	}
	for rule, n := range t.denied {
		denied(rule, n.Load())
	}
}

// Stores are decorators that count for themselves: Hybrid, lease.Store, and Breaker.
// Other stores among them are ignored.
type Stores []weir.Store

// Served is how many decisions the stores of one kind have made.
type Served struct {
	Kind         string // "hybrid" or "lease"
	Hits, Misses int64  // from memory, and by the store behind
}

// Served returns how many decisions the stores have made, added up by kind.
func (s Stores) Served() (sums []Served) {
	add := func(kind string, hits, misses uint64) {
		i := slices.IndexFunc(sums, func(s Served) bool { return s.Kind == kind })
		if i < 0 {
			i, sums = len(sums), append(sums, Served{Kind: kind})
		}
		sums[i].Hits += int64(hits)
		sums[i].Misses += int64(misses)
	}
	for _, store := range s {
		switch store := store.(type) {
		case interface{ Stats() (hits, misses uint64) }:
			hits, misses := store.Stats()
			add("hybrid", hits, misses)
		case interface{ Stats() lease.Stats }:
			st := store.Stats()
			add("lease", st.Hits, st.Misses)
		}
	}
	return sums
}

// Breakers returns how many of the breakers are open, and how many transactions they have
// refused while open. ok is false if there is no breaker.
func (s Stores) Breakers() (open, refused int64, ok bool) {
	for _, store := range s {
		b, is := store.(interface {
			Open() bool
			Refused() int64
		})
		if !is {
			continue
		}
		ok = true
		if b.Open() {
			open++
		}
		refused += b.Refused()
	}
	return open, refused, ok
}
