package quota

import (
	"cmp"
	"log/slog"
)

// warnOrder logs a warning that a decorator has no effect or a harmful effect, because of the store
// that it wraps. A decorator can examine only the store that it wraps directly.
func warnOrder(l *slog.Logger, effect string) {
	loggerOr(l).Warn("quota: decorators in the wrong order", "effect", effect,
		"fix", "Fallback(Hybrid(Breaker(Coalesce(store))), Share(memory)), as in package stack")
}

// loggerOr returns l, or slog.Default() if l is nil. It is called for each line, because a program
// may change the default later.
func loggerOr(l *slog.Logger) *slog.Logger { return cmp.Or(l, slog.Default()) }
