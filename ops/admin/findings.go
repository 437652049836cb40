package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/ops/watch"
)

// A finding is a probable cause of trouble, in a sentence.
type finding struct {
	Bad       bool // clients suffer; otherwise it may be what the operator wants
	Text      string
	Rule, Key string // what to look up, or ""
	Banned    bool   // the key was banned at its last refusal
}

// Thresholds: with fewer refusals in a minute, or in 5 minutes, there is no finding, and fewer keys
// do not count as many clients.
const (
	fewInMinute = 10
	fewInFive   = 20
	fewKeys     = 3
)

// An inspection has the data from which the checks make findings.
type inspection struct {
	h      *Handler
	bar    *statusBar
	rules  []rule
	file   reload
	outage string // a text, or ""
}

// A check returns a finding. Its text is empty if there is nothing to report.
type check[T any] func(in *inspection, of T) finding

// The checks, in the order in which the page shows their findings: first about the process, then
// about each rule, and last those that need no action.
var (
	urgent = []check[*statusBar]{storeFails, requestsUndecided, fileNotReloaded, overridesUnread}
	ofRule = []check[*ruleRow]{refusesMany, refusesMost, refusesOne, countsNone}
	recent = []check[*statusBar]{fileReloaded, storeRecovered}
)

// findings returns the findings, the most urgent first, followed by the warnings of
// Options.Warnings.
func (h *Handler) findings(bar *statusBar, rows []ruleRow, rules []rule) []finding {
	in := &inspection{h, bar, rules, h.reloaded(), bar.outageText()}
	list := found(nil, urgent, in, bar)
	for i := range rows {
		list = found(list, ofRule, in, &rows[i])
	}
	list = found(list, recent, in, bar)
	if h.o.Warnings != nil {
		for _, w := range h.o.Warnings.Recent(time.Hour) {
			text := "Probable misconfiguration: " + w.Text + "."
			if w.Rule != "" {
				text = fmt.Sprintf("Probable misconfiguration of rule %q: %s.", w.Rule, w.Text)
			}
			list = append(list, finding{Text: text})
		}
	}
	return list
}

func found[T any](list []finding, checks []check[T], in *inspection, of T) []finding {
	for _, c := range checks {
		if f := c(in, of); f.Text != "" {
			list = append(list, f)
		}
	}
	return list
}

func storeFails(in *inspection, bar *statusBar) finding {
	switch {
	case bar.Active > 0:
		return finding{Bad: true, Text: in.outage}
	case bar.Open > 0:
		return finding{Bad: true, Text: "The breaker is open: the store has failed again and again, and is called only now and then. The log has the error. Once the store works, the breaker closes by itself."}
	}
	return finding{}
}

func requestsUndecided(in *inspection, bar *statusBar) finding {
	failed := bar.Minute.Failed
	if failed == 0 {
		return finding{}
	}
	cause, _ := in.h.o.Traffic.Failure()
	return finding{Bad: bar.Failing, Text: fmt.Sprintf(
		"%s of %s requests in the last minute could not be decided, because %s: %s were allowed without a limit, and %s were refused with 503. The log has the error.",
		number(failed), number(bar.Requests()), causeText(cause), number(bar.Minute.Passed),
		number(failed-bar.Minute.Passed))}
}

func fileNotReloaded(in *inspection, _ *statusBar) finding {
	if f := in.h.o.File; f != nil && f.Err() != nil {
		return finding{Bad: true, Text: fmt.Sprintf("The rules file was not reloaded, so the rules in force are older than the file: %v", f.Err())}
	}
	return finding{}
}

func overridesUnread(in *inspection, _ *statusBar) finding {
	if o := in.h.o.Overrides; o != nil && o.Err() != nil {
		return finding{Bad: true, Text: "The overrides cannot be read, so changes by other processes are not known here. The log has the error."}
	}
	return finding{}
}

func fileReloaded(in *inspection, _ *statusBar) finding {
	if in.file.lately() {
		return finding{Text: in.file.Text()}
	}
	return finding{}
}

func storeRecovered(in *inspection, bar *statusBar) finding {
	if bar.Active == 0 {
		return finding{Text: in.outage}
	}
	return finding{}
}

// refusals returns how many requests the rule has refused in the last minute or, if it is in shadow
// for all keys, would have refused, and the words for that.
func (r *ruleRow) refusals() (n int64, verb string) {
	if r.Enforce == 0 {
		return r.Minute.Shadow, "is in shadow, and would refuse"
	}
	return r.Minute.Refused, "refuses"
}

// single reports whether one key causes half of the rule's refusals.
func (r *ruleRow) single() bool {
	n := r.most.AtLeast()
	return n >= fewInFive && 2*n >= r.all && time.Since(r.most.Last) < time.Minute
}

