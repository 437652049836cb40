package config

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/period"
)

// Changes lists the differences that a reload made, in the order in which the rules appear in the
// file. Removed rules come last.
type Changes []Change

// A Change describes one difference between the rules before and after a reload.
type Change struct {
	Rule string // the name of the rule

	// The field What names the part of the rule that changed: "key", "cost" and so on, or "limit 1m
	// (gcra)" with the stored name and the algorithm of a limit. It is empty if the whole rule was
	// added or removed. If the stored name or the algorithm of a limit changes, one limit is
	// removed and another limit, which starts counting at 0, is added.
	What string

	// From and To describe the part before and after the reload. From is empty if the part was
	// added, and To is empty if the part was removed.
	From, To string

	// Lost reports whether units spent before the reload no longer count. Counts are lost if a
	// rule, limit or penalty is removed, if a rule or limit is renamed, if the algorithm of a limit
	// or of a penalty's strikes changes, or if a rule's key changes. Lost is false for overrides,
	// although a key's counts start at 0 if its override changes the name or algorithm of a limit.
	Lost bool
}

// String returns the changes as text, one per line.
func (c Changes) String() string {
	var lines []string
	for _, change := range c {
		lines = append(lines, change.String())
	}
	return strings.Join(lines, "\n")
}

// String returns text such as "auth.createToken: limit 1m (sliding-log): 20 per 1m → 10 per 1m". If
// the change discards counts, the text mentions this.
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

// log logs the change, as a warning if counts are lost. No attribute is empty: the line about an
// added part has only the attribute to, and the line about a removed part has only the attribute
// from.
func (c Change) log(logger *slog.Logger) {
	level, message, attrs := slog.LevelInfo, "config: rule changed", []any{"rule", c.Rule}
	switch {
	case c.What == "" && c.From == "":
		message, attrs = "config: rule added", append(attrs, "limits", c.To)
	case c.What == "":
		message, attrs = "config: rule removed", append(attrs, "limits", c.From)
	default:
		attrs = append(attrs, "part", c.What)
		if c.From != "" {
			attrs = append(attrs, "from", c.From)
		}
		if c.To != "" {
			attrs = append(attrs, "to", c.To)
		}
	}
	if c.Lost {
		level, attrs = slog.LevelWarn, append(attrs, "lost", true)
	}
	logger.Log(context.Background(), level, message, attrs...)
}

// A fact describes a part of a rule, as Change does. If the part has counts, its identity
// represents the name under which they are stored. If the identity changes, the counts are lost.
type fact struct{ what, text, identity string }

// facts returns all parts of the rule.
func (r *rule) facts() []fact {
	facts := []fact{
		{"key", r.key.text, r.key.text},
		{"no-key", noKeys[r.NoKey], ""},
		{"cost", r.cost.text, ""},
		{"unit", cmp.Or(r.Unit, "requests"), ""},
		{"headers", headerNames(r.headers), ""},
		{"class", r.class.text, ""},
		{"headroom", r.headroomText(), ""},
		{"enforce", r.Enforce.String(), ""},
		{"allow", r.allow.text, ""},
		{"deny", r.deny.text, ""},
		{"config", r.word, ""},
		{"status", strconv.Itoa(cmp.Or(r.Status, http.StatusTooManyRequests)), ""},
		{"settle", r.settle.text, ""},
	}
	if r.FreePreflights {
		facts = append(facts, fact{"preflights", "free", ""})
	}
	if r.Private {
		facts = append(facts, fact{"private", "true", ""})
	}
	if r.RetryJitter > 0 {
		facts = append(facts, fact{"retry-jitter", period.Name(r.RetryJitter), ""})
	}
	if r.penalty != nil {
		facts = append(facts, fact{"penalty", r.penalty.String(), r.penalty.strikes.Algorithm.Name()})
	}
	for _, l := range r.limits {
		what := "limit " + l.Label() + " (" + l.Algorithm.Name() + ")"
		facts = append(facts, fact{what, l.String(), what + " " + l.StoredName()})
	}
	facts = append(facts, r.overridden...)
	return slices.DeleteFunc(facts, func(f fact) bool { return f.text == "" }) // parts that the rule lacks
}

// headerNames returns the names that a file uses for the dialects in d.
func headerNames(d headers.Dialect) string {
	var names []string
	for i, name := range dialects {
		if d&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// headroomText returns the headroom of each class, such as "batch: 30%, low: 50%".
func (r *rule) headroomText() string {
	var texts []string
	for _, class := range slices.Sorted(maps.Keys(r.Headroom)) {
		texts = append(texts, fmt.Sprintf("%s: %d%%", class, r.Headroom[class]))
	}
	return strings.Join(texts, ", ")
}

// limitsText returns limits, such as "20 per 1m; 5 per 3s", or the word that a rule has instead of them.
func limitsText(word string, limits []limit) string {
	texts := []string{}
	for _, l := range limits {
		texts = append(texts, l.String())
	}
	return cmp.Or(word, strings.Join(texts, "; "))
}

// changes compares the rules before and after a reload.
func changes(old, now []rule) (changes Changes) {
	for i := range now {
		r := &now[i]
		if before := ruleNamed(old, r.Name); before != nil {
			changes = append(changes, differences(r.Name, before.facts(), r.facts())...)
		} else {
			changes = append(changes, Change{Rule: r.Name, To: limitsText(r.word, r.limits)})
		}
	}
	for i := range old {
		if r := &old[i]; ruleNamed(now, r.Name) == nil {
			changes = append(changes, Change{Rule: r.Name, From: limitsText(r.word, r.limits), Lost: true})
		}
	}
	return changes
}

// differences compares the facts of the named rule before and after a reload.
func differences(name string, old, now []fact) (changes Changes) {
	before := map[string]fact{} // by name, the earlier facts that are now missing
	for _, f := range old {
		before[f.what] = f
	}
	for _, f := range now {
		was := before[f.what]
		if was.text != f.text {
			changes = append(changes, Change{name, f.what, was.text, f.text, was.identity != "" && was.identity != f.identity})
		}
		delete(before, f.what)
	}
	for _, f := range old {
		if _, removed := before[f.what]; removed {
			changes = append(changes, Change{name, f.what, f.text, "", f.identity != ""})
		}
	}
	return changes
}

// ruleNamed returns the rule with that name, or nil.
func ruleNamed(rules []rule, name string) *rule {
	if i := slices.Index(namesOf(rules), name); i >= 0 {
		return &rules[i]
	}
	return nil
}

// namesOf returns the names of rules.
func namesOf(rules []rule) (names []string) {
	for i := range rules {
		names = append(names, rules[i].Name)
	}
	return names
}
