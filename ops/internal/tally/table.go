package tally

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A key names an element of a table: a limit of a rule by its name and period, a rule and
// a reason, or a rule alone.
type key struct {
	rule, name string
	period     time.Duration
	shadow     bool
}

// A table maps keys to elements, which are never removed. An element that was used
// recently is usually found without a lock.
type table[V any] struct {
	slots [64]atomic.Pointer[element[V]]

	mu  sync.Mutex
	all map[key]*element[V]
}

type element[V any] struct {
	key
	value V
}

var seed = maphash.MakeSeed()

// of returns the element of a key, and makes it if there is none. Once the table has Most
// elements, new keys share the element named Other.
func (t *table[V]) of(k key) *V {
	slot := &t.slots[(maphash.String(seed, k.rule)+maphash.String(seed, k.name)+uint64(k.period)>>10)%uint64(len(t.slots))]
	if e := slot.Load(); e != nil && e.key == k {
		return &e.value
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.all[k]
	if e == nil {
		if len(t.all) >= Most {
			k = key{name: Other, shadow: k.shadow}
		}
		if e = t.all[k]; e == nil {
			e = t.add(k)
		}
	}
	slot.Store(e)
	return &e.value
}

// add adds an element for a clone of k.
func (t *table[V]) add(k key) *element[V] {
	k.rule, k.name = strings.Clone(k.rule), strings.Clone(k.name)
	e := &element[V]{key: k}
	if t.all == nil {
		t.all = map[key]*element[V]{}
	}
	t.all[k] = e
	return e
}

// each calls f for each element.
func (t *table[V]) each(f func(key, *V)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, e := range t.all {
		f(k, &e.value)
	}
}
