package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/configfile"
	"github.com/seed83679106/weir/ops/overrides"
)

// overrideFields are the fields of an override.
var overrideFields = []string{"value", "config", "overrides"}

// overrides reads the overrides of the rule, or those nested in an override. The values of the
// overrides must be keys that keys[0] can return. The values of overrides that are nested in these
// must be keys that keys[1] can return. Without keys[1], a nested override is an error.
func (d *ruleDecoder) overrides(n ast.Node, keys []key, path string) (entries []overrides.Entry) {
	lines := map[entry]int{}
	for _, n := range d.list(n, "overrides") {
		o := d.mapping(n, "an override", overrideFields, "value")
		if o == nil || o["value"] == nil {
			continue
		}
		var e overrides.Entry
		text := ""
		if c := o["config"]; c != nil {
			text = d.ownLimits(c, &e)
		}
		values := d.overrideValues(o["value"], &keys[0], lines)
		if nested := o["overrides"]; nested != nil {
			if len(keys) < 2 {
				d.errorf(nested, "overrides can be nested only once, and only if the key is a list")
			} else {
				var texts []string
				for _, v := range values {
					texts = append(texts, v.String())
				}
				e.Nested = d.overrides(nested, keys[1:2], path+strings.Join(texts, ", ")+" + ")
			}
		} else if o["config"] == nil {
			d.errorf(n, "an override has no config")
		}
		for _, v := range values {
			match := keys[0].stored(v)
			e.Key, e.Prefix, e.All = match.Key, match.Prefix, match.All
			entries = append(entries, e)
			if text != "" {
				d.r.overridden = append(d.r.overridden, fact{"override " + path + v.String(), text, ""})
			}
		}
	}
	return entries
}

// overrideValues reads a value or a list of values. lines maps each value to the line in which
// it first appears.
func (d *ruleDecoder) overrideValues(n ast.Node, k *key, lines map[entry]int) (values []entry) {
	for _, n := range d.oneOrMore(n, "value") {
		v, ok := d.entry(n, "value")
		if !ok {
			continue
		}
		v.plain = false
		if line := lines[v]; line > 0 {
			d.errorf(n, "two overrides have the value %v; the first is in line %d", v.quoted(), line)
			continue
		}
		if want := k.hintForValue(v); want != "" {
			d.errorf(n, "value %v is never the key of this rule: %s", v.quoted(), want)
			continue
		}
		lines[v] = configfile.First(n).Position.Line
		values = append(values, v)
	}
	return values
}

// hintForValue returns a hint about what to write if k never returns the key v, and otherwise "".
func (k *key) hintForValue(v entry) string {
	switch {
	case v.isPrefix && v.text == "":
		return ""
	case k.kind == kindHashed && !v.isPrefix:
		return k.parts[0].hintForValue(v)
	case k.kind == kindIP && !v.isPrefix:
		from, key, ok := keyFrom(v.text, k.net)
		if ok && key != v.text {
			return fmt.Sprintf("a request from %s has the key %q", from, key)
		}
		if ok {
			return ""
		}
	}
	return strings.TrimSuffix(k.hintFor(v), ", an address or a network")
}

// ownLimits reads the config of an override into e, and returns the config as text.
func (d *ruleDecoder) ownLimits(n ast.Node, e *overrides.Entry) string {
	before := len(d.errs)
	word, own, nodes := d.limits(n, true)
	e.Unlimited, e.Denied = word == unlimited, word == denied
	for _, l := range own {
		e.Limits = append(e.Limits, l.Limit)
	}
	if len(d.errs) == before {
		d.checkLimits(own, nodes)
	}
	return limitsText(word, own)
}

// replaced returns the limit of the rule that the limit l of an override replaces, or nil. The
// argument f contains the fields of l. If l has no period, it gets the period of that limit.
func (d *ruleDecoder) replaced(n ast.Node, f fields, l *limit, single bool) (from *limit) {
	for i := range d.r.limits {
		if o := &d.r.limits[i]; d.replaces(f, l, o, single) {
			from = o
		}
	}
	period := f["period"]
	switch {
	case period == nil && len(d.r.limits) == 0:
		d.errorf(n, "a limit has no period, and the rule has no limit that it could replace")
	case period == nil && from == nil:
		d.errorf(n, "a limit has no period, and the rule has several limits: a name or a period says which of them it replaces")
	case period == nil && (f["algorithm"] != nil || f["timezone"] != nil):
		d.errorf(n, "a limit with an algorithm or a timezone needs a period")
	case period == nil:
		l.Period, l.unit = from.Period, from.unit
	case from != nil && from.location != nil && l.unit == 0 && f["algorithm"] == nil:
		d.errorf(period, "period: the limit %s of the rule is of the calendar; want day, week or month, or an algorithm", from.Label())
	}
	return from
}

// replaces reports whether the limit l of an override replaces the limit o of the rule. A limit with
// a name replaces the limit with the same stored name. A limit without a name replaces the limit
// with the same period or, if single is true, the rule's only limit.
func (d *ruleDecoder) replaces(f fields, l, o *limit, single bool) bool {
	if name, ok := f["name"].(*ast.StringNode); ok {
		return name.Value == o.Label()
	}
	return f["period"] != nil && o.unit == l.unit && (l.unit != 0 || o.Period == l.Period) ||
		single && len(d.r.limits) == 1
}

// table reads the rule's overrides. The rule's limits must be valid. If the rule has no such field,
// table returns nil.
func (d *ruleDecoder) table() func(string) weir.Policy {
	n := d.f["overrides"]
	if n == nil {
		return nil
	}
	before := len(d.errs)
	keys, newTable := []key{d.r.key}, overrides.New
	if d.r.key.kind == kindJoined {
		keys, newTable = d.r.key.parts, overrides.NewJoined
	}
	entries := d.overrides(n, keys, "")
	if len(d.errs) > before {
		return nil
	}
	table, err := newTable(entries...)
	if err != nil {
		d.errorf(n, "%v", errors.Unwrap(err))
		return nil
	}
	return table.ForKey
}
