package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
)

// The fields of each mapping, in the order in which messages list them.
var (
	fileFields     = []string{"trusted-proxies", "proxy-header", "free-preflights", "key", "algorithm", "timezone", "headers", "limits", "include"}
	includedFields = []string{"key", "algorithm", "timezone", "headers", "limits"}
	ruleFields     = []string{"name", "key", "no-key", "algorithm", "burst", "timezone", "headers", "cost", "unit", "shadow",
		"allow", "deny", "penalty", "status", "retry-jitter", "config", "overrides"}
	limitFields = []string{"name", "limit", "period", "algorithm", "burst", "timezone"}
)

// A rule is a weir.Rule and the parts of the file that it was made from.
type rule struct {
	weir.Rule
	headers     headers.Dialect
	limits      []limit
	word        string // unlimited or denied, instead of limits
	key         key
	cost        cost
	allow, deny keyList
	penalty     *penalty
	overridden  []fact // its overrides

	freePreflight bool // as in every rule of the file
}

// settings are the values that a limit inherits from its rule, and a rule from the file.
type settings struct {
	trusted   []netip.Prefix
	key       key
	algorithm string
	location  *time.Location
	headers   headers.Dialect
	burst     int64

	freePreflight bool
}

// placeholder has what a part of a rule lacks to be a valid rule.
var placeholder = weir.Rule{
	Name: "placeholder", Key: weir.Global(),
	Limits: []weir.Limit{algorithms.FixedWindow(1, time.Second)},
}

// decode returns the rules of the file and of the files that it includes.
func (d *decoder) decode() []rule {
	f := d.fields
	if f == nil {
		return nil
	}
	s := settings{algorithm: gcra, location: time.UTC, headers: d.o.Limiter.Headers}
	if s.headers&^headers.Exposed == 0 {
		s.headers |= headers.XRateLimit
	}
	if n := f["trusted-proxies"]; n != nil {
		s.trusted = d.trustedProxies(n)
		d.trusted = s.trusted
	}
	if n := f["proxy-header"]; n != nil {
		d.proxyHeader(n, f["trusted-proxies"])
	}
	if n := f["free-preflights"]; n != nil {
		s.freePreflight = d.boolean(n, "free-preflights")
	}
	s.key = d.keyNamed(nil, "ip", s.trusted)
	d.ip = s.key.fn
	d.settings(&s, f)
	places := map[string]string{}
	rules := d.rules(s, places)
	for _, i := range d.included {
		s := s
		i.trusted, i.forwarded = d.trusted, d.forwarded
		i.settings(&s, i.fields)
		rules = append(rules, i.rules(s, places)...)
	}
	if len(rules) == 0 && d.err() == nil {
		d.errorf(f["include"], "neither the file nor a file that it includes has limits")
	}
	return rules
}

// rules reads the rules of one file, whose defaults are s. places has the place of each
// rule that was read before, by its name.
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
			places[r.Name] = fmt.Sprintf("%s line %d", d.path, firstToken(n).Position.Line)
		}
		rules = append(rules, r)
	}
	return rules
}

// settings reads the fields f of a mapping, and replaces those values of s that they set.
func (d *decoder) settings(s *settings, f map[string]ast.Node) {
	if n := f["key"]; n != nil {
		s.key = d.key(n, s.trusted)
	}
	if n := f["algorithm"]; n != nil {
		s.algorithm = d.algorithm(n)
	}
	if n := f["timezone"]; n != nil {
		s.location = d.timezone(n)
	}
	if n := f["headers"]; n != nil {
		s.headers = d.headers(n)
	}
	if n := f["burst"]; n != nil {
		s.burst = d.atLeast1(n, "burst")
	}
}

