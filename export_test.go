package weir

import (
	"github.com/seed83679106/weir/internal/remade"
)

// KnownBans returns how many entries about bans the process remembers, for all rules.
func (l *Limiter) KnownBans() (n int) {
	for i := range l.rules {
		known := &l.rules[i].known
		known.mu.Lock()
		n += len(known.of)
		known.mu.Unlock()
	}
	return n
}

// GateLimit and ShutGates export the gates in which pauses are kept.
var (
	GateLimit = gateLimit
	ShutGates = shutGates
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

// IsSingle reports whether serveSingle serves the requests to l.
func IsSingle(l *Limiter) bool { return l.single }

// Generalize makes serveGeneral serve the requests to l.
func Generalize(l *Limiter) { l.single = false }
