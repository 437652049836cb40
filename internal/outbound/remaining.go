package outbound

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// mostRemaining is how many keys a Remaining remembers at most.
const mostRemaining = 10_000

// Remaining remembers how many units a server says that the keys of one process have left. The zero
// Remaining is empty. It is safe for concurrent use.
type Remaining struct {
	size atomic.Int64 // of entries, so that an empty one costs one load
	mu   sync.Mutex
	of   map[Key]entry
}

// A Key is a key of a rule.
type Key struct{ Rule, Key string }

type entry struct {
	units int64
	until time.Time
}

// Set remembers that a key has so many units left for the time d. A Remaining that is full of other
// keys forgets those whose time is over, and otherwise remembers nothing of this one.
func (t *Remaining) Set(k Key, units int64, d time.Duration) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[Key]entry{}
	}
	if _, known := t.of[k]; !known && len(t.of) >= mostRemaining {
		for k, e := range t.of {
			if !now.Before(e.until) {
				delete(t.of, k)
			}
		}
		if len(t.of) >= mostRemaining {
			return
		}
	}
	t.of[k] = entry{max(0, units), now.Add(d)}
	t.size.Store(int64(len(t.of)))
}

// Wait returns how long a key has fewer units than the cost of a request; 0 if it has enough, or
// if that is unknown.
func (t *Remaining) Wait(k Key, cost int64) time.Duration {
	if t.size.Load() == 0 {
		return 0
	}
	t.mu.Lock()
	e, known := t.of[k]
	t.mu.Unlock()
	if left := time.Until(e.until); known && left > 0 && e.units < cost {
		return left
	}
	return 0
}

// Forget makes it unknown what a key has left.
func (t *Remaining) Forget(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, k)
	t.size.Store(int64(len(t.of)))
}

// Spend takes the cost of a request from what each of its keys has left. It returns false, and
// takes nothing, if one of them has fewer units than the request costs.
func (t *Remaining) Spend(costs iter.Seq2[Key, int64]) bool {
	if t.size.Load() == 0 {
		return true
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, cost := range costs {
		if e := t.of[k]; e.units < cost && now.Before(e.until) {
			return false
		}
	}
	for k, cost := range costs {
		if e, known := t.of[k]; known {
			e.units -= min(e.units, cost)
			t.of[k] = e
		}
	}
	return true
}
