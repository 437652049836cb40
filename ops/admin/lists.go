package admin

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/watch"
)

type topBody struct {
	Rule   string  `json:"rule"`
	Key    string  `json:"key"`
	Count  int64   `json:"count"`
	Error  int64   `json:"error"`            // Count may be too high by up to this number
	Reason string  `json:"reason,omitempty"` // of the last refusal
	Ago    float64 `json:"ago,omitempty"`    // seconds since the last refusal
	Shadow bool    `json:"shadow,omitempty"` // the rule is in shadow, so the requests passed
}

func topBodies(keys []watch.Refused, rule string) []topBody {
	list := []topBody{}
	for _, k := range keys {
		if rule != "" && rule != k.Rule {
			continue
		}
		b := topBody{Rule: k.Rule, Key: k.Key, Count: k.Count, Error: k.Error, Reason: k.Reason.String(), Shadow: k.Shadow}
		if !k.Last.IsZero() {
			b.Ago = seconds(time.Since(k.Last))
		}
		list = append(list, b)
	}
	return list
}

var (
	errNoTop     = refuse(http.StatusNotFound, "the program does not count refused keys: Options.Top is not set")
	errNoTraffic = refuse(http.StatusNotFound, "the program does not record requests: Options.Traffic is not set")
)

// topAnswer returns the keys that were refused most in the last seconds, an hour by default.
func (h *Handler) topAnswer(r *http.Request) (any, error) {
	q, err := query(r, "rule", "seconds")
	if err != nil {
		return nil, err
	}
	if _, err = h.rules(q); err != nil {
		return nil, err
	}
	if h.o.Top == nil {
		return nil, errNoTop
	}
	window := time.Hour.Seconds()
	if q.Has("seconds") {
		if window, err = strconv.ParseFloat(q.Get("seconds"), 64); err != nil || !(window > 0 && window <= 3600) {
			return nil, refuse(http.StatusBadRequest, "seconds is %q; want a number above 0, and at most 3600", q.Get("seconds"))
		}
	}
	keys, over := h.o.Top.Keys(time.Duration(window * 1e9))
	return struct {
		Seconds float64   `json:"seconds"`
		Top     []topBody `json:"top"`
	}{seconds(over), topBodies(keys, q.Get("rule"))}, nil
}

type refusalBody struct {
	At         time.Time `json:"at"`
	Last       time.Time `json:"last"`
	Count      int64     `json:"count"`
	Rule       string    `json:"rule"`
	Key        string    `json:"key"`
	Reason     string    `json:"reason"`
	Limit      string    `json:"limit,omitempty"`
	RetryAfter float64   `json:"retry_after,omitempty"` // seconds; missing if no wait helps
	Route      string    `json:"route"`
	Shadow     bool      `json:"shadow,omitempty"`
	LeftOut    int64     `json:"left_out,omitempty"`
}

// maxRefusals is the largest number of recent refusals that are listed.
const maxRefusals = 200

// refusals returns the recent refusals under a rule and of a key, n at most. An empty rule or key
// stands for all.
func (h *Handler) refusals(rule, key string, n int) []refusalBody {
	list := []refusalBody{}
	if h.o.Top == nil {
		return list
	}
	for _, l := range h.o.Top.Recent(math.MaxInt) {
		if rule != "" && rule != l.Rule || key != "" && storedkey.Of(key) != l.Key {
			continue
		}
		b := refusalBody{l.At.UTC(), l.Last.UTC(), l.Count, l.Rule, l.Key, l.Reason.String(), l.Limit, 0, l.Route, l.Shadow, l.LeftOut}
		if l.RetryAfter != quota.Never {
			b.RetryAfter = seconds(l.RetryAfter)
		}
		if list = append(list, b); len(list) == n {
			break
		}
	}
	return list
}

// refusalsAnswer returns recent refusals.
func (h *Handler) refusalsAnswer(r *http.Request) (any, error) {
	q, err := query(r, "rule", "key")
	if err != nil {
		return nil, err
	}
	if _, err := h.rules(q); err != nil {
		return nil, err
	}
	if h.o.Top == nil {
		return nil, errNoTop
	}
	return struct {
		Refusals []refusalBody `json:"refusals"`
	}{h.refusals(q.Get("rule"), q.Get("key"), maxRefusals)}, nil
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