// rule reads a rule, whose defaults are s.
func (d *decoder) rule(n ast.Node, s settings) (r rule) {
	before := len(d.errs)
	f := d.mapping(n, "a rule", ruleFields, "name", "config")
	if f == nil {
		return r
	}
	if n := f["name"]; n != nil {
		r.Name, _ = d.text(n, "name")
		d.validate(n, weir.Rule{Name: r.Name})
	}
	d.settings(&s, f)
	r.Rule.Key, r.key, r.headers, r.freePreflight = s.key.fn, s.key, s.headers, s.freePreflight
	if n := f["no-key"]; n != nil {
		r.NoKey = d.noKey(n)
	}
	d.ruleCost(&r, f)
	if n := f["shadow"]; n != nil {
		r.Shadow = d.share(n, "shadow")
	}
	r.allow, r.deny = d.keyList(f["allow"], "allow", &s.key), d.keyList(f["deny"], "deny", &s.key)
	if n := f["penalty"]; n != nil {
		r.penalty = d.penalty(n, s)
		r.Penalty = &r.penalty.Penalty
	}
	if n := f["status"]; n != nil {
		r.Status = int(d.atLeast1(n, "status"))
		d.validate(n, weir.Rule{Status: r.Status})
	}
	if n := f["retry-jitter"]; n != nil {
		r.RetryJitter = d.duration(n, "retry-jitter")
		d.validate(n, weir.Rule{RetryJitter: r.RetryJitter})
	}
	if f["config"] == nil {
		return r
	}
	nodes := d.ruleLimits(&r, f["config"], s)
	if len(d.errs) == before {
		d.checkLimits(&r, f, nodes)
	}
	if len(d.errs) == before {
		d.validate(n, r.Rule)
	}
	if len(d.errs) == before {
		d.setPolicies(&r, d.table(&r, f, s))
	}
	return r
}

// ruleLimits reads the config of a rule and returns the nodes of its limits: none if the
// config is unlimited or denied.
func (d *decoder) ruleLimits(r *rule, n ast.Node, s settings) []ast.Node {
	if _, ok := n.(*ast.StringNode); ok {
		r.word = d.word(n)
		r.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
		return nil
	}
	nodes := d.list(n, "config")
	for _, n := range nodes {
		l := d.limit(n, "a limit", limitFields, s, len(nodes) == 1)
		r.limits = append(r.limits, l)
		r.Limits = append(r.Limits, l.Limit)
	}
	return nodes
}

// setPolicies sets ForKey and Policy of a rule, which has the given table of overrides.
func (d *decoder) setPolicies(r *rule, table func(string) weir.Policy) {
	var all func(string) weir.Policy
	if r.word == denied { // every key for which the table has nothing
		all = func(string) weir.Policy { return weir.Denied() }
	}
	var network func(*http.Request) bool
	if live := d.o.Overrides; live != nil {
		table, network = live.Of(r.Name, table), live.DenyFrom(r.Name, d.clientAddr())
	}
	r.ForKey = weir.When(r.allow.hasKey, weir.Allowed(), weir.When(r.deny.hasKey, weir.Denied(), table, all))
	r.Policy = weir.When(r.allow.hasAddr, weir.Allowed(), weir.When(r.deny.hasAddr, weir.Denied(), weir.When(network, weir.Denied(), r.Policy)))
}

// ruleCost reads the cost of a rule and its unit.
func (d *decoder) ruleCost(r *rule, f map[string]ast.Node) {
	r.cost = cost{n: 1, text: "1"}
	if n := f["cost"]; n != nil {
		r.cost = d.cost(n)
		r.Cost = r.cost.fn
		if r.cost.text == contentLength {
			r.Unit = "content-bytes"
		}
	}
	if r.freePreflight {
		r.Cost = weir.FreePreflight(r.Cost)
	}
	if n := f["unit"]; n != nil {
		r.Unit, _ = d.text(n, "unit")
		d.validate(n, weir.Rule{Unit: r.Unit})
	}
}

// validate reports the error of a part of a rule at the node n.
func (d *decoder) validate(n ast.Node, r weir.Rule) {
	r.Name, r.Key = cmp.Or(r.Name, placeholder.Name), placeholder.Key
	if r.Limits == nil {
		r.Limits = placeholder.Limits
	}
	if invalid := new(weir.RuleError); errors.As(r.Validate(), &invalid) {
		d.errorf(n, "%v", invalid.Err)
	}
}

// headers reads a dialect or a list of them. After a mistake it returns a valid one.
func (d *decoder) headers(n ast.Node) (sum headers.Dialect) {
	nodes := []ast.Node{n}
	if _, ok := n.(*ast.SequenceNode); ok {
		nodes = d.list(n, "headers")
	}
	before := len(d.errs)
	sum = d.o.Limiter.Headers & headers.Exposed
	for _, n := range nodes {
		name, ok := d.text(n, "headers")
		if !ok {
			continue
		}
		i := slices.Index(dialects, name)
		if i < 0 {
			d.errorf(n, "unknown headers %s%s", name, suggest(name, dialects))
			continue
		}
		sum |= 1 << i
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

// dialects are the names of the bits of headers.Dialect, from the lowest.
var dialects = []string{"x-ratelimit", "ietf", "draft-07", "draft-06", "github", "openai", "anthropic", "twitter", "none", "exposed"}