// refusesMany finds that, apart from one client that sends too many requests, the rule refuses nearly
// all others.
func refusesMany(in *inspection, r *ruleRow) finding {
	others := r.all - r.most.AtLeast()
	if !r.single() || r.recent <= fewKeys || others < max(fewInMinute, r.Minute.Allowed) {
		return finding{}
	}
	_, verb := r.refusals()
	return finding{r.Enforce > 0, fmt.Sprintf(
		"Rule %q %s many keys besides the most frequent one: at least %s keys in the last minute, in which it allowed %s requests. %s",
		r.Name, verb, number(int64(r.recent)), number(r.Minute.Allowed), in.limitHint(r)), r.Name, "", false}
}

func refusesMost(in *inspection, r *ruleRow) finding {
	n, verb := r.refusals()
	all := r.Minute.Allowed + r.Minute.Refused + r.Minute.Shadow
	if r.single() || n < fewInMinute || 2*n < all || r.keys < fewKeys {
		return finding{}
	}
	return finding{r.Enforce > 0, fmt.Sprintf("Rule %q %s %s of its requests in the last minute, from at least %s keys. %s",
		r.Name, verb, share(n, all), number(int64(r.keys)), in.limitHint(r)), r.Name, "", false}
}

func refusesOne(in *inspection, r *ruleRow) finding {
	if !r.single() {
		return finding{}
	}
	what := fmt.Sprintf("the refusals by rule %q", r.Name)
	if r.Enforce == 0 {
		what = fmt.Sprintf("what rule %q would refuse, which is in shadow", r.Name)
	}
	text := fmt.Sprintf("One key causes %s of %s in the last 5 minutes: %s (%s, %s, last refused %s ago).",
		share(r.most.AtLeast(), r.all), what, keyText(r.most.Key), number(r.most.AtLeast()), reasonText(r.most.Reason),
		ago(r.most.Last))
	if rule := ruleNamed(in.rules, r.Name); rule != nil && rule.shared(r.most.Key) {
		text += " All clients at this address share the key."
	}
	return finding{r.Enforce > 0, text, r.Name, r.most.Key, r.most.Reason == weir.ReasonBan}
}

func countsNone(in *inspection, r *ruleRow) finding {
	if n := in.h.idle(r, in.file.At); n > 0 {
		return finding{Text: in.h.idleText(r.Name, n)}
	}
	return finding{}
}

// limitHint says what a rule that refuses many keys allows, whether the file has just changed that, and
// what to do if that is an error.
func (in *inspection) limitHint(r *ruleRow) string {
	text := "It allows " + limitsText(r.Limits) + "."
	if in.file.lately() {
		if change := in.file.limit(r.Name); change != "" {
			return text + " " + change
		}
	}
	switch {
	case r.Limits == nil:
		return text + " Its limits are chosen for each request."
	case in.h.o.File != nil:
		return text + " Is this limit intended? If not, correct it in the rules file."
	}
	return text + " Is this limit intended?"
}

func keyText(key string) string {
	if key == "" {
		return "the empty key, which many clients may share,"
	}
	return fmt.Sprintf("%q", key)
}

// reasonText says why a request was refused.
func reasonText(r weir.Reason) string {
	return cmp.Or(map[weir.Reason]string{
		weir.ReasonLimit: "limited", weir.ReasonBan: "banned", weir.ReasonDeny: "denied", weir.ReasonNoKey: "no key",
		weir.ReasonPause: "paused",
	}[r], "error")
}

// limitsText returns limits as the page shows them.
func limitsText(limits []limitBody) string {
	if limits == nil {
		return "what its Policy says"
	}
	var texts []string
	for _, l := range limits {
		texts = append(texts, number(l.Quota)+" per "+durationText(l.Period))
	}
	return strings.Join(texts, " and ")
}

// A reload describes the last reload that changed rules, as far as Options.File knows.
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
func (r reload) lately() bool { return len(r.Changes) > 0 && time.Since(r.At) < reportFor }

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
	return fmt.Sprintf("The file of rules has changed it %s ago, at %s: %s.", ago(r.At), clockText(r.At),
		strings.Join(changes, "; "))
}

// manyMissed is the number of requests that a rule must fail to count before there is a finding.
// The log line about missing keys needs the same number.
const manyMissed = 200

// idle returns a number above 0 if r seems to count no requests: r has limits, and is in every
// Limiter that has another rule, but only this other rule has counted requests. The result is the
// number of requests that the other rule has allowed since the rules were loaded, in the last 15
// minutes at most.
func (h *Handler) idle(r *ruleRow, at time.Time) (n int64) {
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
	if n < manyMissed {
		return 0
	}
	return n
}

// idleText says why a rule may have counted none of n requests.
func (h *Handler) idleText(rule string, n int64) string {
	key := "its key"
	if f, ok := h.o.File.(interface{ Reads(rule string) []string }); ok {
		if reads := f.Reads(rule); len(reads) > 0 {
			key += " (" + strings.Join(reads, ", ") + ")"
		}
	}
	return fmt.Sprintf("Rule %q has counted none of %s requests that another rule allowed. They may lack %s, be in its allow list, or cost nothing.", rule, number(n), key)
}
