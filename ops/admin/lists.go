package admin

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

type topBody struct {
	listed
	Count  int64   `json:"count"`
	Error  int64   `json:"error"`            // Count may be too high by up to this number
	Reason string  `json:"reason,omitempty"` // of the last refusal
	Ago    float64 `json:"ago,omitempty"`    // seconds since the last refusal
	Shadow bool    `json:"shadow,omitempty"` // the rule is in shadow, so the requests were allowed
}

func topBodies(keys []watch.Refused, rule string) []topBody {
	list := []topBody{}
	for _, k := range keys {
		if rule != "" && rule != k.Rule {
			continue
		}
		b := topBody{listed: listedOf(k.Rule, scope{Key: k.Key}), Count: k.Count, Error: k.Error, Reason: k.Reason.String(), Shadow: k.Shadow}
		if !k.Last.IsZero() {
			b.Ago = seconds(time.Since(k.Last))
		}
		list = append(list, b)
	}
	return list
}

var errNoRecorder = refuse(http.StatusNotFound, "the program does not record requests: Options.Recorder is not set")

// topAnswer returns the keys that were refused most often in the last seconds (a parameter of
// the query), by default in the last hour.
func (h *Handler) topAnswer(c *call) (_ any, err error) {
	if !h.hasRecorder {
		return nil, errNoRecorder
	}
	window := time.Hour.Seconds()
	if text := c.q.Get("seconds"); c.q.Has("seconds") {
		if window, err = strconv.ParseFloat(text, 64); err != nil || !(window > 0 && window <= 3600) {
			return nil, refuse(http.StatusBadRequest, "seconds is %q; want a number above 0, and at most 3600", text)
		}
	}
	keys, over := h.o.Recorder.Top(time.Duration(window * 1e9))
	return struct {
		Seconds float64   `json:"seconds"`
		Top     []topBody `json:"top"`
	}{seconds(over), topBodies(keys, c.q.Get("rule"))}, nil
}

type refusalBody struct {
	At    time.Time `json:"at"`
	Last  time.Time `json:"last"`
	Count int64     `json:"count"`
	listed
	Reason     string  `json:"reason"`
	Limit      string  `json:"limit,omitempty"`
	RetryAfter float64 `json:"retry_after,omitempty"` // seconds; missing if no wait helps
	Route      string  `json:"route"`
	Shadow     bool    `json:"shadow,omitempty"`
	LeftOut    int64   `json:"left_out,omitempty"`

	reason weir.Reason
}

// maxRefusals is the maximum number of recent refusals that are listed.
const maxRefusals = 200

// refusals returns up to n recent refusals of a key under a rule. An empty rule or key stands for
// all rules or keys.
func (h *Handler) refusals(rule, key string, n int) []refusalBody {
	list := []refusalBody{}
	for _, l := range h.o.Recorder.Recent(math.MaxInt) {
		if rule != "" && rule != l.Rule || key != "" && l.Key != h.storedKey(l.Rule, key) {
			continue
		}
		b := refusalBody{
			At: l.At.Truncate(time.Second).UTC(), Last: l.Last.Truncate(time.Second).UTC(), Count: l.Count,
			listed: listedOf(l.Rule, scope{Key: l.Key}), Reason: l.Reason.String(), Limit: l.Limit,
			Route: l.Route, Shadow: l.Shadow, LeftOut: l.LeftOut, reason: l.Reason,
		}
		if l.RetryAfter != quota.Never {
			b.RetryAfter = seconds(l.RetryAfter)
		}
		if list = append(list, b); len(list) == n {
			break
		}
	}
	return list
}

// storedKey returns the form in which a key that an operator has typed is stored under a rule.
func (h *Handler) storedKey(rule, typed string) string {
	s, _ := h.stored(rule, scope{Key: typed}) // after an error, the key is unchanged
	return storedkey.Of(s.Key)
}

// refusalsAnswer returns recent refusals.
func (h *Handler) refusalsAnswer(c *call) (any, error) {
	if !h.hasRecorder {
		return nil, errNoRecorder
	}
	return struct {
		Refusals []refusalBody `json:"refusals"`
	}{h.refusals(c.q.Get("rule"), c.q.Get("key"), maxRefusals)}, nil
}

type banBody struct {
	listed
	For  float64 `json:"banned_for,omitempty"` // seconds; missing if the ban does not expire
	Note string  `json:"note,omitempty"`
}

// bansAnswer returns the bans that this process knows, and the networks that are denied.
func (h *Handler) bansAnswer(c *call) (any, error) {
	bans, err := h.bans(c.r, c.rules, c.q.Get("rule"))
	return struct {
		Bans []banBody `json:"bans"`
	}{bans}, err
}

