package admin

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed83679106/weir"
)

// A form asks the operator to confirm a change of a key under a rule.
type form struct {
	Do, Rule, Key, From string
	Title, Text, Button string
	Lasts               bool // the operator chooses for how long
	Note                bool // the operator may say why
	Limits              []ownForm
}

// An ownForm is a limit that a key may get of its own.
type ownForm struct {
	Name    string
	Now     string
	Suggest int64 // units
}

// can says which changes of a key under a rule are possible.
type can struct {
	Rule, Key, From string
	Ban             string // "ban" by a penalty, "deny" by an override, or ""
	Own             bool   // limits of its own
	Reset           bool

	Banned, Overridden bool // the key is, as far as it was looked up
}

// can returns the changes of a key that the page offers. A network can only be banned. The empty key
// may be that of many clients: it can neither be banned nor have an override.
func (h *Handler) can(r *rule, key string, network bool) can {
	c := can{Rule: r.Name, Key: key, Reset: !network}
	own := h.overridesKeys(r) == nil && key != "" && !network
	switch {
	case r.Enforce == weir.Percent(0): // it refuses no request, not even of a banned key
	case len(r.penalizers) > 0 && key != "", network:
		c.Ban = "ban"
	case own:
		c.Ban = "deny"
	}
	c.Own = own
	return c
}

// form returns the form that the query asks for by the parameter do.
func (h *Handler) form(p *page, r *rule, q url.Values) (*form, error) {
	f := &form{Do: q.Get("do"), Rule: r.Name, Key: p.Key, From: p.From}
	c := h.can(r, p.Key, p.Network != "")
	impossible := refuse(http.StatusConflict, "rule %q offers no such change of the key %q", r.Name, p.Key)
	switch f.Do {
	case "ban", "deny":
		if c.Ban != f.Do {
			return nil, impossible
		}
		f.Title, f.Button, f.Lasts = "Ban", "Ban", true
		f.Text = "Every request of this key is refused under this rule, whatever its limits have left."
		f.Note = f.Do == "deny" || p.Network != ""
		if r.shared(p.Key) {
			f.Text = "Every request from this address is refused under this rule, whatever its limits have left, and so is every client that shares the address, such as the users of an office."
		}
		if p.Network != "" {
			f.Text = "Every request from this network is refused under this rule, in all processes within a second."
		}
	case "unban":
		if len(r.penalizers) == 0 && p.Network == "" {
			return nil, impossible
		}
		f.Title, f.Button = "Lift the ban of", "Lift the ban"
		f.Text = "Its strikes and earlier bans are forgotten, too."
	case "override":
		if !c.Own {
			return nil, impossible
		}
		f.Title, f.Button, f.Lasts, f.Note = "Limits of its own for", "Set the limits", true, true
		f.Text = "What the key has spent still counts."
		f.Limits = []ownForm{{Now: "not known: it is chosen for each request"}}
		if p.State != nil && len(p.State.Rules) == 1 && len(p.State.Rules[0].Limits) > 0 {
			f.Limits = nil
			for _, l := range p.State.Rules[0].Limits {
				o := ownForm{Now: number(l.Quota) + " per " + durationText(l.Period), Suggest: 2 * l.Quota}
				if len(p.State.Rules[0].Limits) > 1 {
					o.Name = l.Name
				}
				f.Limits = append(f.Limits, o)
			}
		}
	case "remove":
		if !c.Own {
			return nil, impossible
		}
		f.Title, f.Button = "Remove the override of", "Remove the override"
		f.Text = "The limits of the rule apply to the key again."
	case "reset":
		if !c.Reset {
			return nil, impossible
		}
		f.Title, f.Button = "Give back all units of", "Give back all units"
		f.Text = "All limits of this rule are full again for the key. Bans stay."
	default:
		return nil, refuse(http.StatusBadRequest, "there is no form %q", f.Do)
	}
	return f, nil
}

// act makes the change that a form asks for: it serves the JSON request for the same change. act
// returns the fields of the form, and the id of the change.
func (h *Handler) act(w http.ResponseWriter, r *http.Request) (fields url.Values, id string, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return url.Values{}, "", refuse(http.StatusBadRequest, "the form can't be read")
	}
	fields = r.PostForm
	seconds, _ := strconv.ParseFloat(fields.Get("seconds"), 64)
	query := url.Values{"rule": {fields.Get("rule")}, "key": {fields.Get("key")}}
	method, path, body := http.MethodPost, "/"+fields.Get("do"), map[string]any{}
	switch fields.Get("do") {
	case "reset", "unban":
	case "ban":
		body["seconds"], body["note"] = seconds, fields.Get("note")
	case "deny":
		path, body = "/override", map[string]any{"denied": true, "seconds": seconds, "note": fields.Get("note")}
	case "override":
		limits, err := ownLimits(fields)
		if err != nil {
			return fields, "", err
		}
		body = map[string]any{"limits": limits, "seconds": seconds, "note": fields.Get("note")}
	case "remove":
		method, path = http.MethodDelete, "/override"
	case "undo":
		query = url.Values{"change": {fields.Get("change")}}
	default:
		return fields, "", refuse(http.StatusBadRequest, "the form has an unknown action")
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fields, "", err
	}
	inner := r.Clone(r.Context())
	inner.Method, inner.Body = method, io.NopCloser(bytes.NewReader(text))
	inner.Header.Set("Content-Type", "application/json")
	inner.URL = &url.URL{Path: path, RawQuery: query.Encode()}
	_, err = h.serve(w, inner)
	id = w.Header().Get(changeField)
	return fields, id, err
}

// ownLimits returns the limits in a form: each has a name, which may be empty, and a number of
// units.
func ownLimits(fields url.Values) (limits []ownLimitBody, err error) {
	names := fields["limit"]
	for i, q := range fields["quota"] {
		n, err := strconv.ParseInt(strings.TrimSpace(q), 10, 64)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the number of units is %q; want an integer of at least 1", q)
		}
		l := ownLimitBody{Quota: n}
		if i < len(names) {
			l.Name = names[i]
		}
		limits = append(limits, l)
	}
	if len(limits) == 0 {
		return nil, refuse(http.StatusBadRequest, "the form has no limits")
	}
	return limits, nil
}

// ruleNamed returns the rule of a name, or nil.
func ruleNamed(rules []rule, name string) *rule {
	if i := slices.IndexFunc(rules, func(r rule) bool { return r.Name == name }); i >= 0 {
		return &rules[i]
	}
	return nil
}
