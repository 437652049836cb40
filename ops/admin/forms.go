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

// A form lets the operator confirm a change to a key under a rule.
type form struct {
	Do, From string
	keyed
	Title, Text, Button string
	Lasts               bool // the operator chooses the duration
	Note                bool // the operator may give a reason
	Limits              []ownForm

	request string // the method and the path of the JSON request for the same change
}

// An ownForm is the part of a form that sets one custom limit of a key.
type ownForm struct {
	Name    string
	Now     string
	Suggest int64 // units
}

// can describes which changes to a key under a rule are possible.
type can struct {
	keyed
	From  string
	Ban   string // "ban" by a penalty, "deny" by an override, or ""
	Own   bool   // custom limits
	Reset bool

	Banned, Overridden bool // the key is banned or has an override, as far as it was looked up
}

// can returns the changes to a scope that the page offers. A network can only be banned. The empty
// key can neither be banned nor have an override, because many clients may share it.
func (h *Handler) can(r *rule, s scope) can {
	c := can{keyed: keyed{r.Name, s}, Reset: s.single()}
	c.Own = h.overridesKeys(r) == nil && s != (scope{}) && s.Network == ""
	switch {
	case r.Enforce == weir.Percent(0): // the rule refuses no request, not even with a banned key
	case s.Network != "" && h.o.Overrides.DeniesNetworks(r.Name), len(r.penalizers) > 0 && s.Key != "":
		c.Ban = "ban"
	case c.Own:
		c.Ban = "deny"
	}
	return c
}

const banText = "Every request of this key is refused under this rule, whatever its limits have left."

// forms contains the page's forms, by the value of their parameter "do". The form that undoes a
// change has no fields to fill in.
var forms = map[string]form{
	"ban":   {request: "POST /ban", Title: "Ban", Button: "Ban", Lasts: true, Text: banText},
	"deny":  {request: "POST /override", Title: "Ban", Button: "Ban", Lasts: true, Note: true, Text: banText},
	"unban": {request: "POST /unban", Title: "Lift the ban of", Button: "Lift the ban", Text: "Its strikes and earlier bans are forgotten, too."},
	"override": {request: "POST /override", Title: "Custom limits for", Button: "Set the limits", Lasts: true, Note: true,
		Text:   "What the key has spent still counts.",
		Limits: []ownForm{{Now: "not known: it is chosen for each request"}}},
	"remove": {request: "DELETE /override", Title: "Remove the override of", Button: "Remove the override",
		Text: "The limits of the rule apply to the key again."},
	"reset": {request: "POST /reset", Title: "Reset usage of", Button: "Reset usage",
		Text: "All limits of this rule are full again for the key. Bans stay in force."},
	"undo": {request: "POST /undo"},
}

// form returns the form for a change to the key that the page shows.
func (h *Handler) form(p *page, r *rule, do string) (*form, error) {
	f, known := forms[do]
	if !known {
		return nil, refuse(http.StatusBadRequest, "there is no form %q", do)
	}
	c := h.can(r, p.scope)
	possible := map[string]bool{
		"ban": c.Ban == "ban", "deny": c.Ban == "deny", "unban": len(r.penalizers) > 0 || p.Network != "",
		"override": c.Own, "remove": c.Own, "reset": c.Reset,
	}
	if !possible[do] {
		return nil, refuse(http.StatusConflict, "rule %q offers no such change of %v", r.Name, p.scope)
	}
	f.Do, f.keyed, f.From = do, c.keyed, p.From
	switch {
	case c.Ban == do && p.Network != "":
		f.Note, f.Text = true, "Every request from this network is refused under this rule, in all processes within a second."
	case c.Ban == do && r.shared(p.Key):
		f.Text = "Every request from this address is refused under this rule, whatever its limits have left, and so is every client that shares the address, such as the users of an office."
	case do == "override" && p.State != nil && len(p.State.Rules) == 1 && len(p.State.Rules[0].Limits) > 0:
		f.Limits = nil
		for _, l := range p.State.Rules[0].Limits {
			o := ownForm{Now: number(l.Quota) + " per " + durationText(l.Period), Suggest: 2 * l.Quota}
			if len(p.State.Rules[0].Limits) > 1 {
				o.Name = l.Name
			}
			f.Limits = append(f.Limits, o)
		}
		if rest := p.State.Rules[0].BannedFor; rest > 0 {
			f.Text += " The key is banned for another " + durationText(rest) + ". New limits do not lift the ban."
		}
	}
	return &f, nil
}

// act makes the change that a form requests, by serving the JSON request for the same change. It
// returns the fields of the form, and the id of the change. The rule and the key are in the URL of
// the form, because browsers change the values of fields: they replace invalid UTF-8, and line ends
// other than CRLF.
func (h *Handler) act(w http.ResponseWriter, r *http.Request) (fields url.Values, id string, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return url.Values{}, "", refuse(http.StatusBadRequest, "the form can't be read")
	}
	fields = r.Form
	do := fields.Get("do")
	f, known := forms[do]
	if !known {
		return fields, "", refuse(http.StatusBadRequest, "the form has an unknown action")
	}
	query, body := url.Values{}, map[string]any{}
	for _, name := range slices.Concat(scoped, []string{"change"}) {
		if fields.Has(name) {
			query.Set(name, fields.Get(name))
		}
	}
	if f.Lasts {
		body["seconds"], _ = strconv.ParseFloat(fields.Get("seconds"), 64)
		body["note"] = fields.Get("note")
	}
	switch do {
	case "deny":
		body["denied"] = true
	case "override":
		if body["limits"], err = limitsOf(fields); err != nil {
			return fields, "", err
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fields, "", err
	}
	method, path, _ := strings.Cut(f.request, " ")
	inner := r.Clone(r.Context())
	inner.Method, inner.Body = method, io.NopCloser(bytes.NewReader(text))
	inner.Header.Set("Content-Type", "application/json")
	inner.URL = &url.URL{Path: path, RawQuery: query.Encode()}
	_, err = h.serve(w, inner)
	id = w.Header().Get(changeField)
	return fields, id, err
}

// limitsOf returns the limits in a form: each has a number of units, and may have a name and a period.
func limitsOf(fields url.Values) (limits []limitBody, err error) {
	at := func(name string, i int) string {
		if i < len(fields[name]) {
			return fields[name][i]
		}
		return ""
	}
	for i, q := range fields["quota"] {
		l := limitBody{Name: at("limit", i)}
		if l.Quota, err = strconv.ParseInt(strings.TrimSpace(q), 10, 64); err != nil {
			return nil, refuse(http.StatusBadRequest, "the number of units is %q; want an integer of at least 1", q)
		}
		if period := at("period", i); period != "" {
			if l.Period, err = strconv.ParseFloat(period, 64); err != nil {
				return nil, refuse(http.StatusBadRequest, "the period is %q; want a number of seconds", period)
			}
		}
		limits = append(limits, l)
	}
	if len(limits) == 0 {
		return nil, refuse(http.StatusBadRequest, "the form has no limits")
	}
	return limits, nil
}
