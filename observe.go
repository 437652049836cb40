package weir

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// An Event is one decision, or the failure to make one.
type Event struct {
	Request *http.Request

	// Transaction is what was decided. It is never nil and must not be changed. When
	// Observe has returned, other requests reuse the Transaction, so copy what you keep.
	// After an error its Decisions mean nothing. After a deny, and after a ban that the
	// process knows of, the store was not asked, and the Transaction has no Charges.
	Transaction *Transaction

	// Refusal is the Refusal of the Transaction: why the request was refused, by which
	// rule, and for how long. If Refusal is zero, the request was not refused. In an event
	// with Shadow, Refusal says why the request would have been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may be personal
	// data.
	Key string

	// Err is the error of the store or of LimitsFor, or nil.
	Err error

	// Took is how long the store took. It is 0 for a memstore.Store, because reading the
	// clock would take as long as the store.
	Took time.Duration

	// Shadow says that the rules of this transaction refuse no request.
	Shadow bool

	// BanBegan says that this refusal is the strike that begins a ban.
	BanBegan bool
}

// An errorLog logs errors, at most one line a second, because every request has an error
// while a store is down. A line says what failed and has the name of the rule, and no key.
type errorLog struct {
	logger *slog.Logger // nil means slog.Default()
	last   atomic.Int64 // when the last line was logged, in ns since 1970
	silent atomic.Int64 // how many errors were not logged since then
}

// warn logs that a task failed, such as "decide".
func (l *errorLog) warn(ctx context.Context, task, rule string, err error) {
	last, now := l.last.Load(), time.Now().UnixNano()
	if since := now - last; 0 <= since && since < int64(time.Second) || !l.last.CompareAndSwap(last, now) {
		l.silent.Add(1)
		return
	}
	loggerOr(l.logger).WarnContext(ctx, "weir: could not "+task, "rule", rule, "err", err, "unlogged", l.silent.Swap(0))
}

// loggerOr returns l, or slog.Default() if l is nil.
func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// observe logs the error of an event and calls Observe.
func (l *Limiter) observe(v *verdict, e *Event) {
	if e.Err != nil || l.o.Observe != nil { // this check is inlined, so most limiters cost no call
		l.tellObserver(v, e)
	}
}

func (l *Limiter) tellObserver(v *verdict, e *Event) {
	if e.Err != nil {
		l.log.warn(v.Context, "decide", e.Transaction.Refusal.Rule, e.Err)
	}
	if l.o.Observe != nil {
		e.Refusal = e.Transaction.Refusal
		l.o.Observe(*e)
	}
}
