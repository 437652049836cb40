package weir

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// knownBans is what a process knows of one rule: which keys the rule has banned and, for a
// key that any rule has banned, for how long the limits of this rule would refuse the key
// as well. It has at most mostBans entries. An entry is used for at most 10 s (reask). At
// most once in 10 s, a request drops the entries that have expired.
type knownBans struct {
	n     atomic.Int64 // len(of): while it is 0, no request takes the lock
	mu    sync.RWMutex
	of    map[string]*knownBan
	sweep time.Time // when to drop the entries that have expired
}

// A knownBan says until when to refuse a key without asking the store, and with which wait.
type knownBan struct {
	until time.Time // when the ban is over; zero if the key is not banned
	again time.Time // when to ask the store again, because the ban may have been lifted

	since time.Time     // when the limits refused a request
	wait  time.Duration // how long after the refusal the limits have room for that request
	cost  int64         // of that request
}

const (
	mostBans = 10_000

	// reask is how long a ban is answered from memory before the store is asked again.
	reask = 10 * time.Second
)

// rest returns for how much longer a key is banned, and for how much longer the limits of
// the rule have no room for a request of that cost. The first result is 0 if this process
// knows of no ban of the key. The second result is 0 if this process does not know how long
// the limits refuse.
func (b *knownBans) rest(key string, cost func() int64) (rest, wait time.Duration) {
	if b.n.Load() == 0 {
		return 0, 0
	}
	now := time.Now()
	b.mu.RLock()
	k, ok := b.of[key]
	var ban knownBan
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
func (k *knownBan) waits(now time.Time) time.Duration {
	if k.wait == quota.Never {
		return quota.Never
	}
	return k.wait - now.Sub(k.since)
}

// learn remembers that a key is banned for rest.
func (b *knownBans) learn(key string, rest time.Duration) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	*b.entry(key, now) = knownBan{until: now.Add(rest), again: now.Add(min(rest, reask))}
}

// learnWait remembers, for at most 10 s (reask), that the limits have no room for a
// request of that cost until wait is over.
func (b *knownBans) learnWait(key string, wait time.Duration, cost int64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait == 0 && b.of[key] == nil {
		return
	}
	k := b.entry(key, now)
	if k.until.IsZero() {
		k.again = now.Add(reask)
	}
	k.since, k.wait, k.cost = now, wait, cost
}

// entry returns the entry of a key, which it makes if there is none.
func (b *knownBans) entry(key string, now time.Time) *knownBan {
	if b.of == nil {
		b.of = map[string]*knownBan{}
	}
	if len(b.of) == 0 || !now.Before(b.sweep) {
		b.drop(now)
	}
	k := b.of[key]
	if k == nil {
		if len(b.of) >= mostBans {
			for other := range b.of { // any entry: forgetting it costs one call of the store
				delete(b.of, other)
				break
			}
		}
		k = new(knownBan)
		b.of[strings.Clone(key)] = k
		b.n.Store(int64(len(b.of)))
	}
	return k
}

// drop forgets the entries that have expired.
func (b *knownBans) drop(now time.Time) {
	b.sweep = now.Add(reask)
	for key, k := range b.of {
		if !now.Before(k.again) {
			delete(b.of, key)
		}
	}
	b.n.Store(int64(len(b.of)))
}

func (b *knownBans) forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, key)
	b.n.Store(int64(len(b.of)))
}
