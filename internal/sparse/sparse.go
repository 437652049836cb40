// Package sparse limits the rate of log lines.
package sparse

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// A Gate allows one line in each interval of length Every. The zero Gate is ready to use.
type Gate struct {
	Every time.Duration // 0 means a second

	last     atomic.Int64 // when the last line was allowed, in ns since 1970
	unlogged atomic.Int64
}

// Pass reports whether a line may be logged now and, if so, how many lines were omitted before it.
func (g *Gate) Pass() (unlogged int64, ok bool) {
	last, now := g.last.Load(), time.Now().UnixNano()
	since := now - last
	if 0 <= since && since < int64(cmp.Or(g.Every, time.Second)) || !g.last.CompareAndSwap(last, now) {
		g.unlogged.Add(1)
		return 0, false
	}
	return g.unlogged.Swap(0), true
}

// Reset allows the next line, no matter when the last one was allowed.
func (g *Gate) Reset() { g.last.Store(0) }

// Logger returns a logger that writes at most one line a second to the log of l. If lines were
// omitted, the attribute unlogged of the next line contains their number. Lines that clients can
// cause are logged in this way, because a flood of requests must not cause a flood of lines with
// addresses.
func Logger(l *slog.Logger) *slog.Logger { return Every(time.Second, l) }

// Every is like Logger, for at most one line in each interval of length d.
func Every(d time.Duration, l *slog.Logger) *slog.Logger {
	return slog.New(handler{l.Handler(), &Gate{Every: d}})
}

// A handler is the slog.Handler of a logger that Logger returns.
type handler struct {
	slog.Handler
	gate *Gate
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	n, ok := h.gate.Pass()
	if !ok {
		return nil
	}
	if n > 0 {
		r = r.Clone()
		r.Add("unlogged", n)
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
