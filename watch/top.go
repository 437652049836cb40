// Package watch has functions for weir.Options.Observe that show operators what limiters do.
// Top finds the keys that are refused most. Bans lists the keys that are banned. Traffic tries
// other limits on recent requests. Log logs refusals at a bounded rate. Diagnose finds
// probable errors in a configuration. To use several of these functions, set Observe to a
// function that calls each of them.
package watch

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// A Top finds the keys that are refused most. It remembers n keys. A key that has more than
// 1/n of all refusals is always among them. The algorithm is Space-Saving, of Metwally,
// Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
// Streams" (2005).
type Top struct {
	n      int
	mu     sync.Mutex
	known  map[ruleKey]*counted
	counts counts
}

// A counted is a key that a Top remembers.
type counted struct {
	Refused
	at int // its index in Top.counts
}

// counts is a heap.Interface: the key with the lowest Count comes first.
type counts []*counted

func (c counts) Len() int           { return len(c) }
func (c counts) Less(i, j int) bool { return c[i].Count < c[j].Count }
func (c counts) Swap(i, j int)      { c[i], c[j] = c[j], c[i]; c[i].at, c[j].at = i, j }
func (c *counts) Push(x any)        { *c = append(*c, x.(*counted)) }
func (c *counts) Pop() any          { panic("watch: a Top forgets no key but by replacing it") }

type ruleKey struct{ rule, key string }

// A Refused is a key that was refused under a rule: at most Count times, and at least
// Count − Error times.
type Refused struct {
	Rule         string
	Key          string // as quota.Charge.StoredKey returns it
	Count, Error int64
}

// NewTop returns a Top of n keys. It panics if n is below 1. Counting a refusal takes time in
// proportion to the logarithm of n.
func NewTop(n int) *Top {
	if n < 1 {
		panic(fmt.Sprintf("watch: NewTop: %d keys, want at least 1", n))
	}
	return &Top{n: n, known: make(map[ruleKey]*counted, n)}
}

// Observe counts a refused request once for each rule that refused it, by a limit, a
// ban or a deny list. It ignores rules in shadow.
func (t *Top) Observe(e weir.Event) {
	if e.Err != nil || e.Shadow || e.Transaction == nil {
		return
	}
	if by := e.Refusal.Reason; by == weir.ReasonBan || by == weir.ReasonDeny {
		t.count(e.Refusal.Rule, e.Key)
		return
	}
	charges, decisions := e.Transaction.Charges, e.Transaction.Decisions
	for i := range charges {
		if decisions[i].Allowed {
			continue
		}
		first := true // whether this is the first limit of its rule that refused
		for j := range charges[:i] {
			first = first && (decisions[j].Allowed || charges[j].Rule != charges[i].Rule)
		}
		if first {
			t.count(charges[i].Rule, charges[i].Key)
		}
	}
}

func (t *Top) count(rule, key string) {
	key = storedkey.Of(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.known[ruleKey{rule, key}]
	switch {
	case r != nil:
		r.Count++
	case len(t.counts) < t.n:
		r = &counted{Refused{Rule: strings.Clone(rule), Key: strings.Clone(key), Count: 1}, len(t.counts)}
		t.known[ruleKey{r.Rule, r.Key}] = r
		heap.Push(&t.counts, r)
		return
	default: // the new key replaces the one with the lowest count, and goes on from that count
		r = t.counts[0]
		delete(t.known, ruleKey{r.Rule, r.Key})
		r.Refused = Refused{Rule: strings.Clone(rule), Key: strings.Clone(key), Count: r.Count + 1, Error: r.Count}
		t.known[ruleKey{r.Rule, r.Key}] = r
	}
	heap.Fix(&t.counts, r.at)
}

// Count returns the Count of a key under a rule, see [Refused]. It returns 0 if the Top does
// not remember the key.
func (t *Top) Count(rule, key string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.known[ruleKey{rule, storedkey.Of(key)}]; r != nil {
		return r.Count
	}
	return 0
}

// Keys returns the keys that the Top remembers. The key with the largest Count comes first.
func (t *Top) Keys() []Refused {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]Refused, 0, len(t.known))
	for _, r := range t.known {
		keys = append(keys, r.Refused)
	}
	slices.SortFunc(keys, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return keys
}
