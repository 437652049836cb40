package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// The fields of each mapping, in the order in which messages list them.
var (
	fileFields = []string{"trusted-proxies", "proxy-header", "key", "algorithm", "timezone", "headers", "limits"}
	ruleFields = []string{"name", "key", "algorithm", "burst", "timezone", "headers", "cost", "unit", "shadow",
		"allow", "deny", "penalty", "config"}
	limitFields = []string{"name", "limit", "period", "algorithm", "burst", "timezone"}
)

// A rule is what the file says of one.
type rule struct {
	weir.Rule
	headers weir.Dialect
	limits  []limit
	key     key
	cost    cost
	allow   []string
	deny    []string
	penalty *penalty
}

// Settings are what limits have from their rule, and rules from the file.
type settings struct {
	trusted   []netip.Prefix
	key       key
	algorithm string
	location  *time.Location
	headers   weir.Dialect
	burst     int64
}

// placeholder stands for a rule where one is needed to check something else.
var placeholder = weir.Rule{
	Name: "placeholder", Key: weir.Global(),
	Limits: []weir.Limit{algorithms.FixedWindow(1, time.Second)},
}

func (d *decoder) decode(data []byte) []rule {
	root := d.parse(data)
	if len(d.errs) > 0 {
		return nil
	}
	f := d.mapping(root, "the file", fileFields, "limits")
	if f == nil {
		return nil
	}
	s := settings{algorithm: slidingLog, location: time.UTC, headers: d.o.Limiter.Headers}
	if s.headers == 0 {
		s.headers = weir.XRateLimit
	}
	if n := f["trusted-proxies"]; n != nil {
		s.trusted = d.prefixes(n, "trusted-proxies")
		d.trusted = s.trusted
	}
	if n := f["proxy-header"]; n != nil {
		d.proxyHeader(n, f["trusted-proxies"])
	}
	s.key = d.keyNamed(nil, "ip", s.trusted)
	d.settings(&s, f)
	if f["limits"] == nil {
		return nil
	}
	var rules []rule
	lines := map[string]int{}
	for _, n := range d.list(f["limits"], "limits") {
		r := d.rule(n, s)
		if line := lines[r.Name]; line > 0 {
			d.errorf(n, "two rules are named %q; the first is in line %d", r.Name, line)
		} else if r.Name != "" {
			lines[r.Name] = first(n).Position.Line
		}
		rules = append(rules, r)
	}
	return rules
}

// settings changes s by the fields that say something else.
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

func (d *decoder) rule(n ast.Node, s settings) (r rule) {
	before := len(d.errs)
	f := d.mapping(n, "a rule", ruleFields, "name", "config")
	if f == nil {
		return r
	}
	if name := f["name"]; name != nil {
		r.Name, _ = d.text(name, "name")
		d.probe(name, weir.Rule{Name: r.Name}, 0)
	}
	d.settings(&s, f)
	r.Rule.Key, r.key, r.headers = s.key.fn, s.key, s.headers
	r.cost = cost{n: 1, text: "1"}
	if n := f["cost"]; n != nil {
		r.cost = d.cost(n)
		r.Cost = r.cost.fn
		if r.cost.text == contentLength {
			r.Unit = "content-bytes"
		}
	}
	if n := f["unit"]; n != nil {
		r.Unit, _ = d.text(n, "unit")
		d.probe(n, weir.Rule{Unit: r.Unit}, 0)
	}
	if n := f["shadow"]; n != nil {
		r.Shadow = d.share(n, "shadow")
	}
	r.Allow, r.AllowFrom, r.allow = d.keyList(f["allow"], "allow", &s.key)
	r.Deny, r.DenyFrom, r.deny = d.keyList(f["deny"], "deny", &s.key)
	if n := f["penalty"]; n != nil {
		r.penalty = d.penalty(n, s)
		r.Penalty = &r.penalty.Penalty
	}
	if f["config"] == nil {
		return r
	}
	nodes := d.list(f["config"], "config")
	bursts := false
	for _, n := range nodes {
		l := d.limit(n, "a limit", limitFields, s, len(nodes) == 1)
		bursts = bursts || l.Algorithm != nil && isMeter(l)
		r.limits = append(r.limits, l)
		r.Limits = append(r.Limits, l.Limit)
	}
	if len(d.errs) > before {
		return r
	}
	if n := f["burst"]; n != nil && !bursts {
		d.errorf(n, "no limit of the rule has a burst: that is for gcra, token-bucket and leaky-bucket")
	}
	d.together(nodes, r.limits)
	for _, l := range r.limits {
		if most := l.Limit.Capacity(); r.cost.n > most {
			d.errorf(f["cost"], "cost %d never fits in %s, which holds %d: every request would be refused", r.cost.n, l.called(), most)
		}
	}
	if len(d.errs) == before {
		d.probe(n, r.Rule, r.headers)
	}
	return r
}

// probe asks weir.New about a part of a rule, and puts what it refuses at n.
func (d *decoder) probe(n ast.Node, r weir.Rule, headers weir.Dialect) {
	o := d.o.Limiter
	o.Rules = []weir.Rule{placeholder}
	if headers != 0 {
		o.Headers = headers
	}
	p := &o.Rules[0]
	if r.Key != nil {
		p.Key = r.Key
	}
	if r.Name != "" {
		p.Name = r.Name
	}
	if r.Limits != nil {
		p.Limits = r.Limits
	}
	p.Unit, p.Cost, p.Shadow, p.Penalty = r.Unit, r.Cost, r.Shadow, r.Penalty
	if _, err := weir.New(d.store, o); err != nil {
		text := strings.TrimPrefix(err.Error(), "weir: ")
		d.errorf(n, "%s", strings.TrimPrefix(text, `rule "placeholder": `))
	}
}

func (d *decoder) headers(n ast.Node) (sum weir.Dialect) {
	nodes := []ast.Node{n}
	if _, ok := n.(*ast.SequenceNode); ok {
		nodes = d.list(n, "headers")
	}
	before := len(d.errs)
	for _, n := range nodes {
		name, ok := d.text(n, "headers")
		if !ok {
			continue
		}
		i := slices.Index(dialects, name)
		if i < 0 {
			d.errorf(n, "unknown headers %s%s", name, meant(name, dialects))
			continue
		}
		sum |= 1 << i
	}
	if sum&weir.NoHeaders != 0 && sum != weir.NoHeaders {
		d.errorf(n, "none goes with no other headers")
	}
	if len(d.errs) == before {
		d.probe(n, weir.Rule{}, sum)
	}
	if len(d.errs) > before {
		return weir.XRateLimit
	}
	return sum
}

// dialects are the names of weir's, in the order of their bits.
var dialects = []string{"x-ratelimit", "ietf", "draft-07", "draft-06", "github", "openai", "anthropic", "twitter", "none"}
