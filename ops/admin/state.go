package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// A rule is a rule in force. If several limiters have rules with the same name, one rule
// represents all of them, because they share a state in the store.
type rule struct {
	weir.Rule
	named      bool            // the key of the query belongs to this rule, because the query names the rule or the rule has refused the key
	keys       []weir.KeyFunc  // the key functions of all rules of this name
	penalizers []*weir.Limiter // the limiters in which the rule has a Penalty
}

// rules returns the rules in force.
func (h *Handler) rules() (rules []rule) {
	index := map[string]int{}
	for _, l := range h.o.Limiters() {
		for _, r := range l.Rules() {
			i, ok := index[r.Name]
			if !ok {
				i, index[r.Name] = len(rules), len(rules)
				rules = append(rules, rule{Rule: r})
			} else {
				rules[i].merge(&r)
			}
			rules[i].keys = append(rules[i].keys, r.Key)
			if r.Penalty != nil {
				rules[i].penalizers = append(rules[i].penalizers, l)
			}
		}
	}
	return rules
}

// ruleNamed returns the rule with the given name, or nil.
func ruleNamed(rules []rule, name string) *rule {
	if i := slices.IndexFunc(rules, func(r rule) bool { return r.Name == name }); i >= 0 {
		return &rules[i]
	}
	return nil
}

// ruleOf returns the rule that a query names.
func ruleOf(rules []rule, name string) (*rule, error) {
	if r := ruleNamed(rules, name); r != nil {
		r.named = true
		return r, nil
	}
	var known []string
	for i := range rules {
		known = append(known, rules[i].Name)
	}
	return nil, refuse(http.StatusNotFound, "there is no rule %q; known are %s", name, strings.Join(known, ", "))
}

// merge adds to r, from another rule with the same name, the limits that r lacks, and the
// functions and the Penalty that are nil in r.
func (r *rule) merge(other *weir.Rule) {
	for _, l := range other.Limits {
		sharesState := func(m weir.Limit) bool { return m.Name == l.Name && m.Algorithm.Name() == l.Algorithm.Name() }
		if !slices.ContainsFunc(r.Limits, sharesState) {
			r.Limits = append(r.Limits, l)
		}
	}
	if r.Policy == nil {
		r.Policy = other.Policy
	}
	if r.Penalty == nil {
		r.Penalty = other.Penalty
	}
	if r.ForKey == nil {
		r.ForKey = other.ForKey
	}
	if r.Class == nil {
		r.Class, r.Headroom = other.Class, other.Headroom
	}
}

// own returns the policy that ForKey returns for a key.
func (r *rule) own(key string) weir.Policy {
	if r.ForKey == nil {
		return weir.Policy{}
	}
	return r.ForKey(key)
}

// limits returns the limits of a key, with the names under which they are stored. known is false
// if the limits depend on the request and Options.Policy does not return them.
func (h *Handler) limits(ctx context.Context, r *rule, key string) (limits []weir.Limit, known bool, err error) {
	own := r.own(key)
	if own.Is(weir.Unlimited()) || own.Is(weir.Denied()) {
		return nil, true, nil
	}
	base, known, err := h.base(ctx, r, scope{Key: key})
	if err != nil || !known || own.Limits() == nil {
		return base, known, err
	}
	if limits, err := overridden(r.Name, base, own.Limits()); err == nil {
		return limits, true, nil
	}
	return base, true, nil // an invalid policy is ignored
}

// base returns the limits that a key has without its own policy. For a prefix, it returns the
// Limits of the rule, because Options.Policy may return different limits for its keys.
func (h *Handler) base(ctx context.Context, r *rule, s scope) (limits []weir.Limit, known bool, err error) {
	if r.Policy != nil && h.o.Policy != nil && s.single() {
		p, err := h.o.Policy(ctx, r.Name, s.Key)
		if err != nil {
			return nil, true, err
		}
		if len(p.Limits()) > 0 {
			if limits, err = overridden(r.Name, nil, p.Limits()); err != nil {
				err = fmt.Errorf("Options.Policy: %w", err)
			}
			return limits, true, err
		}
		if !p.Is(weir.Policy{}) {
			return nil, true, nil
		}
	}
	return r.Limits, len(r.Limits) > 0, nil
}

