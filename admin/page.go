package admin

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

//go:embed page.html
var pageText string

//go:embed style.css
var style string

// pageTemplate is the template of the page, which has no scripts.
var pageTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"duration": durationText,
	"percent":  func(share float64) string { return fmt.Sprintf("%.4g %%", 100*share) },
	"link":     func(rule, key string) string { return url.Values{"rule": {rule}, "key": {key}}.Encode() },
	"actions": func(p *page, rule, key string) actions {
		a := actions{Rule: rule, Key: key, From: p.From, Network: p.Network != "", HasOverrides: slices.Contains(p.overridden, rule)}
		for _, r := range p.Rules {
			a.Bans = a.Bans || r.Name == rule && r.Penalty != nil
		}
		return a
	},
}).Parse(pageText))

// A page is the data for pageTemplate.
type page struct {
	Rule, Key, From, Network string
	Error                    string

	Version, Stale                   string
	Rules                            []ruleBody
	State                            *stateBody
	HasTop, HasOverrides, HasTraffic bool
	overridden                       []string // the rules of which keys can have overrides
	Top                              []topBody
	Bans                             []banBody
	Overrides                        []overrideBody

	Quota, Period string // of the limit to try
	Trial         *trialBody
}

// actions are the changes that the page offers for a rule and a key, or a network.
type actions struct {
	Rule, Key, From             string
	Bans, Network, HasOverrides bool
}

// servePage serves the page, and makes the changes that its forms ask for.
func (h *Handler) servePage(w http.ResponseWriter, r *http.Request) {
	var problem error
	if err := allow(w, r, http.MethodGet, http.MethodHead, http.MethodPost); err != nil {
		h.fail(w, r, err)
		return
	}
	q := r.URL.Query()
	if r.Method == http.MethodPost {
		if q, problem = h.act(w, r); problem == nil {
			w.Header().Set("Cache-Control", "no-store")
			back := url.Values{"rule": {q.Get("rule")}, "key": {q.Get("key")}}
			if from := q.Get("from"); from != "" {
				back.Set("from", from)
			}
			w.Header().Set("Location", "./?"+back.Encode())
			w.WriteHeader(http.StatusSeeOther)
			return
		}
	}
	p, err := h.page(r, q)
	if err != nil && problem == nil {
		problem = err
	}
	status := http.StatusOK
	if problem != nil {
		details := h.problem(r, problem)
		p.Error, status = details.Detail, details.Status
	}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, p); err != nil { // a bug in the template
		h.fail(w, r, err)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("Referrer-Policy", "same-origin") // the URL has a key, which other sites must not get
	send(w, status, "text/html; charset=utf-8", text.Bytes())
}

// page collects the data of the page. If it returns an error, it also returns the data that it has
// found before.
func (h *Handler) page(r *http.Request, q url.Values) (*page, error) {
	p := &page{
		Rule: q.Get("rule"), Key: q.Get("key"), From: q.Get("from"), Quota: q.Get("quota"), Period: q.Get("period"),
		HasTop: h.o.Top != nil, HasOverrides: h.o.Overrides != nil, HasTraffic: h.o.Traffic != nil,
	}
	all, err := h.rules(nil)
	if err != nil {
		return p, err
	}
	p.Rules = bodiesOf(all)
	for i := range all {
		if h.overridesKeys(&all[i]) == nil {
			p.overridden = append(p.overridden, all[i].Name)
		}
	}
	if f := h.o.File; f != nil {
		p.Version = f.Version()
		if err := f.Err(); err != nil {
			p.Stale = err.Error()
		}
	}
	if h.o.Top != nil {
		p.Top = topBodies(h.top(), "")
		p.Top = p.Top[:min(20, len(p.Top))]
	}
	if h.o.Overrides != nil {
		p.Overrides = h.overridesOf("").Overrides
		p.Overrides = p.Overrides[:min(100, len(p.Overrides))]
	}
	if p.Bans, err = h.bans(r, all, ""); err != nil {
		return p, err
	}
	asked := url.Values{}
	if p.Rule != "" {
		asked.Set("rule", p.Rule)
	}
	rules, err := h.rules(asked)
	if err != nil {
		return p, err
	}
	if p.Quota != "" {
		return p, h.tryOnPage(p, &rules[0])
	}
	if p.Key == "" {
		return p, nil
	}
	for i := range rules {
		if isNetwork, _ := rules[i].checkKey(p.Key); isNetwork && h.deniesNetworks(rules[i].Name) {
			p.Network = p.Key
			return p, nil
		}
	}
	from, err := clientAddr(q)
	if err != nil {
		return p, err
	}
	p.State, err = h.explanations(r.Context(), rules, p.Key, from)
	return p, err
}

// tryOnPage tries the limit in p.Quota and p.Period, and sets p.Trial.
func (h *Handler) tryOnPage(p *page, r *rule) (err error) {
	var body ownLimitBody
	if body.Quota, err = strconv.ParseInt(p.Quota, 10, 64); err != nil {
		return refuse(http.StatusBadRequest, "the number of units is %q; want an integer", p.Quota)
	}
	if p.Period != "" {
		if body.Period, err = strconv.ParseFloat(p.Period, 64); err != nil {
			return refuse(http.StatusBadRequest, "the period is %q; want a number of seconds", p.Period)
		}
	}
	p.Trial, err = h.trial(r, []ownLimitBody{body})
	return err
}

// act makes the change that a form asks for: it serves the JSON request for the same change. act
// returns the fields of the form.
func (h *Handler) act(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return url.Values{}, refuse(http.StatusBadRequest, "the form can't be read")
	}
	form := r.PostForm
	seconds, _ := strconv.ParseFloat(form.Get("seconds"), 64)
	quota, _ := strconv.ParseInt(form.Get("quota"), 10, 64)
	method, path, body := http.MethodPost, "/"+form.Get("do"), map[string]any{}
	switch form.Get("do") {
	case "reset", "unban":
	case "ban":
		body["seconds"] = seconds
	case "override":
		body = map[string]any{"limits": []any{map[string]any{"quota": quota}}, "seconds": seconds, "note": form.Get("note")}
	case "remove":
		method, path = http.MethodDelete, "/override"
	default:
		return form, refuse(http.StatusBadRequest, "the form has an unknown action")
	}
	text, err := json.Marshal(body)
	if err != nil {
		return form, err
	}
	inner := r.Clone(r.Context())
	inner.Method, inner.Body = method, io.NopCloser(bytes.NewReader(text))
	inner.Header.Set("Content-Type", "application/json")
	inner.URL = &url.URL{Path: path, RawQuery: url.Values{"rule": {form.Get("rule")}, "key": {form.Get("key")}}.Encode()}
	_, err = h.serve(w, inner)
	return form, err
}
