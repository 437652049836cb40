package outbound

import (
	"iter"
	"maps"
	"strings"
	"sync"
	"time"
)

// mostRemaining is the maximum number of keys that a Remaining remembers.
const mostRemaining = 10_000

// Remaining remembers how many units the keys of one process have left. The numbers come from
// servers. The zero Remaining is empty. It is safe for concurrent use.
type Remaining struct {
	mu    sync.Mutex
	of    map[Key]*entry
	sweep time.Time // before this time, Set does not search for entries to drop
}

// A Key is a key of a rule.
type Key struct{ Rule, Key string }

type entry struct {
	units int64
	until time.Time
}

// Set remembers for the duration d how many units a key has left. If too many keys are remembered,
// those whose time has passed are dropped, at most once a second. If there are no such keys, Set
// does not remember the new key.
func (t *Remaining) Set(k Key, units int64, d time.Duration) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.of[k]; e != nil {
		e.units, e.until = max(0, units), now.Add(d)
		return
	}
	if t.of == nil {
		t.of = map[Key]*entry{}
	}
	if len(t.of) >= mostRemaining && !now.Before(t.sweep) {
		t.sweep = now.Add(time.Second)
		maps.DeleteFunc(t.of, func(_ Key, e *entry) bool { return !now.Before(e.until) })
	}
	if len(t.of) >= mostRemaining {
		return
	}
	t.of[Key{strings.Clone(k.Rule), strings.Clone(k.Key)}] = &entry{max(0, units), now.Add(d)}
}

// Wait returns the time until a key has enough units left for a request, or 0 if the key already
// has enough units, or if their number is unknown.
func (t *Remaining) Wait(k Key, cost int64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.of[k]; e != nil && e.units < cost {
		return max(0, time.Until(e.until))
	}
	return 0
}

// Forget removes what is remembered of a key.
func (t *Remaining) Forget(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, k)
}

// Spend subtracts the cost of a request from the units that each of its keys has left. If one of
// the keys has fewer units than the request costs, Spend subtracts nothing and returns false.
func (t *Remaining) Spend(costs iter.Seq2[Key, int64]) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, cost := range costs {
		if e := t.of[k]; e != nil && e.units < cost && now.Before(e.until) {
			return false
		}
	}
	for k, cost := range costs {
		if e := t.of[k]; e != nil {
			e.units -= min(e.units, cost)
		}
	}
	return true
}
