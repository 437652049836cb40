package admin

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/ops/watch"
)

//go:embed page.html
var pageText string

//go:embed style.css
var style string

//go:embed refresh.js
var refreshScript string

// pageTemplate is the template of the page. The script only reloads the page every 5 s, so the page
// works without the script.
var pageTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"duration": durationText,
	"percent":  func(p float64) string { return strconv.FormatFloat(p, 'g', 4, 64) + " %" },
	"number":   number,
	"share":    share,
	"ago":      ago,
	"visible":  visible,
	"clock":    func(t time.Time) string { return t.UTC().Format("15:04:05") },
	"can": func(p *page, rule, key string, banned bool) can {
		c := p.can(rule, scope{Key: key})
		c.Banned = banned
		return c
	},
	"canNet":   func(p *page, rule string) can { return p.can(rule, scope{Network: p.Network}) },
	"stated":   func(p *page, s ruleState) can { return p.stated(&s) },
	"sentence": func(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." },
	"keyed":    func(p *page, rule, key string) keyed { return keyed{rule, scope{Key: key}} },
	"byReason": reasonText,
}).Parse(pageText))

// keyed represents a scope under a rule. On the page, a keyed value is a link to what is known
// about the scope.
type keyed struct {
	Rule string `json:"rule"`
	scope
}

// Query returns the query of the page that shows what is known about k.
func (k keyed) Query() template.URL {
	name, value := k.parameter()
	return template.URL("rule=" + url.QueryEscape(k.Rule) + "&" + name + "=" + url.QueryEscape(value))
}

// A listed is an element of a list in JSON.
type listed struct {
	keyed
	Exact string `json:"query,omitempty"` // the Query of a key that JSON cannot express, because it is not valid UTF-8
}

func listedOf(rule string, s scope) listed {
	l := listed{keyed: keyed{rule, s}}
	if _, text := s.parameter(); !utf8.ValidString(text) {
		l.Exact = string(l.Query())
	}
	return l
}

// visible returns a text that may come from a client, with some characters replaced by escapes:
// characters that are invisible or unknown, characters that change the position of others, and all
// marks on a letter after the first two.
func visible(text string) string {
	var b strings.Builder
	for marks := 0; text != ""; {
		r, size := utf8.DecodeRuneInString(text)
		char := text[:size]
		text = text[size:]
		if marks++; !unicode.Is(unicode.Mn, r) {
			marks = 0
		}
		if r == utf8.RuneError || !unicode.IsPrint(r) || marks > 2 {
			char = strconv.QuoteToASCII(char)
			char = char[1 : len(char)-1]
		}
		b.WriteString(char)
	}
	return b.String()
}

// By describes what refused the request.
func (r refusalBody) By() string {
	if r.Limit != "" {
		return "limit " + r.Limit
	}
	return reasonText(r.reason)
}

// A page is the data for pageTemplate.
type page struct {
	h     *Handler
	rules []rule
	named *rule // the rule that the query names, or nil
	pageQuery
	At       time.Time
	Error    string
	Done     *changeBody
	Status   *statusBar
	Findings []finding
	Rows     []ruleRow

	Offenders []offender
	Refusals  []refusalBody
	keysTab
	Changes []changeBody
	Reload  reload
	Trial   *trialBody
}

// A pageQuery is the parsed query of the page.
type pageQuery struct {
	Tab, Rule, From string
	scope                  // what is looked up; if it is zero, see looksUp
	Quota, Period   string // of the limit to try
	looksUp         bool   // a scope is looked up, which may be the empty key
}

// A keysTab is the tab about keys.
type keysTab struct {
	State     *stateBody
	Form      *form
	Bans      []banBody
	Overrides []overrideBody
	Stale     bool // Overrides
}

// HasRecorder and HasOverrides report what the page can show.
func (p *page) HasRecorder() bool  { return p.h.hasRecorder }
func (p *page) HasOverrides() bool { return p.h.hasOverrides }

// can returns the changes to a key that the page offers.
func (p *page) can(rule string, s scope) can {
	c := can{keyed: keyed{rule, s}}
	if r := ruleNamed(p.rules, rule); r != nil {
		c = p.h.can(r, s)
	}
	c.From = p.From
	return c
}

// Shared reports whether all clients at one address share the given key under a rule.
func (p *page) Shared(rule, key string) bool {
	r := ruleNamed(p.rules, rule)
	return r != nil && r.shared(key)
}

// stated is like can, for a key whose state the page shows.
func (p *page) stated(s *ruleState) can {
	c := p.can(s.Rule, scope{Key: s.KeyOr(p.Key)})
	c.Banned, c.Overridden = s.BannedFor > 0, s.Own && c.Own
	if len(s.Similar) > 0 {
		c.Ban = ""
	}
	return c
}

// Tabs returns the name in the query and the label of each tab of the page.
func (p *page) Tabs() [][2]string {
	return [][2]string{{"", "Now"}, {"refusals", "Refusals"}, {"keys", "Keys and bans"}, {"changes", "Changes"},
		{"rules", "Rules"}}
}

