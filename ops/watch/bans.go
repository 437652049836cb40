package watch

import (
	"cmp"
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
	n     int
	mu    sync.Mutex
	known map[ruleKey]time.Time // when each ban expires
}

// Banned describes a key that is banned under a rule.
type Banned struct {
	Rule  string
	Key   string    // as quota.Charge.StoredKey returns it
	Until time.Time // when the ban expires, according to the last refusal
}

func newBans(n int) bans { return bans{n: n, known: map[ruleKey]time.Time{}} }

// If a ban refused the request, observe records the ban. Bans of rules in shadow mode are ignored.
func (b *bans) observe(e *weir.Event) {
	if e.Refusal.Reason != weir.ReasonBan || e.Shadow {
		return
	}
	key, until := ruleKey{e.Refusal.Rule, storedkey.Of(e.Key)}, time.Now().Add(e.Refusal.RetryAfter)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.known[key]; !known {
		if len(b.known) == b.n {
			delete(b.known, b.first())
		}
		key = ruleKey{strings.Clone(key.rule), strings.Clone(key.key)}
	}
	b.known[key] = until
}

// first returns the key whose ban expires first.
func (b *bans) first() (first ruleKey) {
	var until time.Time
	for key, end := range b.known {
		if until.IsZero() || end.Before(until) {
			first, until = key, end
		}
	}
	return first
}

// Bans returns the bans that have not expired, latest expiry first. The result includes bans that
// an operator has lifted.
func (b *bans) Bans() []Banned {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := []Banned{}
	for key, until := range b.known {
		if now.Before(until) {
			keys = append(keys, Banned{key.rule, key.key, until})
		} else {
			delete(b.known, key)
		}
	}
	slices.SortFunc(keys, func(a, b Banned) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return keys
}
