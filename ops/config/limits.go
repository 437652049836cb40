package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/period"
)

// A limit holds a weir.Limit, together with the settings that cannot be read from its Algorithm.
type limit struct {
	weir.Limit
	unit     algorithms.Unit // of a calendar, or 0
	location *time.Location  // of a calendar, or nil
}

// limit reads a limit, whose defaults are in s. If the limit is the only one in its list, single is
// true. If own is true, the limit is part of an override, and missing fields are taken from the
// limit that it replaces, as weir.Rule.ForKey describes.
func (d *ruleDecoder) limit(n ast.Node, what string, known []string, s settings, own, single bool) (l limit) {
	before := len(d.errs)
	required := []string{"limit", "period"}
	if own {
		required = []string{"limit"}
	}
	f := d.mapping(n, what, known, required...)
	set(f, "limit", &l.Quota, d.atLeast1)
	if n := f["period"]; n != nil {
		if l.unit = calendarUnit(n); l.unit == 0 {
			l.Period = d.duration(n, "period")
		}
	}
	var from *limit
	if own && len(d.errs) == before {
		from = d.replaced(n, f, &l, single)
	}
	if from != nil {
		s = from.settings(s)
	}
	d.settings(&s, f)
	if len(d.errs) > before {
		return l
	}
	d.setAlgorithm(&l, f, s)
	if len(d.errs) > before {
		return l
	}
	d.setBurst(&l, f["burst"], s.burst)
	switch name := f["name"]; {
	case name != nil:
		l.Name = d.text(name, "name")
		d.validLimit(name, l)
	case from != nil:
		l.Name = from.Label()
	case !single && l.Name == "":
		l.Name = l.Label()
	}
	if len(d.errs) == before {
		d.validLimit(n, l)
	}
	return l
}

// setBurst sets the burst of a limit, which n contains unless it is nil.
func (d *ruleDecoder) setBurst(l *limit, n ast.Node, burst int64) {
	switch {
	case isMeter(*l):
		l.Burst = burst
		if n != nil {
			d.validLimit(n, *l)
		}
	case n != nil:
		d.errorf(n, "%s has no "+burstOfOthers, l.Algorithm.Name())
	}
}

// settings returns the defaults s for a limit of an override, with the values that it takes from l,
// the limit that it replaces.
func (l *limit) settings(s settings) settings {
	s.algorithm, s.burst = l.Algorithm.Name(), l.Burst
	if l.location != nil {
		s.algorithm, s.location = calendar, l.location
	}
	return s
}

// setAlgorithm sets the Algorithm of a limit whose Quota, Period and unit are set.
func (d *ruleDecoder) setAlgorithm(l *limit, f fields, s settings) {
	switch {
	case l.unit != 0 && f["algorithm"] != nil && s.algorithm != calendar:
		d.errorf(f["algorithm"], "%s has no windows of a %v; only calendar has", s.algorithm, l.unit)
	case l.unit != 0:
		l.Limit = algorithms.Calendar(l.Quota, l.unit, s.location)
		l.location = s.location
	case s.algorithm == calendar:
		d.errorf(f["period"], "calendar has no windows of %s; its periods are day, week and month", period.Name(l.Period))
	case f["timezone"] != nil:
		d.errorf(f["timezone"], "timezone is only for the periods day, week and month")
	default:
		l.Algorithm = algorithms.ByName(s.algorithm)
	}
}

func (d *decoder) validLimit(n ast.Node, l limit) {
	d.checkPart(n, weir.Rule{Limits: []weir.Limit{l.Limit}})
}

// mostEntries is the maximum number of requests that a sliding log may have to remember for one
// key. A million entries take 16 to 32 MB in a memstore, and about 11 MB in Redis.
const mostEntries = 1_000_000

// checkLimits checks whether limits that are charged together fit each other and the cost of the
// rule.
func (d *ruleDecoder) checkLimits(limits []limit, nodes []ast.Node) {
	d.checkPairs(limits, nodes)
	cost := d.r.cost.n // 0 if a function returns the cost, so that the length of a log is unknown
	for i, l := range limits {
		if most := l.Limit.Capacity(); cost > most {
			d.errorf(d.f["cost"], "cost %d never fits in %s, which holds %d: every request would be refused", cost,
				l.describe(), most)
		}
		for _, class := range slices.Sorted(maps.Keys(d.r.Headroom)) {
			if most := l.Limit.Capacity(); l.Limit.Headroom(d.r.Headroom[class]) > most-max(1, cost) {
				d.errorf(d.f["headroom"], "%s holds %d, of which a headroom of %d%% leaves nothing to the class %s: every request of it would be refused",
					l.describe(), most, d.r.Headroom[class], class)
			}
		}
		if l.Algorithm.Name() == slidingLog && cost > 0 && l.Quota/cost > mostEntries {
			d.errorf(nodes[i], "%s keeps the time of up to %d requests for each key; a sliding-log may keep %d at most: choose another algorithm",
				l.describe(), l.Quota/cost, mostEntries)
		}
	}
}

