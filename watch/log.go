package watch

import (
	"log/slog"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// Log returns an Observe that logs refusals and errors, perSecond lines a second at
// most; the next line says how many were left out. A line has the reason ("limit",
// "ban", "deny" or "error"), the rule, and retry_after if a wait will do. A nil
// logger is slog.Default(). A perSecond below 1 is 1.
//
// Keys may be personal data. They are logged as key returns them; nil leaves them
// out.
func Log(logger *slog.Logger, perSecond int, key func(rule, key string) string) func(weir.Event) {
	if logger == nil {
		logger = slog.Default()
	}
	l := &logs{logger: logger, most: max(1, perSecond), key: key}
	return l.observe
}

type logs struct {
	logger *slog.Logger
	most   int
	key    func(rule, key string) string

	mu     sync.Mutex
	second time.Time // when the current one began
	lines  int       // in it
	silent int
}

func (l *logs) observe(e weir.Event) {
	f := e.Refusal
	if f.Reason == 0 {
		return
	}
	message := "weir: refused"
	switch {
	case f.Reason == weir.ReasonError:
		message = "weir: not decided"
	case e.Shadow:
		message = "weir: would be refused"
	case f.Reason == weir.ReasonBan:
		message = "weir: banned"
	case f.Reason == weir.ReasonDeny:
		message = "weir: denied"
	}
	attrs := []any{"rule", f.Rule}
	if f.Reason == weir.ReasonLimit {
		attrs = append(attrs, "limit", longest(e.Transaction))
	}
	if f.RetryAfter > 0 && f.RetryAfter != weir.Never {
		attrs = append(attrs, "retry_after", f.RetryAfter)
	}
	attrs = append(attrs, "reason", f.Reason.String())
	if e.Err != nil {
		attrs = append(attrs, "err", e.Err)
	}
	if l.key != nil {
		attrs = append(attrs, "key", l.key(f.Rule, e.Key))
	}
	silent, ok := l.allow()
	if !ok {
		return
	}
	if silent > 0 {
		attrs = append(attrs, "left_out", silent)
	}
	l.logger.InfoContext(e.Request.Context(), message, attrs...)
}

// longest returns the name of the limit that has the longest wait.
func longest(t *weir.Transaction) string {
	for i := range t.Decisions {
		if d := &t.Decisions[i]; !d.Allowed && d.RetryAfter == t.Refusal.RetryAfter {
			return t.Charges[i].Limit.Name
		}
	}
	return ""
}

// allow says whether there may be another line now, and how many there were not.
func (l *logs) allow() (silent int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.second) >= time.Second {
		l.second, l.lines = now, 0
	}
	if l.lines == l.most {
		l.silent++
		return 0, false
	}
	l.lines++
	silent, l.silent = l.silent, 0
	return silent, true
}
