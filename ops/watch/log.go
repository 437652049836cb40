package watch

import (
	"log/slog"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/quota"
)

// Log returns a function for weir.Options.Observe that logs refusals and errors, at most perSecond
// lines a second. If lines are dropped, the attribute "unlogged" of the next line contains their
// number. Each line contains the rule and the reason, such as "limit", "ban", "deny" or "error". If
// a limit refused the request, the line also contains the limit. If waiting helps, the line
// contains the attribute "retry_after". If there was an error, the line contains the attribute
// "err". A nil logger means slog.Default(). A perSecond value below 1 is treated as 1.
//
// Keys may be personal data. If the key function is nil, keys are not logged; otherwise, Log writes
// what that function returns for a key.
func Log(logger *slog.Logger, perSecond int, key func(rule, key string) string) func(weir.Event) {
	if logger == nil {
		logger = slog.Default()
	}
	l := &refusalLog{logger: logger, perSecond: max(1, perSecond), key: key}
	return l.observe
}

type refusalLog struct {
	logger    *slog.Logger
	perSecond int
	key       func(rule, key string) string

	mu       sync.Mutex
	second   time.Time // when the current second began
	lines    int       // in the current second
	unlogged int       // lines that were dropped since the last logged line
}

func (l *refusalLog) observe(e weir.Event) {
	f := e.Refusal
	if f.Reason == 0 {
		return
	}
	message := "watch: request refused"
	switch {
	case f.Reason == weir.ReasonError:
		message = "watch: request not decided"
	case e.Shadow:
		message = "watch: request would be refused"
	}
	attrs := []any{"rule", f.Rule}
	if f.Reason == weir.ReasonLimit {
		attrs = append(attrs, "limit", longest(&e))
	}
	if f.RetryAfter > 0 && f.RetryAfter != quota.Never {
		attrs = append(attrs, "retry_after", period.Rounded(f.RetryAfter))
	}
	attrs = append(attrs, "reason", f.Reason.String())
	if e.Err != nil {
		attrs = append(attrs, "err", e.Err, "cause", quota.Cause(e.Err), "passed", e.Passed)
	}
	if l.key != nil {
		attrs = append(attrs, "key", l.key(f.Rule, e.Key))
	}
	unlogged, ok := l.allow()
	if !ok {
		return
	}
	if unlogged > 0 {
		attrs = append(attrs, "unlogged", unlogged)
	}
	l.logger.InfoContext(e.Request.Context(), message, attrs...)
}

// longest returns the name of the limit with the longest wait, which is the RetryAfter of the
// refusal.
func longest(e *weir.Event) string {
	t := e.Transaction
	for i := range t.Decisions {
		if d := &t.Decisions[i]; !d.Allowed && d.RetryAfter == e.Refusal.RetryAfter {
			return t.Charges[i].Limit.Label()
		}
	}
	return ""
}

// allow reports whether a line may be logged now, and how many lines were dropped before it.
func (l *refusalLog) allow() (unlogged int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.second) >= time.Second {
		l.second, l.lines = now, 0
	}
	if l.lines == l.perSecond {
		l.unlogged++
		return 0, false
	}
	l.lines++
	unlogged, l.unlogged = l.unlogged, 0
	return unlogged, true
}
