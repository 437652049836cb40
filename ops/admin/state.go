package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/configfile"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

// A rule represents a rule in force. If several limiters have rules with the same name, one value
// represents all of them, because they share a state in the store.
type rule struct {
	weir.Rule
	named      bool            // the query's key belongs to this rule: the query names the rule, or the rule has refused the key
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

// base returns the limits that a key has without its own policy. For a prefix, base returns the
// Limits of the rule, because Options.Policy may return different limits for the keys with this
// prefix.
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

// A limitBody describes a limit in JSON. In an override, missing fields have the values of the
// limit that is replaced.
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
	Own       bool         `json:"overridden,omitempty"` // the key has its own policy
	denied    bool         // the key's own policy denies it
	BannedFor float64      `json:"banned_for"`
	Limits    []limitState `json:"limits"` // null if the limits depend on the request and are unknown
	Unchecked string       `json:"unchecked,omitempty"`
	*explanation

	lookup
	banned, sinceBan time.Duration // see weir.Limiter.Offenses
	strikes          int64
}

// KeyOr returns LookedUp, which is the key that was looked up. If LookedUp is not set, KeyOr
// returns its argument.
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

	Unchanged string `json:"unchanged,omitempty"` // why the change had no effect
}

// states returns the state of a key under each of the rules, for a client at the address from,
// which may be invalid. The store is called once for the limits of each rule, and once more for
// each rule that has a penalty.
func (h *Handler) states(ctx context.Context, rules []rule, key string, from netip.Addr) (*stateBody, error) {
	body := &stateBody{Key: storedkey.Of(key), Rules: []ruleState{}}
	for i := range rules {
		r := &rules[i]
		if !r.named {
			_, r.named = h.o.Recorder.Find(r.Name, key)
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

// seconds returns d in seconds, truncated to microseconds, so that the JSON number has at most six
// decimals. Duration.Seconds would round twice, and would return 9.869758000000001 for 9.869758 s.
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
		s.unknown = append(s.unknown, byClient+by)
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
// final is true if no other list could change the result: Allowed takes precedence over Denied, but
// Unlimited does not.
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
			b.Penalty = &penaltyBody{bodyOf(p.Strikes), p.Duration.Seconds(), ban.LongestOf(p.Duration, p.MaxDuration).Seconds()}
		}
		bodies = append(bodies, b)
	}
	return bodies
}

// An explanation describes why a request that costs 1 unit would be refused now.
type explanation struct {
	Refused  *bool    `json:"refused"`            // null if something in Unknown may refuse the request and nothing else refuses it
	Because  []string `json:"because"`            // a sentence for each reason
	Unknown  []string `json:"unknown,omitempty"`  // a sentence for each unknown that may change the answer
	Past     []string `json:"past,omitempty"`     // a sentence for each earlier offense that is remembered
	Note     string   `json:"note,omitempty"`     // the note of the key's override
	Refusals int64    `json:"refusals,omitempty"` // how often this process has refused the key in the last hour
	Unseen   bool     `json:"unseen,omitempty"`   // the key has spent nothing, and this process has not refused it in the last hour
	Similar  []string `json:"similar,omitempty"`  // keys that are refused, banned or overridden, if the key is unseen

	refusals watch.Refused
}

// byClient begins the sentence about a client of whom too little is known.
const byClient = "a list or the Policy of the rule may allow or deny the client by "

// Answer returns the explanation in a few words.
func (e *explanation) Answer() string {
	switch {
	case e.Refused == nil && len(e.Unknown) == 1 && strings.HasPrefix(e.Unknown[0], byClient):
		return "allowed by its limits"
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
		s.refusals, _ = h.o.Recorder.Find(s.Rule, s.key)
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
	refused, _ := h.o.Recorder.Top(time.Hour)
	for _, r := range refused {
		add(r.Rule, r.Key)
	}
	for _, b := range h.o.Recorder.Bans() {
		add(b.Rule, b.Key)
	}
	for _, o := range h.o.Overrides.All() {
		add(o.Rule, o.Key)
	}
	return keys
}

// similar returns up to five known keys that contain the key or are contained in it, whatever their
// letter case. If there are none, it returns the most similar known key, provided that this key is
// similar enough.
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
