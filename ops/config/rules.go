package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/configfile"
)

// The fields of each mapping, in the order in which messages list them.
var (
	fileFields = []string{"trusted-proxies", "proxy-header", "free-preflights", "key", "algorithm", "timezone",
		"headers", "limits", "include"}
	includedFields = []string{"key", "algorithm", "timezone", "headers", "limits"}
	ruleFields     = []string{"name", "key", "no-key", "algorithm", "burst", "timezone", "headers", "cost", "unit",
		"class", "headroom", "settle", "enforce", "private",
		"allow", "deny", "penalty", "status", "retry-jitter", "config", "overrides"}
	limitFields = []string{"name", "limit", "period", "algorithm", "burst", "timezone"}
)

// These words may be the value of config instead of a list of limits.
const (
	unlimited = "unlimited"
	denied    = "denied"
)

// settles are the words that may be the value of settle instead of a list of statuses.
var settles = []string{"reserved", "used", "failed"}

// A settle value determines the final cost of requests.
type settle struct {
	text     string // "" for reserved, the default
	fn       func(weir.Outcome) int64
	byStatus bool
}

// A rule holds a weir.Rule, together with the parts of the file from which it was made.
type rule struct {
	weir.Rule
	headers     headers.Dialect
	limits      []limit
	word        string // unlimited or denied, instead of limits
	key         key
	class       key
	cost        cost
	allow, deny keyList
	penalty     *penalty
	overridden  []fact // its overrides
	settle      settle
}

// A decoder reads the rules of one file, and those of the files that it includes.
type decoder struct {
	source
	site
	o        *Options
	included []*decoder
}

// A site contains the settings of a file that also apply to the files that it includes.
type site struct {
	trusted       []netip.Prefix // trusted-proxies
	forwarded     bool           // proxy-header is forwarded
	freePreflight bool
}

// settings holds the values that a limit inherits from its rule, and that a rule inherits from the
// file.
type settings struct {
	key       key
	algorithm string
	location  *time.Location
	headers   headers.Dialect
	burst     int64
}

// decode returns the rules of the file and of the files that it includes.
func (d *decoder) decode() []rule {
	f := d.fields
	if f == nil {
		return nil
	}
	set(f, "trusted-proxies", &d.trusted, d.trustedProxies)
	set(f, "proxy-header", &d.forwarded, d.proxyHeader)
	set(f, "free-preflights", &d.freePreflight, d.boolean)
	s := settings{key: d.ipKey(), algorithm: gcra, location: time.UTC, headers: d.o.Limiter.Headers}
	if s.headers&^headers.Exposed == 0 {
		s.headers |= headers.XRateLimit
	}
	d.settings(&s, f)
	places := map[string]string{}
	rules := d.rules(s, places)
	for _, i := range d.included {
		i.site = d.site
		own := s
		i.settings(&own, i.fields)
		rules = append(rules, i.rules(own, places)...)
	}
	if len(rules) == 0 && d.err() == nil {
		d.errorf(f["include"], "neither the file nor a file that it includes has limits")
	}
	return rules
}

// rules reads the rules of one file. The defaults of the rules are in s, and places maps the name
// of each rule read so far to its place.
func (d *decoder) rules(s settings, places map[string]string) (rules []rule) {
	n := d.fields["limits"]
	if n == nil {
		return nil
	}
	for _, n := range d.list(n, "limits") {
		r := d.rule(n, s)
		if place := places[r.Name]; place != "" {
			d.errorf(n, "two rules are named %q; the first is in %s", r.Name, strings.TrimPrefix(place, d.path+" "))
		} else if r.Name != "" {
			places[r.Name] = fmt.Sprintf("%s line %d", d.path, configfile.First(n).Position.Line)
		}
		rules = append(rules, r)
	}
	return rules
}

