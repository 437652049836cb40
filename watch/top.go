// Package watch has functions for weir.Options.Observe that show operators what limiters do.
// Top finds the keys that are refused most. Bans lists the keys that are banned. Traffic tries
// other limits on recent requests. Log logs refusals at a bounded rate. Diagnose finds
// probable mistakes in a configuration. To use several of these functions, set Observe to a
// function that calls each of them.
package watch

import (
	"cmp"
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
	n     int
	mu    sync.Mutex
	known map[ruleKey]*Refused
}

type ruleKey struct{ rule, key string }

// A Refused is a key that was refused under a rule: at most Count times, and at least
// Count − Error times.
type Refused struct {
	Rule         string
	Key          string // as weir.Charge.StoredKey returns it
	Count, Error int64
}

// NewTop returns a Top of n keys. It panics if n is below 1. Counting a refusal of a new
// key takes time in proportion to n.
func NewTop(n int) *Top {
	if n < 1 {
		panic(fmt.Sprintf("watch: NewTop: %d keys, want at least 1", n))
	}
	return &Top{n: n, known: make(map[ruleKey]*Refused, n)}
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
	if r, ok := t.known[ruleKey{rule, key}]; ok {
		r.Count++
		return
	}
	r := &Refused{Rule: strings.Clone(rule), Key: strings.Clone(key), Count: 1}
	if len(t.known) == t.n { // r replaces the key with the lowest count, and goes on from that count
		var least *Refused
		for _, other := range t.known {
			if least == nil || other.Count < least.Count {
				least = other
			}
		}
		delete(t.known, ruleKey{least.Rule, least.Key})
		r.Count, r.Error = least.Count+1, least.Count
	}
	t.known[ruleKey{r.Rule, r.Key}] = r
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
		keys = append(keys, *r)
	}
	slices.SortFunc(keys, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return keys
}
