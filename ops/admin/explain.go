package admin

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/configfile"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

// An explanation describes why a request that costs 1 unit would be refused now.
type explanation struct {
	Refused  *bool    `json:"refused"`            // null if something in Unknown may refuse the request, and nothing else does
	Because  []string `json:"because"`            // a sentence for each reason
	Unknown  []string `json:"unknown,omitempty"`  // a sentence for each unknown that may change the answer
	Past     []string `json:"past,omitempty"`     // a sentence for each earlier offense that is remembered
	Note     string   `json:"note,omitempty"`     // the note of the key's override
	Refusals int64    `json:"refusals,omitempty"` // how often this process has refused the key in the last hour
	Unseen   bool     `json:"unseen,omitempty"`   // the key has spent nothing, and this process has not refused it in the last hour
	Similar  []string `json:"similar,omitempty"`  // keys that are refused, banned or overridden, if the key is unseen

	refusals watch.Refused
}

// Answer returns the explanation in a word or two.
func (e *explanation) Answer() string {
	switch {
	case e.Refused == nil:
		return "not known"
	case *e.Refused:
		return "refused"
	}
	return "allowed"
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
		s.refusals, _ = h.o.Top.Find(s.Rule, s.key)
		s.Refusals = s.refusals.AtLeast()
		s.recall(&rules[i])
		h.findSimilar(s)
	}
	return body, nil
}

// findSimilar sets Unseen and adds similar keys if nothing is known about the key, which may be
// misspelled.
func (h *Handler) findSimilar(s *ruleState) {
	s.Unseen = s.Limits != nil && !slices.ContainsFunc(s.Limits,
		func(l limitState) bool { return l.Remaining < l.Burst }) &&
		s.BannedFor == 0 && !s.Own && s.Listed == "" && s.Refusals == 0 && !s.keyless
	if s.Unseen && s.key != "" {
		s.Similar = similar(storedkey.Of(s.key), h.knownKeys(s.Rule))
	}
}

// knownKeys returns the keys of a rule that this process has refused in the last hour, that it
// knows to be banned, or that have an override.
func (h *Handler) knownKeys(rule string) (keys []string) {
	add := func(of, key string) {
		if of == rule && key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	refused, _ := h.o.Top.Keys(time.Hour)
	for _, r := range refused {
		add(r.Rule, r.Key)
	}
	for _, b := range h.o.Bans.Keys() {
		add(b.Rule, b.Key)
	}
	for _, o := range h.o.Overrides.All() {
		add(o.Rule, o.Key)
	}
	return keys
}

// similar returns up to five known keys that contain the key or are contained in it, whatever their
// letter case. If there are none, it returns the most similar known key, if it is similar enough.
func similar(key string, known []string) (list []string) {
	typed := strings.ToLower(key)
	for _, k := range known {
		lower := strings.ToLower(k)
		if len(list) < 5 && (strings.Contains(lower, typed) || strings.Contains(typed, lower)) {
			list = append(list, k)
		}
	}
	if near := configfile.Nearest(key, known, 1+len(key)/4); near != "" && len(list) == 0 {
		list = []string{near}
	}
	return list
}

// explain adds an explanation to the state of a key: whether the rule would refuse a request with
// the key, and for which reasons. denied reports whether an override in Options.Overrides denies
// the key.
func (s *ruleState) explain(r *rule, denied bool) {
	s.explanation = &explanation{Because: s.reasons(denied)}
	refused := len(s.Because) > 0
	s.Unknown = s.unknown
	if s.Limits == nil && s.Listed == "" {
		s.Unknown = append(s.Unknown, "the limits depend on the request, and Options.Policy does not say which they are")
	}
	inShadow := !r.Enforce.Enforces(r.Name, s.key)
	switch {
	case s.Listed == "allow":
		refused, s.Because = false, []string{"a list or an override of the rule allows the key"}
	case r.Enforce == weir.Percent(0):
		refused = false
		s.Because = append(s.Because, "the rule is in shadow, so it refuses no request")
	case inShadow:
		refused = false
		s.Because = append(s.Because, fmt.Sprintf("the rule is enforced for %v of the keys, and for this key it is in shadow", r.Enforce))
	}
	if refused || len(s.Unknown) == 0 || inShadow {
		s.Refused = &refused
	}
	if s.Listed == "" {
		s.explainClasses(r)
	}
}

// explainClasses adds a sentence for each class that a limit refuses although the limit has
// units left for other classes.
func (s *ruleState) explainClasses(r *rule) {
	for _, class := range slices.Sorted(maps.Keys(r.Headroom)) {
		for i := range s.Limits {
			if l := &s.Limits[i]; l.Remaining > 0 && l.Classes[class] == 0 {
				s.Because = append(s.Because, fmt.Sprintf("requests of the class %s are refused: they leave %d%% of the limit %s to others, which has %d of %d units left",
					class, r.Headroom[class], l.Name, l.Remaining, l.Burst))
			}
		}
	}
}

// reasons returns why a request with the key would be refused, in sentences.
func (s *ruleState) reasons(denied bool) []string {
	because := []string{}
	if s.Listed == "deny" {
		by := "a list of the rule denies the client"
		switch {
		case s.denied && denied:
			by = "an override denies the key, such as a ban by an operator"
		case s.denied:
			by = "a list or an override of the rule denies the key"
		}
		because = append(because, by)
	}
	if s.BannedFor > 0 {
		because = append(because, "the key is banned for another "+durationText(s.BannedFor))
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		l.Spent = max(0, l.Burst-l.Remaining)
		if l.Remaining != 0 || s.Listed != "" {
			continue
		}
		next := "the next one is available in " + durationText(l.NextAfter)
		if l.NextAfter == 0 {
			next = "the next one is available when a request in flight ends"
		}
		because = append(because, fmt.Sprintf("the limit %s has none of %d units left; %s", l.Name, l.Burst, next))
	}
	return because
}

// recall adds what is remembered of earlier refusals to an explanation.
func (s *ruleState) recall(r *rule) {
	if s.sinceBan > 0 {
		s.Past = append(s.Past, fmt.Sprintf("the last ban of the key ended %s ago", durationText(seconds(s.sinceBan))))
	}
	if n := s.strikes; n > 0 && s.banned == 0 {
		s.Past = append(s.Past, fmt.Sprintf("%d of the %d refusals that bring a ban are counted", n,
			r.Penalty.Strikes.Capacity()))
	}
	if s.Refusals > 0 {
		verb := "has refused"
		if s.refusals.Shadow {
			verb = "would have refused"
		}
		s.Past = append(s.Past, fmt.Sprintf("this process %s the key %s times in the last hour, the last time %s ago (%s)",
			verb, number(s.Refusals), ago(s.refusals.Last), reasonText(s.refusals.Reason)))
	}
}

// overrideOf returns the override of a key in Options.Overrides, or the zero value.
func (h *Handler) overrideOf(rule, key string) (found overrides.Override) {
	longest := -1
	for _, o := range h.o.Overrides.All() {
		switch {
		case o.Rule != rule || o.Network.IsValid():
		case o.Key != "" && o.Key == storedkey.Of(key):
			return o
		case o.Key == "" && strings.HasPrefix(key, o.Prefix) && len(o.Prefix) > longest:
			found, longest = o, len(o.Prefix)
		}
	}
	return found
}
