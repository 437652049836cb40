package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	Refusals int64    `json:"refusals,omitempty"` // how often this process has refused the key: see watch.Top.Find
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
		s.explain(&rules[i])
		s.Note = h.note(s.Rule, s.key)
		if h.o.Top != nil {
			r, _ := h.o.Top.Find(s.Rule, s.key)
			s.Refusals = r.Count
		}
		s.recall(&rules[i])
	}
	return body, nil
}

// explain adds an explanation to the state of a key: whether the rule would refuse a request of
// the key, and for which reasons.
func (s *ruleState) explain(r *rule) {
	s.explanation = &explanation{Because: []string{}}
	if s.Listed == "deny" {
		s.Because = append(s.Because, "a list or an override of the rule denies the key")
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
	case r.Shadow == 1:
		refused = false
		s.Because = append(s.Because, "the rule is in shadow, so it refuses no request")
	case r.Shadow > 0 && refused:
		s.Because = append(s.Because, fmt.Sprintf("the rule is in shadow for %.4g %% of the keys, and does not refuse their requests", 100*r.Shadow))
	}
	if refused || len(s.Unknown) == 0 || r.Shadow == 1 {
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
		s.Past = append(s.Past, fmt.Sprintf("this process has refused the key %d times", s.Refusals))
	}
}

// durationText formats a number of seconds for people: 1h30m, 12.5s.
func durationText(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	for _, unit := range []time.Duration{time.Second, 100 * time.Millisecond, time.Millisecond, time.Microsecond} {
		if d >= 10*unit {
			d = d.Round(unit)
			break
		}
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// note returns the note of the override of a key in Options.Overrides, or "".
func (h *Handler) note(rule, key string) string {
	if h.o.Overrides == nil {
		return ""
	}
	note, longest := "", -1
	for _, o := range h.o.Overrides.All() {
		start, isStart := strings.CutSuffix(o.Key, "*")
		switch {
		case o.Rule != rule:
		case o.Key == storedkey.Of(key):
			return o.Note
		case isStart && strings.HasPrefix(key, start) && len(start) > longest:
			note, longest = o.Note, len(start)
		}
	}
	return note
}

type topBody struct {
	Rule  string `json:"rule"`
	Key   string `json:"key"`
	Count int64  `json:"count"`
	Error int64  `json:"error"` // Count may be too high by up to this number
}

// AtLeast returns how many refusals there were at least.
func (t topBody) AtLeast() int64 { return t.Count - t.Error }

func topBodies(keys []watch.Refused, rule string) []topBody {
	list := []topBody{}
	for _, k := range keys {
		if rule == "" || rule == k.Rule {
			list = append(list, topBody{k.Rule, k.Key, k.Count, k.Error})
		}
	}
	return list
}

var (
	errNoTop     = refuse(http.StatusNotFound, "the program does not count refused keys: Options.Top is not set")
	errNoTraffic = refuse(http.StatusNotFound, "the program does not record requests: Options.Traffic is not set")
)

// topAnswer returns the keys that are refused most.
func (h *Handler) topAnswer(r *http.Request) (any, error) {
	rule, err := h.ruleParameter(r)
	if err != nil {
		return nil, err
	}
	if h.o.Top == nil {
		return nil, errNoTop
	}
	return struct {
		Top []topBody `json:"top"`
	}{topBodies(h.top(), rule)}, nil
}

// top returns the keys that were refused in the last hour.
func (h *Handler) top() []watch.Refused {
	keys, _ := h.o.Top.Keys(time.Hour)
	return keys
}

// ruleParameter returns the rule that the query names, or "" for all.
func (h *Handler) ruleParameter(r *http.Request) (string, error) {
	q, err := query(r, "rule")
	if err != nil {
		return "", err
	}
	_, err = h.rules(q)
	return q.Get("rule"), err
}

type banBody struct {
	Rule    string  `json:"rule"`
	Key     string  `json:"key"`
	For     float64 `json:"banned_for,omitempty"` // seconds; missing if the ban does not expire
	Network bool    `json:"network,omitempty"`
	Note    string  `json:"note,omitempty"`
}

// bansAnswer returns the bans that this process knows of, and the networks that are denied.
func (h *Handler) bansAnswer(r *http.Request) (any, error) {
	rule, err := h.ruleParameter(r)
	if err != nil {
		return nil, err
	}
	rules, err := h.rules(nil)
	if err != nil {
		return nil, err
	}
	bans, err := h.bans(r, rules, rule)
	return struct {
		Bans []banBody `json:"bans"`
	}{bans}, err
}

// maxBans is the largest number of banned keys that are listed. Each key costs one call of the
// store.
const maxBans = 100

// bans returns the denied networks, and the banned keys that this process knows of. If name is not
// empty, it returns only those under the rule of that name.
func (h *Handler) bans(r *http.Request, rules []rule, name string) ([]banBody, error) {
	list := h.deniedNetworks()
	if h.o.Bans != nil {
		known := h.o.Bans.Keys()
		for _, k := range known[:min(maxBans, len(known))] {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.Name == k.Rule && len(r.penalizers) > 0 })
			if i < 0 {
				continue
			}
			rest, err := rules[i].penalizers[0].Banned(r.Context(), k.Rule, k.Key)
			if err != nil {
				return list, err
			}
			if rest > 0 {
				list = append(list, banBody{Rule: k.Rule, Key: k.Key, For: seconds(rest)})
			}
		}
	}
	return slices.DeleteFunc(list, func(b banBody) bool { return name != "" && name != b.Rule }), nil
}

