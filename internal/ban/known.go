package ban

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// Known is what a process knows of the bans of some rules: which keys a rule has banned and,
// for a key that any rule has banned, for how long the limits of another rule would refuse it
// as well. It has at most mostKnown entries. An entry is used for at most 10 s (reask). At most
// once in 10 s, a call drops the entries that have expired.
type Known struct {
	n     atomic.Int64 // len(of): while it is 0, Rest takes no lock
	mu    sync.RWMutex
	of    map[place]*known
	sweep time.Time // when to drop the entries that have expired
}

// A place is a key of a rule, which callers number.
type place struct {
	rule int
	key  string
}

// A known says until when to refuse a key without asking the store, and with which wait.
type known struct {
	until time.Time // when the ban is over; zero if the key is not banned
	again time.Time // when to ask the store again, because the ban may have been lifted

	since time.Time     // when the limits refused a request
	wait  time.Duration // how long after the refusal the limits have room for that request
	cost  int64         // of that request
}

const (
	mostKnown = 10_000

	// reask is how long a ban is answered from memory before the store is asked again.
	reask = 10 * time.Second
)

// Rest returns for how much longer a key is banned, and for how much longer the limits of
// the rule have no room for a request of that cost. The first result is 0 if this process
// knows of no ban of the key. The second result is 0 if this process does not know how long
// the limits refuse.
func (b *Known) Rest(rule int, key string, cost func() int64) (rest, wait time.Duration) {
	if b.n.Load() == 0 {
		return 0, 0
	}
	now := time.Now()
	b.mu.RLock()
	k, ok := b.of[place{rule, key}]
	var ban known
	if ok {
		ban = *k
	}
	due := !now.Before(b.sweep)
	b.mu.RUnlock()
	if due {
		b.mu.Lock()
		b.drop(now)
		b.mu.Unlock()
	}
	if !ok || !now.Before(ban.again) {
		return 0, 0
	}
	if left := ban.waits(now); left > 0 && cost() >= ban.cost {
		wait = left
	}
	return max(0, ban.until.Sub(now)), wait
}

// waits returns for how much longer the limits have no room for a request of k.cost.
func (k *known) waits(now time.Time) time.Duration {
	if k.wait == quota.Never {
		return quota.Never
	}
	return k.wait - now.Sub(k.since)
}

// Learn remembers that a key is banned for rest.
func (b *Known) Learn(rule int, key string, rest time.Duration) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	*b.entry(place{rule, key}, now) = known{until: now.Add(rest), again: now.Add(min(rest, reask))}
}

// LearnWait remembers, for at most 10 s (reask), that the limits have no room for a
// request of that cost until wait is over.
func (b *Known) LearnWait(rule int, key string, wait time.Duration, cost int64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	at := place{rule, key}
	if wait == 0 && b.of[at] == nil {
		return
	}
	k := b.entry(at, now)
	if k.until.IsZero() {
		k.again = now.Add(reask)
	}
	k.since, k.wait, k.cost = now, wait, cost
}

// entry returns an entry, which it makes if there is none.
func (b *Known) entry(at place, now time.Time) *known {
	if b.of == nil {
		b.of = map[place]*known{}
	}
	if len(b.of) == 0 || !now.Before(b.sweep) {
		b.drop(now)
	}
	k := b.of[at]
	if k == nil {
		if len(b.of) >= mostKnown {
			for other := range b.of { // any entry: forgetting it costs one call of the store
				delete(b.of, other)
				break
			}
		}
		k = new(known)
		b.of[place{at.rule, strings.Clone(at.key)}] = k
		b.n.Store(int64(len(b.of)))
	}
	return k
}

// drop forgets the entries that have expired.
func (b *Known) drop(now time.Time) {
	b.sweep = now.Add(reask)
	for at, k := range b.of {
		if !now.Before(k.again) {
			delete(b.of, at)
		}
	}
	b.n.Store(int64(len(b.of)))
}

// Forget forgets the ban of a key.
func (b *Known) Forget(rule int, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, place{rule, key})
	b.n.Store(int64(len(b.of)))
}

// Len returns how many entries there are.
func (b *Known) Len() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.of)
}
