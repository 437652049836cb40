package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed83679106/weir"
)

// Changes are what a reload made different, in the order of the file, removed
// rules last.
type Changes []Change

// A Change is one thing that is different now.
type Change struct {
	Rule string

	// What is "key", "cost" and so on, or "limit 1m (gcra)", with the limit's
	// stored name. It is empty for a rule that is new or gone. A limit whose
	// stored name or algorithm is another is gone, and the other one is new and
	// counts from 0; those that change keep what was spent.
	What string

	// From is empty for what is new, To for what is gone.
	From, To string

	// Lost says that what was spent before does not count any more: the rule or
	// the limit is gone, be it under another name, or the rule counts other
	// keys, or a penalty counts strikes by another algorithm. Every other change
	// keeps every count.
	Lost bool
}

// String is one change a line, in words.
func (c Changes) String() string {
	var lines []string
	for _, change := range c {
		lines = append(lines, change.String())
	}
	return strings.Join(lines, "\n")
}

// String is "auth.createToken: limit 1m (sliding-log): 20 per 1m → 10 per 1m".
// If counts are lost it says so.
func (c Change) String() string {
	s := c.Rule + ": "
	if c.What != "" {
		s += c.What + ": "
	}
	switch {
	case c.From == "":
		s += "added: " + c.To
	case c.To == "":
		s += "removed: " + c.From
	default:
		s += c.From + " → " + c.To
	}
	if c.Lost {
		s += "; its counts are lost"
	}
	return s
}

// A fact is something that is true of a rule. counts is what it knows counts by,
// if it has any: with another one they are lost.
type fact struct{ what, text, counts string }

func (r *rule) facts() []fact {
	unit := r.Unit
	if unit == "" {
		unit = "requests"
	}
	facts := []fact{
		{"key", r.key.text, r.key.text},
		{"cost", r.cost.text, ""},
		{"unit", unit, ""},
		{"headers", headerNames(r.headers), ""},
		{"shadow", fmt.Sprintf("%.4g%%", 100*r.Shadow), ""},
	}
	if r.allow != nil {
		facts = append(facts, fact{"allow", strings.Join(r.allow, ", "), ""})
	}
	if r.deny != nil {
		facts = append(facts, fact{"deny", strings.Join(r.deny, ", "), ""})
	}
	if r.penalty != nil {
		facts = append(facts, fact{"penalty", r.penalty.String(), r.penalty.strikes.Algorithm.Name()})
	}
	for _, l := range r.limits {
		what := "limit " + l.StoredName() + " (" + l.Algorithm.Name() + ")"
		facts = append(facts, fact{what, l.String(), what})
	}
	return facts
}

func headerNames(d weir.Dialect) string {
	var names []string
	for i, name := range dialects {
		if d&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// limitsText is the limits of a rule: "20 per 1m, 5 per 3s".
func (r *rule) limitsText() string {
	var texts []string
	for _, l := range r.limits {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, "; ")
}

func changes(old, now []rule) (changes Changes) {
	for i := range now {
		r := &now[i]
		if before := ruleNamed(old, r.Name); before != nil {
			changes = append(changes, differences(r.Name, before.facts(), r.facts())...)
		} else {
			changes = append(changes, Change{Rule: r.Name, To: r.limitsText()})
		}
	}
	for i := range old {
		if r := &old[i]; ruleNamed(now, r.Name) == nil {
			changes = append(changes, Change{Rule: r.Name, From: r.limitsText(), Lost: true})
		}
	}
	return changes
}

func differences(name string, old, now []fact) (changes Changes) {
	find := func(facts []fact, what string) (f fact) {
		if i := slices.IndexFunc(facts, func(f fact) bool { return f.what == what }); i >= 0 {
			f = facts[i]
		}
		return f
	}
	for _, f := range now {
		if before := find(old, f.what); before.text != f.text {
			changes = append(changes, Change{name, f.what, before.text, f.text, before.counts != "" && before.counts != f.counts})
		}
	}
	for _, f := range old {
		if find(now, f.what).text == "" {
			changes = append(changes, Change{name, f.what, f.text, "", f.counts != ""})
		}
	}
	return changes
}

func ruleNamed(rules []rule, name string) *rule {
	i := slices.IndexFunc(rules, func(r rule) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &rules[i]
}
