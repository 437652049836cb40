package watch

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// bans remembers the bans that have refused requests in this process. If more than n keys are
// banned, the ban that expires first is forgotten.
type bans struct {
	n      int
	mu     sync.Mutex
	known  map[ruleKey]*ban
	byEnds ends
}

// A ban is a remembered ban, and its index in bans.byEnds.
type ban struct {
	Banned
	at int
}

// ends is a heap.Interface: the ban that expires first is the first.
type ends []*ban

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].Until.Before(e[j].Until) }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i]; e[i].at, e[j].at = i, j }
func (e *ends) Push(x any)        { *e = append(*e, x.(*ban)) }
func (e *ends) Pop() any {
	last := len(*e) - 1
	b := (*e)[last]
	(*e)[last], *e = nil, (*e)[:last]
	return b
}

// Banned describes a key that is banned under a rule.
type Banned struct {
	Rule  string
	Key   string    // as quota.Charge.StoredKey returns it
	Until time.Time // when the ban expires, according to the last refusal
}

func (b *bans) init(n int) { b.n, b.known = n, map[ruleKey]*ban{} }

// If a ban refused the request, observe records the ban. Bans of rules in shadow mode are ignored.
func (b *bans) observe(e *weir.Event) {
	if e.Refusal.Reason != weir.ReasonBan || e.Shadow {
		return
	}
	key, until := ruleKey{e.Refusal.Rule, storedkey.Of(e.Key)}, time.Now().Add(e.Refusal.RetryAfter)
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.known[key]; known != nil {
		known.Until = until
		heap.Fix(&b.byEnds, known.at)
		return
	}
	if b.known == nil {
		b.init(defaultKeys)
	}
	if len(b.known) == b.n {
		b.forget()
	}
	key = ruleKey{strings.Clone(key.rule), strings.Clone(key.key)}
	b.known[key] = &ban{Banned{key.rule, key.key, until}, len(b.byEnds)}
	heap.Push(&b.byEnds, b.known[key])
}

// forget forgets the ban that expires first.
func (b *bans) forget() {
	first := heap.Pop(&b.byEnds).(*ban)
	delete(b.known, ruleKey{first.Rule, first.Key})
}

// Bans returns the bans that have not expired, latest expiry first. The result includes bans that
// an operator has lifted.
func (b *bans) Bans() []Banned {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.byEnds) > 0 && !now.Before(b.byEnds[0].Until) {
		b.forget()
	}
	keys := []Banned{}
	for _, known := range b.byEnds {
		keys = append(keys, known.Banned)
	}
	slices.SortFunc(keys, func(a, b Banned) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return keys
}
