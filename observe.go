package weir

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// An Event is one decision, or the failure to make one.
type Event struct {
	Request *http.Request

	// Transaction is what was decided. It is never nil and must not be changed. When
	// Observe has returned, other requests reuse the Transaction, so copy what you keep.
	// After an error its Decisions mean nothing. After a deny, and after a ban that the
	// process knows of, the store was not asked, and the Transaction has no Charges.
	Transaction *quota.Transaction

	// Refusal says why the request was refused, by which rule, and for how long. It is zero if
	// the request was not refused. In an event with Shadow, it says why the request would have
	// been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may be personal
	// data.
	Key string

	// Err is the error of the store or of a Policy, or nil. Cause returns its class.
	Err error

	// Passed says that OnError allowed the request, although it could not be decided, or
	// that Transport sends it. It is false if Err is nil, and if Shadow is true.
	Passed bool

	// Took is how long the store took. It is 0 for a memstore.Store, because reading the
	// clock would take as long as the store.
	Took time.Duration

	// Shadow says that the rules of this transaction refuse no request.
	Shadow bool

	// BanBegan says that this refusal is the strike that begins a ban.
	BanBegan bool
}

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// Handlers get the Refusal with the Admission, logs and metrics with the Event, and callers of
// a Transport with the RefusedError: it is the same value. A Refusal has no key.
type Refusal struct {
	// Reason says what refused the request: ReasonBan if the key is banned, even if a limit
	// refuses as well.
	Reason Reason

	// Rule is the name of the rule that refuses for that Reason. If there are several such
	// rules, it is the rule with the longest wait.
	Rule string

	// RetryAfter is the wait until the request would pass, if nothing else is spent: the
	// longest of the waits for the limits and the bans that refuse it. To this wait, the
	// field Retry-After adds the jitter of the rule. If the process refuses the request
	// because of a ban that it remembers, it does not call the store. The waits for the
	// limits are then the waits that the store gave to the last banned request with the
	// same keys, if that request cost no more. After a deny, and for ReasonNoKey, RetryAfter
	// is Never. After an error it is 0, which means unknown, or a second if the store is busy.
	RetryAfter time.Duration
}

// A Reason is why a request is refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has no room for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // a rule refuses by a Policy that is Denied
	ReasonError                   // no decision was possible: see Options.OnError
	ReasonPause                   // Transport has paused the key, as the server has asked
	ReasonNoKey                   // the request has no key, and the rule has NoKeyRefuse
)

// String returns "limit", "ban", "deny", "error", "pause" or "no-key", and "" for the zero
// Reason.
func (r Reason) String() string {
	switch r {
	case ReasonLimit:
		return "limit"
	case ReasonBan:
		return "ban"
	case ReasonDeny:
		return "deny"
	case ReasonError:
		return "error"
	case ReasonPause:
		return "pause"
	case ReasonNoKey:
		return "no-key"
	}
	return ""
}

// An errorLog logs errors, at most one line a second, because every request has an error
// while a store is down. A line says what failed and has the name of the rule, and no key.
type errorLog struct {
	logger *slog.Logger // nil means slog.Default()
	gate   sparse.Gate
}

// warn logs what happened, such as "request not decided". An ErrUnusable is logged as an error.
func (l *errorLog) warn(ctx context.Context, what, rule string, err error, attrs ...any) {
	unlogged, ok := l.gate.Pass()
	if !ok {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, quota.ErrUnusable) {
		level = slog.LevelError
	}
	attrs = append([]any{"rule", rule, "err", err, "cause", quota.Cause(err)}, attrs...)
	if unlogged > 0 {
		attrs = append(attrs, "unlogged", unlogged)
	}
	loggerOr(l.logger).Log(ctx, level, "weir: "+what, attrs...)
}

// held logs what quota.Keep could not do.
func (l *errorLog) held(ctx context.Context, what, rule string, err error) {
	l.warn(ctx, what, rule, err)
}

// loggerOr returns l, or slog.Default() if l is nil.
func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}