// deniedNetworks returns the networks that entries of Options.Overrides deny.
func (h *Handler) deniedNetworks() []banBody {
	list := []banBody{}
	if h.o.Overrides == nil {
		return list
	}
	for _, o := range h.o.Overrides.All() {
		if _, ok := overrides.Network(o.Key); !ok || !o.Denied {
			continue
		}
		b := banBody{Rule: o.Rule, Key: o.Key, Network: true, Note: o.Note}
		if !o.End.IsZero() {
			b.For = time.Until(o.End).Seconds()
		}
		list = append(list, b)
	}
	return list
}

type trialBody struct {
	Rule        string    `json:"rule"`
	Seconds     float64   `json:"seconds"` // from the first request to the last
	Requests    int       `json:"requests"`
	WereRefused int       `json:"were_refused"` // by the limits that were in force when the requests came
	Refused     int       `json:"refused"`      // by the limits that are tried
	Keys        int       `json:"keys"`
	RefusedKeys int       `json:"refused_keys"`
	Top         []topBody `json:"top"`
}

// try tries limits on recent requests of a rule, and changes nothing.
func (h *Handler) try(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := allow(w, r, http.MethodPost); err != nil {
		return nil, err
	}
	q, err := query(r, "rule")
	if err != nil {
		return nil, err
	}
	if !q.Has("rule") {
		return nil, refuse(http.StatusBadRequest, "the query has no rule")
	}
	rules, err := h.rules(q)
	if err != nil {
		return nil, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	var body struct{ Limits []ownLimitBody }
	if err := read(r, &body); err != nil {
		return nil, err
	}
	return h.trial(&rules[0], body.Limits)
}

func (h *Handler) trial(r *rule, bodies []ownLimitBody) (*trialBody, error) {
	if h.o.Traffic == nil {
		return nil, errNoTraffic
	}
	limits, err := limitsFrom(bodies)
	if err != nil {
		return nil, err
	}
	if len(limits) == 0 {
		return nil, refuse(http.StatusBadRequest, "there are no limits to try")
	}
	if limits, err = complete(r.Name, r.Limits, limits); err != nil {
		return nil, err
	}
	t, err := h.o.Traffic.Try(r.Name, limits...)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	return &trialBody{r.Name, t.To.Sub(t.From).Seconds(), t.Requests, t.WereRefused, t.Refused, t.Keys, t.RefusedKeys, topBodies(t.Top, "")}, nil
}