// charges returns a charge of 0 units for each limit.
func charges(r *rule, key string, limits []weir.Limit) []quota.Charge {
	var charges []quota.Charge
	for _, l := range limits {
		l.Period += r.Buffer
		charges = append(charges, quota.Charge{Rule: r.Name, Key: key, Limit: l})
	}
	return charges
}

// A limitBody is a limit. In an override, fields that are missing have the values of the limit that it
// replaces.
type limitBody struct {
	Name      string  `json:"name,omitempty"`
	Algorithm string  `json:"algorithm,omitempty"`
	Quota     int64   `json:"quota"`
	Period    float64 `json:"period,omitempty"`
	Burst     int64   `json:"burst,omitempty"` // the maximum number of units at once
}

func bodyOf(l weir.Limit) limitBody {
	return limitBody{l.Label(), l.Algorithm.Name(), l.Quota, l.Period.Seconds(), l.Capacity()}
}

type limitState struct {
	limitBody
	Remaining  int64   `json:"remaining"`
	NextAfter  float64 `json:"next_after"`
	ResetAfter float64 `json:"reset_after"`
	Spent      int64   `json:"spent,omitempty"` // only in an explanation

	Classes map[string]int64 `json:"classes,omitempty"` // what Remaining leaves to each class that has a headroom
}

type ruleState struct {
	Rule      string       `json:"rule"`
	LookedUp  *string      `json:"looked_up,omitempty"` // the key that was looked up, if it differs from the key of the answer
	Listed    string       `json:"listed,omitempty"`
	Own       bool         `json:"overridden,omitempty"` // the key has a policy of its own
	denied    bool         // the key's own policy denies it
	BannedFor float64      `json:"banned_for"`
	Limits    []limitState `json:"limits"` // null if the limits depend on the request and are unknown
	Unchecked string       `json:"unchecked,omitempty"`
	*explanation

	lookup
	banned, sinceBan time.Duration // see weir.Limiter.Offenses
	strikes          int64
}

// KeyOr returns LookedUp, the key that was looked up, or typed if LookedUp is not set.
func (s *ruleState) KeyOr(typed string) string {
	if s.LookedUp != nil {
		return *s.LookedUp
	}
	return typed
}

// unchecked is the text about an override whose limits could not be compared with those that Policy
// chooses.
const unchecked = "the override was not compared with the limits that Policy chooses for a request. If it fits none of them, a request logs that, and the override has no effect"

type stateBody struct {
	Key   string      `json:"key"`
	Rules []ruleState `json:"rules"`

	Unchanged string `json:"unchanged,omitempty"` // why a change has changed nothing
}

// states returns the state of a key under each of the rules, for a client at the address from,
// which may be invalid. It calls the store once for the limits of each rule, and once more for each rule
// that has a penalty.
func (h *Handler) states(ctx context.Context, rules []rule, key string, from netip.Addr) (*stateBody, error) {
	body := &stateBody{Key: storedkey.Of(key), Rules: []ruleState{}}
	for i := range rules {
		r := &rules[i]
		if !r.named {
			_, r.named = h.o.Top.Find(r.Name, key)
		}
		s, err := r.state(ctx, h.lookUp(r, key, from))
		if err == nil {
			err = h.look(ctx, r, &s)
		}
		if err != nil {
			return nil, err
		}
		if s.key != key {
			stored := storedkey.Of(s.key)
			s.LookedUp = &stored
		}
		body.Rules = append(body.Rules, s)
	}
	return body, nil
}

// look sets the Limits of a state, or Unchecked if they are not known.
func (h *Handler) look(ctx context.Context, r *rule, s *ruleState) error {
	limits, known, err := h.limits(ctx, r, s.key)
	if !known && s.Own {
		s.Unchecked = unchecked
	}
	if err != nil || !known {
		return err
	}
	s.Limits = []limitState{}
	if len(limits) == 0 {
		return nil
	}
	t, err := quota.Peek(ctx, h.store, charges(r, s.key, limits)...)
	if err != nil {
		return err
	}
	for i, l := range limits {
		l.Divide(max(1, t.Replicas)) // Remaining is for this replica's share
		d := &t.Decisions[i]
		classes := map[string]int64{}
		for class, percent := range r.Headroom {
			classes[class] = max(0, d.Remaining-l.Headroom(percent))
		}
		s.Limits = append(s.Limits, limitState{bodyOf(l), d.Remaining, seconds(d.NextAfter), seconds(d.ResetAfter), 0, classes})
	}
	return nil
}

