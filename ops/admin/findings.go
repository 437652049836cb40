package admin

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
)

// A finding describes a probable problem in a sentence.
type finding struct {
	Bad       bool // clients are affected; otherwise it may be what the operator wants
	Text      string
	Rule, Key string // what to look up, or ""
	Banned    bool   // the key was banned at its last refusal
}

// A finding requires at least fewInMinute refusals in a minute, or fewInFive in 5 minutes. Fewer
// than fewKeys keys do not count as many clients.
const (
	fewInMinute = 10
	fewInFive   = 20
	fewKeys     = 3
)

// An inspection collects findings, the most urgent first.
type inspection struct {
	h     *Handler
	rules []rule
	file  reload
	list  []finding
}

// findings returns the findings about the process first. The findings about each rule follow, then
// those that need no action, and then the warnings in Options.Recorder.
func (h *Handler) findings(bar *statusBar, rows []ruleRow, rules []rule) []finding {
	in := &inspection{h: h, rules: rules, file: h.reloaded()}
	in.process(bar)
	for i := range rows {
		in.refusing(&rows[i])
	}
	if in.file.lately() {
		in.add(finding{Text: in.file.Text()})
	}
	if bar.Active == 0 {
		in.add(finding{Text: bar.outageText()})
	}
	for _, w := range h.o.Recorder.Warnings(time.Hour) {
		of := ""
		if w.Rule != "" {
			of = fmt.Sprintf(" of rule %q", w.Rule)
		}
		in.add(finding{Text: fmt.Sprintf("Probable misconfiguration%s: %s.", of, w.Text)})
	}
	return in.list
}

// add adds a finding, unless it has no text.
func (in *inspection) add(f finding) {
	if f.Text != "" {
		in.list = append(in.list, f)
	}
}

// process adds findings about the store, the file and the overrides.
func (in *inspection) process(bar *statusBar) {
	switch {
	case bar.Active > 0:
		in.add(finding{Bad: true, Text: bar.outageText()})
	case bar.Open > 0:
		in.add(finding{Bad: true, Text: "The breaker is open: the store has failed again and again, and is called only now and then. The log has the error. Once the store works, the breaker closes by itself."})
	}
	if failed := bar.Minute.Failed; failed > 0 {
		cause, _ := in.h.o.Recorder.Failure()
		in.add(finding{Bad: bar.Failing, Text: fmt.Sprintf(
			"%s of %s requests in the last minute could not be decided, because %s: %s were allowed without a limit, and %s were refused with 503. The log has the error.",
			number(failed), number(bar.Requests()), causeText(cause), number(bar.Minute.Passed),
			number(failed-bar.Minute.Passed))})
	}
	if f := in.h.o.File; f != nil && f.Err() != nil {
		in.add(finding{Bad: true, Text: fmt.Sprintf("The rules file was not reloaded, so the rules in force are older than the file: %v", f.Err())})
	}
	if in.h.o.Overrides.Err() != nil {
		in.add(finding{Bad: true, Text: "The overrides cannot be read, so changes by other processes are not known here. The log has the error."})
	}
}

// refusing adds a finding if a rule refuses most of its requests, or if one key causes half of its
// refusals. Both can be true: one client sends too many requests, and the rule refuses nearly all
// other requests, too.
func (in *inspection) refusing(r *ruleRow) {
	n, verb := r.Minute.Refused, "refuses"
	if r.Enforce == 0 { // it is in shadow for all keys
		n, verb = r.Minute.Shadow, "is in shadow, and would refuse"
	}
	all := r.Minute.Allowed + r.Minute.Refused + r.Minute.Shadow
	most := r.most.AtLeast()
	single := most >= fewInFive && 2*most >= r.all && time.Since(r.most.Last) < time.Minute
	switch {
	case single && r.recent > fewKeys && r.all-most >= max(fewInMinute, r.Minute.Allowed):
		in.add(finding{Bad: r.Enforce > 0, Rule: r.Name, Text: fmt.Sprintf(
			"Rule %q %s many keys besides the most frequent one: at least %s keys in the last minute, in which it allowed %s requests. %s",
			r.Name, verb, number(int64(r.recent)), number(r.Minute.Allowed), in.limitHint(r))})
	case !single && n >= fewInMinute && 2*n >= all && r.keys >= fewKeys:
		in.add(finding{Bad: r.Enforce > 0, Rule: r.Name, Text: fmt.Sprintf(
			"Rule %q %s %s of its requests in the last minute, from at least %s keys. %s",
			r.Name, verb, share(n, all), number(int64(r.keys)), in.limitHint(r))})
	}
	if single {
		in.oneKey(r, most)
	}
}

// oneKey adds the finding that one key causes most of the refusals of a rule.
func (in *inspection) oneKey(r *ruleRow, most int64) {
	who, what := strconv.Quote(r.most.Key), fmt.Sprintf("the refusals by rule %q", r.Name)
	if r.Enforce == 0 {
		what = fmt.Sprintf("what rule %q would refuse, which is in shadow", r.Name)
	}
	if r.most.Key == "" {
		who = "the empty key, which many clients may share,"
	}
	text := fmt.Sprintf("One key causes %s of %s in the last 5 minutes: %s (%s, %s, last refused %s ago).",
		share(most, r.all), what, who, number(most), reasonText(r.most.Reason), ago(r.most.Last))
	if rule := ruleNamed(in.rules, r.Name); rule != nil && rule.shared(r.most.Key) {
		text += " All clients at this address share the key."
	}
	in.add(finding{r.Enforce > 0, text, r.Name, r.most.Key, r.most.Reason == weir.ReasonBan})
}

// limitHint describes the limits of a rule that refuses many keys. If the limits have just been
// changed in the file, another finding says so.
func (in *inspection) limitHint(r *ruleRow) string {
	var limits []string
	for _, l := range r.Limits {
		limits = append(limits, number(l.Quota)+" per "+durationText(l.Period))
	}
	text := "It allows " + strings.Join(limits, " and ") + "."
	switch {
	case r.Limits == nil:
		return "It allows what its Policy says. Its limits are chosen for each request."
	case in.h.o.File != nil:
		return text + " Is this limit intended? If not, correct it in the rules file."
	}
	return text + " Is this limit intended?"
}

// reasonText describes why a request was refused.
func reasonText(r weir.Reason) string {
	return cmp.Or(map[weir.Reason]string{
		weir.ReasonLimit: "limited", weir.ReasonBan: "banned", weir.ReasonDeny: "denied", weir.ReasonNoKey: "no key",
		weir.ReasonPause: "paused",
	}[r], "error")
}

// A reload describes the last reload that changed rules, as far as Options.File knows.
type reload struct {
	At      time.Time // zero if the time at which the rules in force were loaded is unknown
	Changes []string  // in sentences such as "api: limit 1m (gcra): 100 per 1m → 10 per 1m"
}

// reloaded returns the time at which the rules in force were loaded, and the changes made by this
// reload.
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

// Text describes when the file was read, and up to five of the changes.
func (r reload) Text() string {
	text := strings.Join(r.Changes[:min(5, len(r.Changes))], "; ")
	if more := len(r.Changes) - 5; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Sprintf("The file of rules was read %s ago, at %s, and changed %s.", ago(r.At), clockText(r.At), text)
}
