package watch

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// Log returns a function for weir.Options.Observe that logs refusals and errors, at most perSecond
// lines a second, at equal intervals. If lines are dropped, the attribute "unlogged" of the next
// line contains their number. Each line contains the rule and the reason, such as "limit", "ban",
// "deny" or "error". If a limit refused the request, the line also contains the limit. If waiting
// helps, the line contains the attribute "retry_after". If there was an error, the line contains the
// attribute "err". A nil logger means slog.Default(). A perSecond value below 1 is treated as 1.
//
// Keys may be personal data. If the key function is nil, keys are not logged; otherwise, Log writes
// what that function returns for a key.
func Log(logger *slog.Logger, perSecond int, key func(rule, key string) string) func(weir.Event) {
	logger = sparse.Every(time.Second/time.Duration(max(1, perSecond)), cmp.Or(logger, slog.Default()))
	return func(e weir.Event) {
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
		if key != nil {
			attrs = append(attrs, "key", key(f.Rule, e.Key))
		}
		logger.InfoContext(e.Request.Context(), message, attrs...)
	}
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
