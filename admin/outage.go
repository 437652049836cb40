package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/watch"
)

// tellFor is for how long the page tells of an outage that is over, and of a change of the file.
const tellFor = 15 * time.Minute

// longOutage is how long an outage must have lasted to be a finding once it is over.
const longOutage = 5 * time.Second

// decides reports whether a state goes on in which a fallback decides: its first store has failed for
// a second or longer, and did so a moment ago. A single timeout is none, and no request ends it.
func decides(s quota.FallbackStats) bool {
	return s.Active && s.Last.Sub(s.Since) >= time.Second && time.Since(s.Last) < 3*watch.HistoryEvery
}

// lasted returns how long an outage was, or 0 if the page tells no longer of it.
func lasted(s quota.FallbackStats) time.Duration {
	if time.Since(s.Last) > tellFor {
		return 0
	}
	return s.Last.Sub(s.Since)
}

// outage returns what fallbacks have decided since the page was last shown while none did, by
// cause, the most frequent first, and last the breaker, which is open because of another cause. It
// remembers the outage that the page tells of.
func (h *Handler) outage(decided map[string]int64, active bool, told quota.FallbackStats) (causes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lasted(told) >= lasted(h.told) {
		h.told, h.told.Active = told, false
	}
	if !active {
		h.before = decided
		return nil
	}
	count := func(cause string) int64 {
		if cause == "open" {
			return 0
		}
		return decided[cause] - h.before[cause]
	}
	for _, cause := range slices.SortedFunc(maps.Keys(decided), func(a, b string) int { return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(a, b)) }) {
		if n := decided[cause] - h.before[cause]; n > 0 {
			causes = append(causes, fmt.Sprintf("%s: %s", causeText(cause), number(n)))
		}
	}
	return causes
}

// outageText says since when the store fails and why, or when it last failed. It returns "" if it
// has not failed for long, or not lately.
func (s *strip) outageText() string {
	o, why := s.last, ""
	if o.Cause != "" {
		why = ", because " + causeText(o.Cause)
	}
	switch {
	case s.Active > 0:
		return fmt.Sprintf("The store has failed since %s%s. This process decides alone, by what it counts in its own memory. Decisions in memory, by cause: %s. The log has the error. Once the store works, this process uses it again by itself.",
			clockText(o.Since), why, strings.Join(s.outage, "; "))
	case lasted(o) < longOutage:
		return ""
	}
	text := fmt.Sprintf("The store failed from %s to %s%s. In that time this process decided alone, by what it counted in its own memory.", clockText(o.Since), clockText(o.Last), why)
	if !o.Active {
		text += " The store decides again."
	}
	return text
}

// causeText says what a cause of quota.Cause is.
func causeText(cause string) string {
	switch cause {
	case "unusable":
		return "the store cannot work as it is set up"
	case "full":
		return "the store in memory is full"
	case "busy":
		return "the store is busy"
	case "open":
		return "the breaker is open"
	case "timeout":
		return "the store did not answer in time"
	case "limit":
		return "a limit is invalid"
	}
	return "the store cannot be reached, or answers with an error"
}

// clockText formats a time of the last hours.
func clockText(t time.Time) string {
	if time.Since(t) > 12*time.Hour {
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return t.UTC().Format("15:04:05 UTC")
}
