package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/watch"
)

// A reload is the last one that changed rules, as far as Options.File can tell.
type reload struct {
	At      time.Time // zero if it is not known when the rules in force were loaded
	Changes []string  // in sentences such as "api: limit 1m (gcra): 100 per 1m → 10 per 1m"
}

// reloaded returns when the rules in force were loaded, and what that changed.
func (h *Handler) reloaded() (r reload) {
	if f, ok := h.o.File.(interface{ Loaded() time.Time }); ok {
		r.At = f.Loaded()
	}
	if f, ok := h.o.File.(interface{ Changed() []string }); ok {
		r.Changes = f.Changed()
	}
	return r
}

// lately reports whether rules were changed a short time ago.
func (r reload) lately() bool { return len(r.Changes) > 0 && time.Since(r.At) < tellFor }

// Text says when the file was read, and what that changed, at most five changes.
func (r reload) Text() string {
	text := strings.Join(r.Changes[:min(5, len(r.Changes))], "; ")
	if more := len(r.Changes) - 5; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Sprintf("The file of rules was read %s ago, at %s, and changed %s.", ago(r.At), clockText(r.At), text)
}

// limit returns what was changed in the limits of a rule, or "".
func (r reload) limit(rule string) string {
	var changes []string
	for _, c := range r.Changes {
		if c, ok := strings.CutPrefix(c, rule+": limit "); ok {
			changes = append(changes, c)
		}
	}
	if len(changes) == 0 {
		return ""
	}
	return fmt.Sprintf("The file of rules has changed it %s ago, at %s: %s.", ago(r.At), clockText(r.At), strings.Join(changes, "; "))
}

// manyAside is how many requests must pass a rule by before that is a finding, as for the log line of
// a key that is missing.
const manyAside = 200

// aside returns how many requests another rule has allowed since the rules were loaded, at most in the
// last 15 minutes, while a rule with limits has counted none, although it is in all limiters of the
// other. It returns 0 if that is no finding.
func (h *Handler) aside(r *ruleRow, at time.Time) (n int64) {
	if h.o.Traffic == nil || r.Limits == nil || r.Last15 != (watch.Count{}) {
		return 0
	}
	always := map[string]bool{} // by the name of a rule: r is in all of its limiters
	for _, l := range h.o.Limiters() {
		rules := l.Rules()
		has := slices.ContainsFunc(rules, func(other weir.Rule) bool { return other.Name == r.Name })
		for i := range rules {
			before, known := always[rules[i].Name]
			always[rules[i].Name] = has && (before || !known)
		}
	}
	for name, has := range always {
		if !has {
			continue
		}
		counts, since := h.o.Traffic.History(name)
		if whole := time.Since(at) - since; whole < time.Duration(len(counts)-1)*watch.HistoryEvery { // only intervals that began since
			counts = counts[len(counts)-max(0, int((whole+watch.HistoryEvery)/watch.HistoryEvery)):]
		}
		var sum watch.Count
		for _, c := range counts {
			sum.Add(c)
		}
		n = max(n, sum.Allowed)
	}
	if n < manyAside {
		return 0
	}
	return n
}

// asideText says why a rule may have counted none of n requests.
func (h *Handler) asideText(rule string, n int64) string {
	key := "its key"
	if f, ok := h.o.File.(interface{ Reads(rule string) []string }); ok {
		if reads := f.Reads(rule); len(reads) > 0 {
			key += " (" + strings.Join(reads, ", ") + ")"
		}
	}
	return fmt.Sprintf("Rule %q has counted none of %s requests that another rule allowed. They may lack %s, be in its allow list, or cost nothing.", rule, number(n), key)
}