// err returns the errors in the file, in their order, followed by those in the files that
// it includes, at most 100 in all.
func (d *decoder) err() error {
	const maxErrors = 100
	var errs []error
	for _, d := range append([]*decoder{d}, d.included...) {
		slices.SortStableFunc(d.errs, func(a, b *Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		for _, e := range d.errs[:min(maxErrors-len(errs), len(d.errs))] {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// settings reads the fields f of a mapping. If a field sets a value of s, settings replaces that
// value.
func (d *decoder) settings(s *settings, f fields) {
	set(f, "key", &s.key, d.key)
	set(f, "algorithm", &s.algorithm, d.algorithm)
	set(f, "timezone", &s.location, d.timezone)
	set(f, "headers", &s.headers, d.headers)
	set(f, "burst", &s.burst, d.burst)
}

// A ruleDecoder reads one rule.
type ruleDecoder struct {
	*decoder
	f fields
	s settings
	r rule
}

// rule reads a rule. s contains its defaults.
func (d *decoder) rule(n ast.Node, s settings) rule {
	before := len(d.errs)
	rd := &ruleDecoder{decoder: d, f: d.mapping(n, "a rule", ruleFields, "name", "config"), s: s}
	if rd.f == nil {
		return rule{}
	}
	rd.parts()
	if rd.f["config"] == nil {
		return rd.r
	}
	nodes := rd.config()
	if len(d.errs) == before {
		if n := rd.f["burst"]; n != nil && !slices.ContainsFunc(rd.r.limits, isMeter) {
			d.errorf(n, "no limit of the rule has a "+burstOfOthers)
		}
		rd.checkLimits(rd.r.limits, nodes)
	}
	if len(d.errs) == before {
		rd.policies()
	}
	if len(d.errs) == before {
		d.checkPart(n, rd.r.Rule)
	}
	return rd.r
}

// parts reads the fields of the rule except its limits and overrides.
func (d *ruleDecoder) parts() {
	r, f := &d.r, d.f
	set(f, "name", &r.Name, d.text)
	if err := reason(weir.Rule{Name: r.Name}); err != nil {
		d.errorf(f["name"], "name %q: %v", r.Name, err)
	}
	d.settings(&d.s, f)
	r.Rule.Key, r.key, r.headers, r.FreePreflights = d.s.key.fn, d.s.key, d.s.headers, d.freePreflight
	set(f, "no-key", &r.NoKey, d.noKey)
	r.cost = cost{n: 1, text: "1"}
	set(f, "cost", &r.cost, d.cost)
	r.Cost = r.cost.fn
	if r.cost.text == contentLength {
		r.Unit = "content-bytes"
	}
	set(f, "unit", &r.Unit, d.text)
	d.checkPart(f["unit"], weir.Rule{Unit: r.Unit})
	d.classes()
	set(f, "settle", &r.settle, d.settle)
	r.Settle = r.settle.fn
	set(f, "enforce", &r.Enforce, d.enforcement)
	set(f, "private", &r.Private, d.boolean)
	set(f, "allow", &r.allow, d.keyList)
	set(f, "deny", &r.deny, d.keyList)
	set(f, "penalty", &r.penalty, d.penalty)
	if r.penalty != nil {
		r.Penalty = &r.penalty.Penalty
	}
	set(f, "status", &r.Status, func(n ast.Node, what string) int { return int(d.atLeast1(n, what)) })
	d.checkPart(f["status"], weir.Rule{Status: r.Status})
	set(f, "retry-jitter", &r.RetryJitter, d.duration)
	d.checkPart(f["retry-jitter"], weir.Rule{RetryJitter: r.RetryJitter})
}

// classes reads the fields class and headroom.
func (d *ruleDecoder) classes() {
	r, class, headroom := &d.r, d.f["class"], d.f["headroom"]
	if s, ok := class.(*ast.StringNode); ok && s.Value == urgency {
		r.class = key{fn: weir.ByUrgency(), text: "header:Priority"}
	} else if class != nil {
		r.class = d.key(class, "class")
	}
	r.Class = r.class.fn
	if headroom != nil {
		r.Headroom = d.headroom(headroom)
	}
	if class == nil && headroom != nil {
		d.errorf(headroom, "headroom needs a class, and the rule has none")
	} else if class != nil && headroom == nil {
		d.errorf(class, "class needs a headroom, and the rule has none")
	}
}

// headroom reads a mapping of classes to percentages.
func (d *source) headroom(n ast.Node) map[string]int {
	m, ok := n.(*ast.MappingNode)
	if !ok || len(m.Values) == 0 {
		d.wrongType(n, "headroom", "a mapping of classes to percentages, such as {batch: 30%}")
		return nil
	}
	headroom := map[string]int{}
	for _, v := range m.Values {
		class := configfile.First(v.Key).Value
		percent, ok := percentage(v.Value)
		switch {
		case headroom[class] != 0:
			d.errorf(v, "headroom has the class %s twice", class)
		case !ok || percent < 1 || percent > 99 || percent != math.Trunc(percent):
			d.errorf(v.Value, "headroom of class %s is %s; want a percentage of each limit, 1%% to 99%%", class, describe(v.Value))
		}
		headroom[class] = max(1, int(percent))
	}
	return headroom
}

// settle reads a word, or a list of the statuses of responses whose requests are charged.
func (d *source) settle(n ast.Node, what string) settle {
	if _, isList := n.(*ast.SequenceNode); !isList {
		switch d.choice(n, what, settles) {
		case 1:
			return settle{"used", weir.ChargeUsed, false}
		case 2:
			return settle{"failed", chargeFailed, true}
		}
		return settle{}
	}
	var statuses []int
	var texts []string
	for _, n := range d.list(n, what) {
		status := d.atLeast1(n, what)
		if status != 0 && (status < 200 || status > 599) {
			d.errorf(n, "%s is %d; want a status from 200 to 599", what, status)
		}
		statuses, texts = append(statuses, int(status)), append(texts, strconv.FormatInt(status, 10))
	}
	if len(statuses) == 0 {
		return settle{} // list has added an error
	}
	return settle{strings.Join(texts, ", "), weir.ChargeOnly(statuses...), true}
}

// chargeFailed is a Settle function like those of weir.ChargeOnly, for all statuses of 400 or more.
func chargeFailed(o weir.Outcome) int64 {
	if o.Panicked || o.HungUp || o.Status >= 400 {
		return o.Cost
	}
	return 0
}

// config reads the config of the rule and returns the nodes of its limits.
func (d *ruleDecoder) config() (nodes []ast.Node) {
	r := &d.r
	r.word, r.limits, nodes = d.limits(d.f["config"], false)
	for _, l := range r.limits {
		r.Limits = append(r.Limits, l.Limit)
	}
	if r.word != "" {
		r.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	}
	return nodes
}

// limits reads the config of the rule or, if own is true, of an override. The config is a list of
// limits, or the word unlimited or denied. If the config is a list, limits also returns the nodes
// of the list.
func (d *ruleDecoder) limits(n ast.Node, own bool) (word string, limits []limit, nodes []ast.Node) {
	if s, ok := n.(*ast.StringNode); ok {
		if s.Value != unlimited && s.Value != denied {
			d.errorf(n, "config is %s; want a list of limits, %s or %s", describe(n), unlimited, denied)
		}
		return s.Value, nil, nil
	}
	nodes = d.list(n, "config")
	for _, n := range nodes {
		limits = append(limits, d.limit(n, "a limit", limitFields, d.s, own, len(nodes) == 1))
	}
	return "", limits, nodes
}

// policies sets ForKey and Policy of the rule.
func (d *ruleDecoder) policies() {
	r := &d.r
	table := d.table()
	var all func(string) weir.Policy
	if r.word == denied { // deny every key for which the table has no entry
		all = func(string) weir.Policy { return weir.Denied() }
	}
	var network func(*http.Request) bool
	if live := d.o.Overrides; live != nil {
		table, network = live.Of(r.Name, table), live.DenyFrom(r.Name, d.clientAddr())
	}
	r.ForKey = weir.When(r.allow.hasKey, weir.Allowed(), weir.When(r.deny.hasKey, weir.Denied(), table, all))
	r.Policy = weir.When(r.allow.hasAddr, weir.Allowed(),
		weir.When(r.deny.hasAddr, weir.Denied(), weir.When(network, weir.Denied(), r.Policy)))
}

// checkPart adds an error at the position of n if the given part of a rule is invalid.
func (d *decoder) checkPart(n ast.Node, part weir.Rule) {
	if err := reason(part); err != nil {
		d.errorf(n, "%v", err)
	}
}

// reason returns the error in a part of a rule, or nil. The other fields of the rule must be zero.
func reason(part weir.Rule) error {
	part.Name, part.Key = cmp.Or(part.Name, "a"), weir.Global()
	if len(part.Limits) == 0 {
		part.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	}
	return errors.Unwrap(part.Validate())
}

// headers reads a dialect or a list of dialects. After an error it returns XRateLimit.
func (d *decoder) headers(n ast.Node, what string) headers.Dialect {
	before := len(d.errs)
	sum := d.o.Limiter.Headers & headers.Exposed
	for _, n := range d.oneOrMore(n, what) {
		if i := d.choice(n, what, dialects); i >= 0 {
			sum |= 1 << i
		}
	}
	if len(d.errs) == before {
		if err := sum.Validate(); err != nil {
			d.errorf(n, "%s", strings.TrimPrefix(err.Error(), "headers: "))
		}
	}
	if len(d.errs) > before || sum == headers.Exposed {
		return sum&headers.Exposed | headers.XRateLimit
	}
	return sum
}

// dialects contains the names of the bits of headers.Dialect, starting with the lowest bit.
var dialects = []string{"x-ratelimit", "ietf", "draft-07", "draft-06", "github", "openai", "anthropic", "twitter",
	"none", "exposed"}
