package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed83679106/weir"
)

// A finding is a probable cause of trouble, in a sentence.
type finding struct {
	Bad       bool // clients suffer; otherwise it may be what the operator wants
	Text      string
	Rule, Key string // what to look up, or ""
}

// Fewer refusals than these in a minute, or in 5 minutes, are no finding, and fewer keys are not many
// clients.
const (
	fewInMinute = 10
	fewInFive   = 20
	fewKeys     = 3
)

// findings returns what stands out, the worst first.
func (h *Handler) findings(s *strip, rows []ruleRow, rules []rule) (list []finding) {
	add := func(bad bool, rule, key, format string, args ...any) {
		list = append(list, finding{bad, fmt.Sprintf(format, args...), rule, key})
	}
	outage := s.outageText()
	if s.Active > 0 {
		add(true, "", "", "%s", outage)
	} else if s.Open > 0 {
		add(true, "", "", "The breaker is open: the store has failed again and again, and is called only now and then. The log has the error. Once the store works, the breaker closes by itself.")
	}
	if f := s.Minute.Failed; f > 0 {
		cause, _ := h.o.Traffic.Failure()
		add(s.Failing, "", "", "%s of %s requests in the last minute could not be decided, because %s: %s passed without a limit, and %s were refused with 503. The log has the error.",
			number(f), number(s.Requests()), causeText(cause), number(s.Minute.Passed), number(f-s.Minute.Passed))
	}
	if f := h.o.File; f != nil && f.Err() != nil {
		add(true, "", "", "The file of rules was not reloaded, so the rules in force are older than the file: %v", f.Err())
	}
	if o := h.o.Overrides; o != nil && o.Err() != nil {
		add(true, "", "", "The overrides cannot be read, so changes by other processes are not known here. The log has the error.")
	}
	file := h.reloaded()
	for i := range rows {
		r := &rows[i]
		refused, verb := r.Minute.Refused, "refuses"
		if r.Enforce == 0 {
			refused, verb = r.Minute.Shadow, "is in shadow, and would refuse"
		}
		all := r.Minute.Allowed + r.Minute.Refused + r.Minute.Shadow
		alone := r.most.AtLeast() >= fewInFive && 2*r.most.AtLeast() >= r.all && time.Since(r.most.Last) < time.Minute
		hint := h.limitHint(r, file)
		switch others := r.all - r.most.AtLeast(); {
		case alone && r.recent > fewKeys && others >= max(fewInMinute, r.Minute.Allowed):
			// One client that sends too many requests must not hide that the rule refuses nearly all others.
			add(r.Enforce > 0, r.Name, "", "Rule %q %s many keys, not only the one named below: %s keys or more in the last minute, in which it allowed %s requests. %s",
				r.Name, verb, number(int64(r.recent)), number(r.Minute.Allowed), hint)
		case !alone && refused >= fewInMinute && 2*refused >= all && r.keys >= fewKeys:
			add(r.Enforce > 0, r.Name, "", "Rule %q %s %s of its requests in the last minute, of %s keys or more, and of none above all. %s",
				r.Name, verb, share(refused, all), number(int64(r.keys)), hint)
		}
		if alone {
			sharers := ""
			if rule := ruleNamed(rules, r.Name); rule != nil && rule.shared(r.most.Key) {
				sharers = " All clients at this address share the key."
			}
			add(r.Enforce > 0, r.Name, r.most.Key, "Rule %q %s one key above all: %s has %s of the refusals of the last 5 minutes (%s), by %s, the last %s ago.%s",
				r.Name, verb, keyText(r.most.Key), share(r.most.AtLeast(), r.all), number(r.most.AtLeast()), reasonText(r.most.Reason), ago(r.most.Last), sharers)
		}
		if n := h.aside(r, file.At); n > 0 {
			add(false, "", "", "%s", h.asideText(r.Name, n))
		}
	}
	if file.lately() {
		add(false, "", "", "%s", file.Text())
	}
	if outage != "" && s.Active == 0 {
		add(false, "", "", "%s", outage)
	}
	return list
}

// limitHint says what a rule that refuses many keys allows, whether the file has just changed that, and
// what to do if that is an error.
func (h *Handler) limitHint(r *ruleRow, file reload) string {
	text := "It allows " + limitsText(r.Limits) + "."
	if file.lately() {
		if change := file.limit(r.Name); change != "" {
			return text + " " + change
		}
	}
	switch {
	case r.Limits == nil:
		return text + " Its limits are chosen for each request."
	case h.o.File != nil:
		return text + " Is that limit meant? If not, correct it in the file of rules."
	}
	return text + " Is that limit meant?"
}

func keyText(key string) string {
	if key == "" {
		return "the empty key, which many clients may share,"
	}
	return fmt.Sprintf("%q", key)
}

// reasonText says by what a request was refused.
func reasonText(r weir.Reason) string {
	switch r {
	case weir.ReasonLimit:
		return "a limit"
	case weir.ReasonBan:
		return "a ban"
	case weir.ReasonDeny:
		return "a deny list or an override"
	case weir.ReasonNoKey:
		return "the lack of a key"
	case weir.ReasonPause:
		return "a pause"
	}
	return "an error"
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