// checkPairs adds an error for each pair of limits with the same name, and for each redundant
// limit.
func (d *ruleDecoder) checkPairs(limits []limit, nodes []ast.Node) {
	for i := range limits {
		for j := range i {
			if limits[i].Name == limits[j].Name {
				d.errorf(nodes[i], "two limits of the rule are named %q", limits[i].Name)
				return
			}
		}
	}
	for i, a := range limits {
		for j, b := range limits {
			// If two limits are the same, the error is about the second one.
			if i != j && a.Redundant(&b.Limit) && (i > j || !b.Redundant(&a.Limit)) {
				d.errorf(nodes[i], "%s never refuses a request that %s admits: remove it or change its numbers", a.describe(),
					b.describe())
				break
			}
		}
	}
}

const (
	calendar       = "calendar"
	gcra           = "gcra"
	slidingLog     = "sliding-log"
	anchoredWindow = "anchored-window"
)

// algorithm reads the name of an algorithm. After an error it returns gcra.
func (d *decoder) algorithm(n ast.Node, what string) string {
	known := append(algorithms.Names(), calendar)
	if i := d.choice(n, what, known); i >= 0 {
		return known[i]
	}
	return gcra
}

func (d *decoder) timezone(n ast.Node, what string) *time.Location {
	name := d.text(n, what)
	if name == "" {
		return nil
	}
	loc, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // Local differs from machine to machine
		d.errorf(n, "unknown timezone %s; want a name such as UTC or Europe/Berlin", name)
	}
	return loc
}

// calendarUnit returns the calendar unit that a period names, or 0 if it names none.
func calendarUnit(n ast.Node) algorithms.Unit {
	if s, ok := n.(*ast.StringNode); ok {
		for u := algorithms.Day; u <= algorithms.Month; u++ {
			if s.Value == u.String() {
				return u
			}
		}
	}
	return 0
}

// burstOfOthers is the end of the error about a burst that has no effect.
const burstOfOthers = "burst: only gcra, token-bucket and leaky-bucket have; omit the field"

// burst reads a burst. Without the field, the burst is the limit.
func (d *decoder) burst(n ast.Node, what string) int64 {
	if v, ok := n.(*ast.IntegerNode); ok && v.GetToken().Value == "0" {
		d.errorf(n, "burst is 0; want at least 1, or omit the field")
		return 0
	}
	return d.atLeast1(n, what)
}

// isMeter reports whether the algorithm of the limit has a burst.
func isMeter(l limit) bool {
	return slices.Contains([]string{"gcra", "token-bucket", "leaky-bucket"}, l.Algorithm.Name())
}

// describe returns the limit in the form used in messages: "the limit 1m (20 per 1m)".
func (l limit) describe() string {
	if l.Name == "" {
		return "the limit of " + l.String()
	}
	return "the limit " + l.Name + " (" + l.String() + ")"
}

// String returns what the limit allows, such as "20 per 1m, 5 at once".
func (l limit) String() string {
	s := fmt.Sprintf("%d per ", l.Quota)
	switch {
	case l.unit == 0:
		s += period.Name(l.Period)
	case l.location == time.UTC:
		s += l.unit.String()
	default:
		s += l.unit.String() + " of " + l.location.String()
	}
	if l.Burst != 0 {
		s += fmt.Sprintf(", %d at once", l.Burst)
	}
	return s
}

// The fields of a penalty and of its strikes. Strikes have no name, because clients never see them.
var (
	penaltyFields = []string{"strikes", "for", "most"}
	strikesFields = []string{"limit", "period", "algorithm", "burst"}
)

// A penalty holds a weir.Penalty, together with the limit that the file gives for its strikes.
type penalty struct {
	weir.Penalty
	strikes limit
}

// String returns a text such as "10 per 1m (anchored-window), for 10m to 1d".
func (p *penalty) String() string {
	return p.strikes.String() + " (" + p.strikes.Algorithm.Name() + "), for " + period.Name(p.Duration) + " to " +
		period.Name(ban.LongestOf(p.Duration, p.MaxDuration))
}

// penalty reads a penalty. The limit of its strikes inherits only the timezone of the rule.
func (d *ruleDecoder) penalty(n ast.Node, what string) *penalty {
	before := len(d.errs)
	p := &penalty{}
	f := d.mapping(n, "a "+what, penaltyFields, "strikes", "for")
	set(f, "strikes", &p.strikes, func(n ast.Node, what string) limit {
		s := d.s
		s.algorithm, s.burst = anchoredWindow, 0
		return d.limit(n, what, strikesFields, s, false, true)
	})
	p.Strikes = p.strikes.Limit
	set(f, "for", &p.Duration, d.duration)
	set(f, "most", &p.MaxDuration, d.duration)
	if n := f["most"]; n != nil && len(d.errs) == before && p.MaxDuration < p.Duration {
		d.errorf(n, "most (%s) is shorter than for (%s)", period.Name(p.MaxDuration), period.Name(p.Duration))
	}
	if len(d.errs) == before {
		d.checkPart(n, weir.Rule{Penalty: &p.Penalty})
	}
	return p
}
