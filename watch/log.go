package watch

import (
	"log/slog"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// Log returns an Observe that logs refusals, bans and errors, perSecond lines a
// second at most; the next line says how many were left out. A nil logger is
// slog.Default(). A perSecond below 1 is 1.
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
	var message string
	var attrs []any
	switch {
	case e.Denied != "":
		message, attrs = "weir: denied", []any{"rule", e.Denied}
	case e.Err != nil:
		message, attrs = "weir: not decided", []any{"err", e.Err}
	case e.Ban > 0:
		message, attrs = "weir: banned", []any{"for", e.Ban}
	case e.Transaction == nil || e.Transaction.Allowed():
		return
	default:
		message = "weir: refused"
		if e.Shadow {
			message = "weir: would be refused"
		}
		for i, d := range e.Transaction.Decisions {
			if c := &e.Transaction.Charges[i]; !d.Allowed {
				attrs = append(attrs, "rule", c.Rule, "limit", c.Limit.Name, "retry_after", d.RetryAfter)
				if l.key != nil {
					attrs = append(attrs, "key", l.key(c.Rule, c.Key))
				}
				break
			}
		}
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