// seconds returns d in seconds, truncated to microseconds, so that JSON has at most six decimals.
// Duration.Seconds rounds twice and returns 9.869758000000001 for 9.869758 s.
func seconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

// state returns the ruleState of the key that was looked up, without Limits.
func (r *rule) state(ctx context.Context, l lookup) (s ruleState, err error) {
	s = ruleState{Rule: r.Name, lookup: l}
	own := r.own(l.key)
	policy, known := policyAt(r.Policy, l.from)
	s.Own, s.denied = !own.Is(weir.Policy{}) && !own.Is(weir.Allowed()), own.Is(weir.Denied())
	final := false
	if s.Listed, final = listedBy(own, policy); final {
		s.unknown = nil
	} else if !known && (l.from.IsValid() || !l.keyless) {
		by := "its address, which is not given"
		if l.from.IsValid() {
			by = "more than its address"
		}
		s.unknown = append(s.unknown, "a list or the Policy of the rule may allow or deny the client by "+by)
	}
	if s.Listed == "" && strings.HasPrefix(l.key, "sha256:") && r.ForKey != nil {
		s.unknown = append(s.unknown, "the key is a digest, so a policy that needs the whole key was not found")
	}
	if len(r.penalizers) > 0 {
		s.banned, s.sinceBan, s.strikes, err = r.penalizers[0].Offenses(ctx, r.Name, l.key)
		s.BannedFor = seconds(s.banned)
	}
	return s, err
}

// listedBy returns "allow" or "deny" if the policies of a key and of its client exempt or deny it.
// final is true if no other list could change the result, because Allowed takes precedence over
// Denied, and Unlimited does not.
func listedBy(key, client weir.Policy) (listed string, final bool) {
	switch {
	case key.Is(weir.Allowed()) || client.Is(weir.Allowed()):
		return "allow", true
	case key.Is(weir.Denied()) || client.Is(weir.Denied()):
		return "deny", true
	case key.Is(weir.Unlimited()):
		return "allow", false
	}
	return "", false
}

type ruleBody struct {
	Name    string       `json:"name"`
	Unit    string       `json:"unit"`
	Enforce float64      `json:"enforce"` // the percentage of keys for which the rule is enforced
	Limits  []limitBody  `json:"limits"`  // null if the limits depend on the request
	Penalty *penaltyBody `json:"penalty,omitempty"`

	Headroom map[string]int `json:"headroom,omitempty"` // the percentage of each limit that a class leaves to others
}

type penaltyBody struct {
	Strikes limitBody `json:"strikes"`
	For     float64   `json:"for"`
	Most    float64   `json:"most"`
}

// rulesAnswer returns the rules in force.
func (h *Handler) rulesAnswer(c *call) (any, error) {
	body := struct {
		Version string       `json:"version,omitempty"`
		Reloads *reloadsBody `json:"reloads,omitempty"`
		Rules   []ruleBody   `json:"rules"`
	}{Rules: bodiesOf(c.rules)}
	if f := h.o.File; f != nil {
		body.Version, body.Reloads = f.Version(), &reloadsBody{}
		body.Reloads.Loaded, body.Reloads.Failed = f.Reloads()
		if at := h.reloaded().At; !at.IsZero() {
			body.Reloads.At = at.UTC().Format(time.RFC3339)
		}
		if err := f.Err(); err != nil {
			body.Reloads.Error = err.Error()
		}
	}
	return body, nil
}

type reloadsBody struct {
	Loaded int64  `json:"loaded"`
	Failed int64  `json:"failed"`
	Error  string `json:"error,omitempty"` // of the last reload, if it failed
	At     string `json:"at,omitempty"`    // when the rules in force were loaded, if known
}

func bodiesOf(rules []rule) []ruleBody {
	bodies := []ruleBody{}
	for _, r := range rules {
		b := ruleBody{Name: r.Name, Unit: r.Unit, Enforce: r.Enforce.Percent(), Headroom: r.Headroom}
		for _, l := range r.Limits {
			b.Limits = append(b.Limits, bodyOf(l))
		}
		if p := r.Penalty; p != nil {
			most := cmp.Or(p.MaxDuration, max(24*time.Hour, p.Duration)) // the default of weir.Penalty
			b.Penalty = &penaltyBody{bodyOf(p.Strikes), p.Duration.Seconds(), most.Seconds()}
		}
		bodies = append(bodies, b)
	}
	return bodies
}