// Live returns the URL from which the script loads the parts of the page that change. On the tab
// with keys, only the status bar changes. There, Live returns the URL of another tab, because
// loading the tab with keys would call the store for each ban.
func (p *page) Live() string {
	switch {
	case p.Tab == "refusals":
		return "./?" + url.Values{"tab": {p.Tab}, "rule": {p.Rule}, "key": {p.Key}}.Encode()
	case p.Tab == "":
		return "./"
	}
	return "./?tab=changes"
}

const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// servePage serves the page, and makes the changes that its forms request.
func (h *Handler) servePage(w http.ResponseWriter, r *http.Request) {
	if err := allow(w, r, http.MethodGet, http.MethodHead, http.MethodPost); err != nil {
		h.fail(w, r, err)
		return
	}
	var problem error
	q := r.URL.Query()
	if r.Method == http.MethodPost {
		fields, id, err := h.act(w, r)
		if err == nil {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Location", "./?"+back(fields, id).Encode())
			w.WriteHeader(http.StatusSeeOther)
			return
		}
		q, problem = fields, err
	}
	p, err := h.page(r, q)
	if problem == nil {
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
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "same-origin") // the URL contains a key, which other sites must not get
	send(w, status, "text/html; charset=utf-8", text.Bytes())
}

// back returns the query of the page that shows the result of a form.
func back(fields url.Values, id string) url.Values {
	q := url.Values{"done": {id}}
	for _, name := range slices.Concat(scoped, []string{"from", "tab"}) {
		if v := fields.Get(name); v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// queryOf parses the query of the page.
func queryOf(q url.Values) pageQuery {
	p := pageQuery{Tab: q.Get("tab"), Rule: q.Get("rule"), From: q.Get("from"), Quota: q.Get("quota"),
		Period: q.Get("period")}
	p.Key, p.Prefix, p.Network = q.Get("key"), q.Get("prefix"), q.Get("network")
	p.All = p.Prefix == "" && q.Has("prefix")
	p.looksUp = p.scope != (scope{}) || p.Rule != "" && q.Has("key")
	switch {
	case q.Get("do") == "undo", p.looksUp: // do is set after an error in a form
		p.Quota = ""
	case p.Quota != "":
		p.Tab = "rules"
	}
	if p.looksUp && p.Tab != "refusals" {
		p.Tab = "keys"
	}
	return p
}

// page collects the data of the page. If page returns an error, it also returns the data collected
// so far.
func (h *Handler) page(r *http.Request, q url.Values) (p *page, err error) {
	p = &page{h: h, rules: h.rules(), pageQuery: queryOf(q), At: time.Now(), Status: h.statusBar()}
	changes := h.changes.bodies()
	if i := slices.IndexFunc(changes, func(c changeBody) bool { return c.ID == q.Get("done") }); i >= 0 {
		p.Done = &changes[i]
	}
	five, _ := h.o.Recorder.Top(5 * time.Minute)
	p.Rows = h.ruleRows(bodiesOf(p.rules), five)
	p.Findings = h.findings(p.Status, p.Rows, p.rules)
	if p.Rule != "" {
		if p.named, err = ruleOf(p.rules, p.Rule); err != nil {
			return p, err
		}
	}
	switch p.Tab {
	case "":
		p.Offenders = h.offenders(five)
		p.Refusals = h.refusals("", "", 15)
	case "refusals":
		p.Refusals = h.refusals(p.Rule, p.Key, maxRefusals)
	case "changes":
		p.Changes, p.Reload = changes, h.reloaded()
	case "keys":
		return p, h.keysOnPage(r, p, q)
	case "rules":
		if p.Quota != "" {
			return p, h.tryOnPage(p)
		}
	default:
		p.Tab = ""
		return p, refuse(http.StatusNotFound, "there is no tab %q", q.Get("tab"))
	}
	return p, nil
}

// keysOnPage collects what is known about a key, and the bans and overrides of all keys.
func (h *Handler) keysOnPage(r *http.Request, p *page, q url.Values) (err error) {
	body := h.overridesOf("")
	p.Overrides, p.Stale = body.Overrides[:min(100, len(body.Overrides))], body.Stale
	if !p.looksUp {
		p.Bans, err = h.bans(r, p.rules, "")
		return err
	}
	rules := p.rules
	if p.named != nil {
		rules = []rule{*p.named}
	}
	if !p.single() {
		if p.scope, err = scopeOf(q); err != nil {
			return err
		}
	}
	from, err := clientAddr(q)
	if err != nil {
		return err
	}
	if p.single() {
		if p.State, err = h.explanations(r.Context(), rules, p.Key, from); err != nil {
			return err
		}
		for i := range p.State.Rules {
			s := &p.State.Rules[i]
			p.Refusals = append(p.Refusals, h.refusals(s.Rule, s.key, 20)...)
		}
	}
	if q.Get("do") != "" && r.Method != http.MethodPost {
		if p.Rule == "" {
			return refuse(http.StatusBadRequest, "the query has no rule")
		}
		p.Form, err = h.form(p, &rules[0], q.Get("do"))
		return err
	}
	p.Bans, err = h.bans(r, p.rules, "")
	return err
}

// tryOnPage tries the limit in p.Quota and p.Period, and sets p.Trial.
func (h *Handler) tryOnPage(p *page) error {
	if p.named == nil {
		return refuse(http.StatusBadRequest, "the query has no rule")
	}
	limits, err := limitsOf(url.Values{"quota": {p.Quota}, "period": {p.Period}})
	if err == nil {
		p.Trial, err = h.trial(p.named, limits)
	}
	return err
}

// A ruleRow is what the page shows about a rule.
type ruleRow struct {
	ruleBody
	Last15 watch.Count
	Minute watch.Count
	Spark  spark
	keys   int   // number of keys, as far as known, that the rule refused in the last 5 minutes
	recent int   // how many of these keys it refused in the last minute
	all    int64 // refusals of these keys, at least
	most   watch.Refused
}

// Share returns the percentage of requests that the rule refused in the last minute.
func (r *ruleRow) Share() string { return share(r.Minute.Refused, r.Minute.Allowed+r.Minute.Refused) }

// Bad reports whether the rule refused at least half of its requests in the last minute.
func (r *ruleRow) Bad() bool { return r.Minute.Refused > 0 && r.Minute.Refused >= r.Minute.Allowed }

// ruleRows returns a row for each rule. The offenders are the keys that were refused in the last 5
// minutes.
func (h *Handler) ruleRows(rules []ruleBody, offenders []watch.Refused) []ruleRow {
	rows := make([]ruleRow, len(rules))
	for i := range rules {
		r := &rows[i]
		r.ruleBody = rules[i]
		for _, k := range offenders {
			if k.Rule != r.Name || k.Shadow != (r.Enforce == 0) {
				continue
			}
			if r.keys == 0 {
				r.most = k
			}
			r.keys, r.all = r.keys+1, r.all+k.AtLeast()
			if time.Since(k.Last) < time.Minute {
				r.recent++
			}
		}
		counts, since := h.o.Recorder.History(r.Name)
		r.Minute, _ = minute(counts, since)
		for _, c := range counts {
			r.Last15.Add(c)
		}
		r.Spark = sparkOf(counts)
	}
	return rows
}

// A spark is a chart of the last 15 minutes. It has an outline of all requests and, inside it, an
// outline of the requests that were refused or would have been refused.
type spark struct {
	All, Shadow, Refused string // data of SVG paths, in a box of 60 by 20
	Peak                 string // the maximum of requests in a column, as a rate
}

// sparkOf draws columns of 15 s.
func sparkOf(counts []watch.Count) (s spark) {
	const columns, height = 60, 20
	var sums [columns]watch.Count
	most := int64(0)
	for i, c := range counts {
		sum := &sums[i*columns/len(counts)]
		sum.Add(c)
		most = max(most, sum.Allowed+sum.Shadow+sum.Refused)
	}
	if most == 0 {
		return s
	}
	draw := func(n func(c *watch.Count) int64) string {
		var path strings.Builder
		for i := range sums {
			if n := n(&sums[i]); n > 0 {
				y := max(1, float64(height)*float64(n)/float64(most)) // even a single refusal is visible
				fmt.Fprintf(&path, "M%d %dv-%.1fh1v%.1fz", i, height, y, y)
			}
		}
		return path.String()
	}
	s.All = draw(func(c *watch.Count) int64 { return c.Allowed + c.Shadow + c.Refused })
	s.Shadow = draw(func(c *watch.Count) int64 {
		if c.Shadow == 0 {
			return 0
		}
		return c.Shadow + c.Refused
	})
	s.Refused = draw(func(c *watch.Count) int64 { return c.Refused })
	s.Peak = rate(most, 15)
	return s
}

// rate formats the rate of n requests over a number of seconds.
func rate(n int64, over float64) string {
	r := float64(n) / max(1, over)
	switch {
	case n == 0:
		return "0/s"
	case r < 1:
		return fmt.Sprintf("%.1f/min", 60*r)
	case r < 10:
		return fmt.Sprintf("%.1f/s", r)
	}
	return number(int64(r+.5)) + "/s"
}

// share returns n of all in percent.
func share(n, all int64) string {
	switch p := 100 * float64(n) / float64(max(1, all)); {
	case n == 0:
		return "0 %"
	case p < 1:
		return "below 1 %"
	case n < all && p > 99:
		return "over 99 %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// number formats n with commas: 12,345.
func number(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ago describes how long ago the time t was.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < 2*time.Second:
		return "1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// durationText formats a number of seconds for people: 1h30m, 12.5s.
func durationText(seconds float64) string {
	text := period.Rounded(time.Duration(seconds * 1e9))
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
