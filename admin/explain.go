package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/overrides"
	"github.com/seed83679106/weir/watch"
)

// An explanation says why a request that costs 1 unit would be refused now.
type explanation struct {
	Refused  *bool    `json:"refused"`            // null if something in Unknown may refuse the request, and nothing else does
	Because  []string `json:"because"`            // a sentence for each reason
	Unknown  []string `json:"unknown,omitempty"`  // a sentence for each thing that may change the answer
	Past     []string `json:"past,omitempty"`     // a sentence for each earlier offense that is remembered
	Note     string   `json:"note,omitempty"`     // the note of the key's override
	Refusals int64    `json:"refusals,omitempty"` // how often this process has refused the key in the last hour

	refusals watch.Refused
}

// Verdict returns the answer of the page.
func (e *explanation) Verdict() string {
	switch {
	case e.Refused == nil:
		return "not known"
	case *e.Refused:
		return "refused"
	}
	return "passes"
}

// explanations returns the state of a key under each of the rules, with an explanation of each
// state.
func (h *Handler) explanations(ctx context.Context, rules []rule, key string, from netip.Addr) (*stateBody, error) {
	body, err := h.states(ctx, rules, key, from)
	if err != nil {
		return nil, err
	}
	for i := range body.Rules {
		s := &body.Rules[i]
		o := h.overrideOf(s.Rule, s.key)
		s.explain(&rules[i], o.Denied)
		s.Note = o.Note
		if h.o.Top != nil {
			s.refusals, _ = h.o.Top.Find(s.Rule, s.key)
			s.Refusals = s.refusals.AtLeast()
		}
		s.recall(&rules[i])
	}
	return body, nil
}

// explain adds an explanation to the state of a key: whether the rule would refuse a request of
// the key, and for which reasons. denied reports whether an override in Options.Overrides denies it.
func (s *ruleState) explain(r *rule, denied bool) {
	s.explanation = &explanation{Because: []string{}}
	switch {
	case s.Listed == "deny" && s.denied && denied:
		s.Because = append(s.Because, "an override denies the key, such as a ban by an operator")
	case s.Listed == "deny" && s.denied:
		s.Because = append(s.Because, "a list or an override of the rule denies the key")
	case s.Listed == "deny":
		s.Because = append(s.Because, "a list of the rule denies the client")
	}
	if s.BannedFor > 0 {
		s.Because = append(s.Because, "the key is banned for another "+durationText(s.BannedFor))
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		l.Spent = max(0, l.Burst-l.Remaining)
		if l.Remaining == 0 && s.Listed == "" {
			next := "one more is free in " + durationText(l.NextAfter)
			if l.NextAfter == 0 {
				next = "one is free when a request in flight ends"
			}
			s.Because = append(s.Because, fmt.Sprintf("the limit %s has none of %d units left; %s", l.Name, l.Burst, next))
		}
	}
	refused := len(s.Because) > 0
	s.Unknown = s.unknown
	if s.Limits == nil && s.Listed == "" {
		s.Unknown = append(s.Unknown, "the limits depend on the request, and Options.Policy does not say which they are")
	}
	switch {
	case s.Listed == "allow":
		refused, s.Because = false, []string{"a list or an override of the rule allows the key"}
	case r.Enforce == weir.Percent(0):
		refused = false
		s.Because = append(s.Because, "the rule is in shadow, so it refuses no request")
	case r.Enforce != weir.Percent(100) && refused:
		s.Because = append(s.Because, fmt.Sprintf("the rule is enforced for %v of the keys, and refuses no request of the others", r.Enforce))
	}
	if refused || len(s.Unknown) == 0 || r.Enforce == weir.Percent(0) {
		s.Refused = &refused
	}
}

// recall adds what is remembered of earlier refusals to an explanation.
func (s *ruleState) recall(r *rule) {
	if o := s.offenses; o.SinceBan > 0 {
		s.Past = append(s.Past, fmt.Sprintf("the last ban of the key ended %s ago", durationText(seconds(o.SinceBan))))
	}
	if n := s.offenses.Strikes; n > 0 && s.offenses.Banned == 0 {
		s.Past = append(s.Past, fmt.Sprintf("%d of the %d refusals that bring a ban are counted", n, r.Penalty.Strikes.Capacity()))
	}
	if s.Refusals > 0 {
		verb := "has refused"
		if s.refusals.Shadow {
			verb = "would have refused"
		}
		s.Past = append(s.Past, fmt.Sprintf("this process %s the key %s times in the last hour, the last time %s ago by %s", verb, number(s.Refusals), ago(s.refusals.Last), reasonText(s.refusals.Reason)))
	}
}

// overrideOf returns the override of a key in Options.Overrides, or the zero value.
func (h *Handler) overrideOf(rule, key string) (found overrides.Override) {
	if h.o.Overrides == nil {
		return found
	}
	longest := -1
	for _, o := range h.o.Overrides.All() {
		start, isStart := strings.CutSuffix(o.Key, "*")
		switch {
		case o.Rule != rule:
		case o.Key == storedkey.Of(key):
			return o
		case isStart && strings.HasPrefix(key, start) && len(start) > longest:
			found, longest = o, len(start)
		}
	}
	return found
}
