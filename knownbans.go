package weir

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// knownBans are the bans that a process knows of, of one rule: at most mostBans.
// An entry counts for at most recheck, and what is over is dropped within as long,
// by the requests that come.
type knownBans struct {
	n     atomic.Int64 // len(of), so that while nobody is banned nobody takes the lock
	mu    sync.RWMutex
	of    map[string]*knownBan
	sweep time.Time // when to drop what is over
}

// A knownBan says until when to refuse a key, and what to tell it, without the
// store.
type knownBan struct {
	until time.Time // when it is over
	again time.Time // when to ask the store again: it may have been lifted
	fits  time.Time // when the limits that refused a request had room for it
	cost  int64     // of that request
	free  bool      // it was charged nothing: what the limits say is unknown
}

const mostBans = 10_000

// rest returns how much longer a key is banned, as far as this process knows: 0
// if it is not. wait is at least that, and longer if the limits of the rule had
// no room for a request of that cost then. Limits have room for what is free, and
// what that has learned is for its like.
func (b *knownBans) rest(key string, free bool, cost func() int64) (rest, wait time.Duration) {
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
	if !ok || !now.Before(ban.again) || ban.free && !free {
		return 0, 0
	}
	rest = ban.until.Sub(now)
	wait = rest
	if more := ban.fits.Sub(now); more > wait && !free && cost() >= ban.cost {
		wait = more
	}
	return rest, wait
}

// learn remembers that a key is banned for rest, and that a request of that cost
// would not fit before wait, or nothing of that if it was free.
func (b *knownBans) learn(key string, rest, wait time.Duration, cost int64, free bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]*knownBan{}
	}
	if len(b.of) == 0 || !now.Before(b.sweep) {
		b.drop(now)
	}
	k := b.of[key]
	if k == nil {
		if len(b.of) >= mostBans {
			for other := range b.of { // any: it costs a question more
				delete(b.of, other)
				break
			}
		}
		k = new(knownBan)
		b.of[strings.Clone(key)] = k
		b.n.Store(int64(len(b.of)))
	}
	*k = knownBan{until: now.Add(rest), again: now.Add(min(rest, recheck)), fits: now.Add(wait), cost: cost, free: free}
}

// drop forgets what is over.
func (b *knownBans) drop(now time.Time) {
	b.sweep = now.Add(recheck)
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
