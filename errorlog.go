package weir

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// An errorLog logs that decisions could not be made, one line a second at most:
// when a store is away, every request errs. It names the rule, and never a key.
type errorLog struct {
	logger *slog.Logger // nil: slog.Default()
	last   atomic.Int64 // of the last line, in ns since 1970
	silent atomic.Int64 // errors since then
}

func (l *errorLog) warn(ctx context.Context, rule string, err error) {
	last, now := l.last.Load(), time.Now().UnixNano()
	if since := now - last; 0 <= since && since < int64(time.Second) || !l.last.CompareAndSwap(last, now) {
		l.silent.Add(1)
		return
	}
	l.to().WarnContext(ctx, "weir: could not decide", "rule", rule, "err", err, "unlogged", l.silent.Swap(0))
}

func (l *errorLog) to() *slog.Logger {
	if l.logger == nil {
		return slog.Default()
	}
	return l.logger
}
