// Package tally counts what limiters decide, for packages that tell others.
package tally

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/lease"
)

// A Label is a limit of a rule, in shadow or enforced. It never holds a key.
type Label struct {
	Rule, Limit string
	Shadow      bool
}

// Counts are those of a label.
type Counts struct {
	Allowed, Delayed, Refused atomic.Int64 // decisions
	Units                     atomic.Int64 // spent
}

// Tally counts events. The zero Tally is ready to use.
type Tally struct {
	Errors atomic.Int64

	mu             sync.RWMutex
	counts         map[Label]*Counts
	banned, denied rules
}

// rules counts requests by the rule that refused them.
type rules map[string]*atomic.Int64

// Most is how many labels there are at most. LimitsFor may make up limits; those
// beyond it count as Other.
const (
	Most  = 1000
	Other = "other"
)

// Observe is a weir.Options.Observe. It reports how long the request waits, if it
// was delayed.
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
	paused := e.Refusal.Reason == weir.ReasonPause // though its limits may have room
	spent := !paused                               // though the key may be banned, as the decision told
	for i := range tx.Decisions {
		spent = spent && tx.Decisions[i].Allowed
	}
	for i := range tx.Charges {
		c := &tx.Charges[i]
		if c.Cost == 0 { // a look
			continue
		}
		n := t.of(Label{c.Rule, c.Limit.Name, e.Shadow})
		switch {
		case !tx.Decisions[i].Allowed, paused && c.Rule == e.Refusal.Rule:
			n.Refused.Add(1)
		case !spent: // it would have fitted
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

// Each calls f with what was counted, banned with the requests that bans refused,
// and denied with those that lists refused.
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

// Stores are those of which decorators tell: what Hybrid and Lease served from
// memory, and whether a Breaker is open.
type Stores []weir.Store

// Serving is a store that answers some of what it is asked from memory.
type Serving struct {
	Kind          string // "hybrid" or "lease"
	Served, Asked uint64
}

// Serving returns those that are.
func (s Stores) Serving() (all []Serving) {
	for _, store := range s {
		switch store := store.(type) {
		case interface{ Stats() weir.HybridStats }:
			st := store.Stats()
			all = append(all, Serving{"hybrid", st.Hits, st.Misses})
		case interface{ Stats() lease.Stats }:
			st := store.Stats()
			all = append(all, Serving{"lease", st.Hits, st.Misses})
		}
	}
	return all
}

// Breaking is a breaker.
type Breaking interface {
	Open() bool
	Refused() int64
}

// Breaking returns those that are.
func (s Stores) Breaking() (all []Breaking) {
	for _, store := range s {
		if b, ok := store.(Breaking); ok {
			all = append(all, b)
		}
	}
	return all
}
