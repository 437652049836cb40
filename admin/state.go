package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed83679106/weir"
)

// A rule is one in force, with what is said of it in several limiters, as states
// of rules of one name are the same.
type rule struct {
	weir.Rule
	keys       []weir.KeyFunc  // in each
	penalizers []*weir.Limiter // those in which it has a Penalty
}

// rules returns the rules in force, or the one that the query names.
func (h *Handler) rules(q url.Values) ([]rule, error) {
	var rules []rule
	var known []string
	index := map[string]int{}
	for _, l := range h.o.Limiters() {
		for _, r := range l.Rules() {
			i, ok := index[r.Name]
			if !ok {
				i, index[r.Name] = len(rules), len(rules)
				rules, known = append(rules, rule{Rule: r}), append(known, r.Name)
			} else {
				rules[i].merge(&r)
			}
			rules[i].keys = append(rules[i].keys, r.Key)
			if r.Penalty != nil {
				rules[i].penalizers = append(rules[i].penalizers, l)
			}
		}
	}
	if !q.Has("rule") {
		return rules, nil
	}
	i, ok := index[q.Get("rule")]
	if !ok {
		return nil, refuse(http.StatusNotFound, "there is no rule %q; there are %s", q.Get("rule"), strings.Join(known, ", "))
	}
	return rules[i : i+1], nil
}

// merge adds to r what it lacks of a rule of its name.
func (r *rule) merge(other *weir.Rule) {
	for _, l := range other.Limits {
		if !r.counts(l) {
			r.Limits = append(r.Limits, l)
		}
	}
	if r.LimitsFor == nil {
		r.LimitsFor = other.LimitsFor
	}
	if r.Penalty == nil {
		r.Penalty = other.Penalty
	}
}

// counts reports whether the states of a limit are those of another that the
// rule has.
func (r *rule) counts(limit weir.Limit) bool {
	for _, l := range r.Limits {
		if l.Name == limit.Name && l.Algorithm.Name() == limit.Algorithm.Name() {
			return true
		}
	}
	return false
}

// limits returns the limits of a key, named as in force. known is false where
// they depend on a request.
func (h *Handler) limits(ctx context.Context, r *rule, key string) (limits []weir.Limit, known bool, err error) {
	if r.LimitsFor == nil {
		return r.Limits, true, nil
	}
	if h.o.LimitsFor == nil {
		return nil, false, nil
	}
	if limits, err = h.o.LimitsFor(ctx, r.Name, key); err != nil || len(limits) == 0 {
		return nil, true, err
	}
	l, err := weir.New(h.store, weir.Options{Rules: []weir.Rule{{Name: r.Name, Key: weir.Global(), Limits: limits}}})
	if err != nil {
		return nil, true, fmt.Errorf("Options.LimitsFor: %w", err)
	}
	return l.Rules()[0].Limits, true, nil
}

func charges(r *rule, key string, limits []weir.Limit) []weir.Charge {
	var charges []weir.Charge
	for _, l := range limits {
		charges = append(charges, weir.Charge{Rule: r.Name, Key: key, Limit: l})
	}
	return charges
}

type limitBody struct {
	Name      string  `json:"name"`
	Algorithm string  `json:"algorithm"`
	Quota     int64   `json:"quota"`
	Period    float64 `json:"period"`
	Burst     int64   `json:"burst"` // the most that fits at once
}

func bodyOf(l weir.Limit) limitBody {
	return limitBody{l.StoredName(), l.Algorithm.Name(), l.Quota, l.Period.Seconds(), l.Capacity()}
}

type limitState struct {
	limitBody
	Remaining  int64   `json:"remaining"`
	NextAfter  float64 `json:"next_after"`
	ResetAfter float64 `json:"reset_after"`
}

type ruleState struct {
	Rule      string       `json:"rule"`
	Listed    string       `json:"listed,omitempty"`
	BannedFor float64      `json:"banned_for"`
	Limits    []limitState `json:"limits"` // null if they depend on a request
}

type stateBody struct {
	Key   string      `json:"key"`
	Rules []ruleState `json:"rules"`
}

// states asks the store once for all limits of the rules, and once more for each
// that has a penalty.
func (h *Handler) states(ctx context.Context, rules []rule, key string) (any, error) {
	body := stateBody{Key: weir.StoredKey(key), Rules: []ruleState{}}
	var all []weir.Charge
	for i := range rules {
		r := &rules[i]
		s := ruleState{Rule: r.Name}
		switch {
		case r.Allow != nil && r.Allow(key):
			s.Listed = "allow"
		case r.Deny != nil && r.Deny(key):
			s.Listed = "deny"
		}
		if len(r.penalizers) > 0 {
			rest, err := r.penalizers[0].Banned(ctx, r.Name, key)
			if err != nil {
				return nil, err
			}
			s.BannedFor = rest.Seconds()
		}
		limits, known, err := h.limits(ctx, r, key)
		if err != nil {
			return nil, err
		}
		if known {
			s.Limits = make([]limitState, len(limits))
		}
		for j, l := range limits {
			s.Limits[j].limitBody = bodyOf(l)
		}
		all = append(all, charges(r, key, limits)...)
		body.Rules = append(body.Rules, s)
	}
	if len(all) == 0 {
		return body, nil
	}
	t, err := weir.Peek(ctx, h.store, all...)
	if err != nil {
		return nil, err
	}
	n := 0
	for i := range body.Rules {
		for j := range body.Rules[i].Limits {
			s, d := &body.Rules[i].Limits[j], t.Decisions[n]
			s.Remaining, s.NextAfter, s.ResetAfter = d.Remaining, d.NextAfter.Seconds(), d.ResetAfter.Seconds()
			n++
		}
	}
	return body, nil
}

type ruleBody struct {
	Name    string       `json:"name"`
	Unit    string       `json:"unit"`
	Shadow  float64      `json:"shadow"` // the share of keys
	Limits  []limitBody  `json:"limits"` // null if they depend on a request
	Penalty *penaltyBody `json:"penalty,omitempty"`
}

type penaltyBody struct {
	Strikes limitBody `json:"strikes"`
	For     float64   `json:"for"`
	Most    float64   `json:"most"`
}

func (h *Handler) rulesBody(r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	rules, err := h.rules(q)
	if err != nil {
		return nil, err
	}
	body := struct {
		Rules []ruleBody `json:"rules"`
	}{[]ruleBody{}}
	for _, r := range rules {
		b := ruleBody{Name: r.Name, Unit: r.Unit, Shadow: r.Shadow}
		for _, l := range r.Limits {
			b.Limits = append(b.Limits, bodyOf(l))
		}
		if p := r.Penalty; p != nil {
			most := p.MaxDuration
			if most == 0 {
				most = max(24*time.Hour, p.Duration) // as weir.Penalty has it
			}
			b.Penalty = &penaltyBody{bodyOf(p.Strikes), p.Duration.Seconds(), most.Seconds()}
		}
		body.Rules = append(body.Rules, b)
	}
	return body, nil
}