// maxBans is the maximum number of banned keys that are listed. Each key costs one call to the
// store.
const maxBans = 100

// bans returns the denied networks, and the banned keys that this process knows. If a name is
// given, only the bans under the rule with that name are returned.
func (h *Handler) bans(r *http.Request, rules []rule, name string) ([]banBody, error) {
	list := []banBody{}
	for _, o := range h.o.Overrides.All() {
		if b := bodyOfOverride(o); b.Network != "" {
			list = append(list, banBody{b.listed, b.EndsAfter, b.Note})
		}
	}
	known := h.o.Recorder.Bans()
	for _, k := range known[:min(maxBans, len(known))] {
		of := ruleNamed(rules, k.Rule)
		if of == nil || len(of.penalizers) == 0 {
			continue
		}
		rest, err := of.penalizers[0].Banned(r.Context(), k.Rule, k.Key)
		if err != nil {
			return list, err
		}
		if rest > 0 {
			list = append(list, banBody{listed: listedOf(k.Rule, scope{Key: k.Key}), For: seconds(rest)})
		}
	}
	return slices.DeleteFunc(list, func(b banBody) bool { return name != "" && name != b.Rule }), nil
}

type trialBody struct {
	Rule        string    `json:"rule"`
	Seconds     float64   `json:"seconds"` // from the first request to the last
	Requests    int       `json:"requests"`
	WereRefused int       `json:"were_refused"` // by the limits that were in force when the requests arrived
	Refused     int       `json:"refused"`      // by the limits that are tried
	Keys        int       `json:"keys"`
	RefusedKeys int       `json:"refused_keys"`
	Top         []topBody `json:"top"`
}

// tryAnswer tries limits on recent requests of a rule, and changes nothing.
func (h *Handler) tryAnswer(c *call) (any, error) {
	var body struct{ Limits []limitBody }
	if err := c.read(&body); err != nil {
		return nil, err
	}
	return h.trial(&c.rules[0], body.Limits)
}

func (h *Handler) trial(r *rule, bodies []limitBody) (*trialBody, error) {
	if !h.hasRecorder {
		return nil, errNoRecorder
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
	t, err := h.o.Recorder.Try(r.Name, limits...)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	return &trialBody{r.Name, t.To.Sub(t.From).Seconds(), t.Requests, t.WereRefused, t.Refused, t.Keys, t.RefusedKeys,
		topBodies(t.Top, "")}, nil
}

// An offender is a key that was refused in the last 5 minutes, or in the last hour.
type offender struct {
	watch.Refused
	Five, Hour int64 // refusals, at least
	Rate       string
	Ago        string
}

// Banned reports whether the key was banned at its last refusal.
func (o *offender) Banned() bool { return o.Reason == weir.ReasonBan }

// mostOffenders is the maximum number of keys shown for each time window. Up to mostShadows
// further keys are shown that only a rule in shadow mode would have refused.
const mostOffenders, mostShadows = 10, 5

// offenders returns the keys that were refused most often in the last 5 minutes, followed by
// other keys that were refused most often in the last hour.
//
// Each rate is an average over the last 15 to 75 s. An average over 5 minutes would be too low when
// a flood begins, and too high after the flood has ended.
func (h *Handler) offenders(five []watch.Refused) []offender {
	type id struct {
		rule, key string
		shadow    bool
	}
	counts := func(keys []watch.Refused) map[id]int64 {
		m := map[id]int64{}
		for _, k := range keys {
			m[id{k.Rule, k.Key, k.Shadow}] = k.AtLeast()
		}
		return m
	}
	first := func(keys []watch.Refused, n int, shadow bool) []watch.Refused {
		of := slices.DeleteFunc(slices.Clone(keys), func(k watch.Refused) bool { return k.Shadow != shadow })
		return of[:min(n, len(of))]
	}
	hour, _ := h.o.Recorder.Top(time.Hour)
	now, over := h.o.Recorder.Top(time.Minute)
	if over < 15*time.Second { // of a minute that has just begun
		now, over = h.o.Recorder.Top(2 * time.Minute)
	}
	inFive, inHour, atOnce := counts(five), counts(hour), counts(now)
	list, shown := []offender{}, map[id]bool{}
	for _, k := range slices.Concat(first(five, mostOffenders, false), first(hour, mostOffenders, false),
		first(five, mostShadows, true), first(hour, mostShadows, true)) {
		of := id{k.Rule, k.Key, k.Shadow}
		if !shown[of] {
			shown[of] = true
			list = append(list, offender{k, inFive[of], inHour[of], rate(atOnce[of], over.Seconds()), ago(k.Last)})
		}
	}
	return list
}
