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
