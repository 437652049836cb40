package weir

import (
	"github.com/seed83679106/weir/internal/remade"
)

// KnownBans returns how many entries about bans the process remembers, for all rules.
func (l *Limiter) KnownBans() int {
	for _, r := range l.riders {
		if b, ok := r.(*bans); ok {
			return b.known.Len()
		}
	}
	return 0
}

// PauseOf and BeginPause export the charges of pauses.
var (
	PauseOf    = pauseOf
	BeginPause = beginPause
)

// PooledKeys returns the keys that a verdict in the pool keeps alive. ok is false if the pool is
// empty.
func (l *Limiter) PooledKeys() (keys []string, ok bool) {
	v, ok := l.pool.Get().(*verdict)
	if !ok {
		return nil, false
	}
	for _, it := range v.items[:cap(v.items)] {
		keys = append(keys, it.key)
	}
	for _, c := range v.Charges[:cap(v.Charges)] {
		keys = append(keys, c.Key)
	}
	for _, c := range v.riding[:cap(v.riding)] {
		keys = append(keys, c.Key)
	}
	for _, it := range v.shown[:cap(v.shown)] {
		keys = append(keys, it.PartitionKey)
	}
	return append(keys, v.event.Key), true
}

// MaxPrepared is how many lists of limits a rule keeps prepared.
const MaxPrepared = maxPrepared

// Prepared returns how many lists of limits the rule keeps prepared.
func Prepared(l *Limiter) (n int) {
	l.rules[0].lists.Range(func(_, p any) bool { n += 1 + p.(*prepared).depth; return true })
	return n
}

// ForgetWiring makes New warn again of what it has warned of.
func ForgetWiring() {
	handlerMade = remade.Count{}
	clear(made.limiters[:])
	made.warned = nil
}
