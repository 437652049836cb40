package config

import (
	"fmt"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/counters"
	"github.com/seed83679106/weir/internal/period"
)

// A limit is a weir.Limit and what its Algorithm does not show.
type limit struct {
	weir.Limit
	unit     algorithms.Unit // of a calendar, or 0
	location *time.Location  // of a calendar, or nil
}

// limit reads a limit, whose defaults are s. If single is true, the rule has no other limit.
func (d *decoder) limit(n ast.Node, what string, known []string, s settings, single bool) (l limit) {
	before := len(d.errs)
	f := d.mapping(n, what, known, "limit", "period")
	d.settings(&s, f)
	set(f, "limit", &l.Quota, d.atLeast1)
	period := f["period"]
	if l.unit = calendarUnit(period); period != nil && l.unit == 0 {
		l.Period = d.duration(period, "period")
	}
	if len(d.errs) > before {
		return l
	}

	switch {
	case l.unit != 0 && f["algorithm"] != nil && s.algorithm != calendar:
		d.errorf(f["algorithm"], "%s has no windows of a %v; only calendar has", s.algorithm, l.unit)
	case l.unit != 0:
		l.Limit = algorithms.Calendar(l.Quota, l.unit, s.location)
		l.location = s.location
	case s.algorithm == calendar:
		d.errorf(period, "calendar has no windows of %s; its periods are day, week and month", periodName(l.Period))
	case f["timezone"] != nil:
		d.errorf(f["timezone"], "timezone is only for the periods day, week and month")
	default:
		l.Algorithm = counters.Named(s.algorithm)
	}
	if len(d.errs) > before {
		return l
	}
	if n := f["burst"]; n != nil {
		l.Burst = s.burst
		d.validLimit(n, l)
	} else if isMeter(l) {
		l.Burst = s.burst
	}
	switch name := f["name"]; {
	case name != nil:
		l.Name = d.text(name, "name")
		d.validLimit(name, l)
	case !single && l.Name == "":
		l.Name = l.StoredName()
	}
	if len(d.errs) == before {
		d.validLimit(n, l)
	}
	return l
}

func (d *decoder) validLimit(n ast.Node, l limit) {
	d.valid(n, weir.Rule{Limits: []weir.Limit{l.Limit}})
}

// mostEntries is the most requests that a sliding log may have to remember for one key. A
// million entries take 16 to 32 MB in a memstore, and about 11 MB in Redis.
const mostEntries = 1_000_000

// checkLimits checks limits that are charged together against each other, and against the
// cost of the rule.
func (d *ruleDecoder) checkLimits(limits []limit, nodes []ast.Node) {
	d.checkPairs(limits, nodes)
	cost := d.r.cost.n // 0 if a function returns the cost; the length of a log is not known then
	for i, l := range limits {
		if most := l.Limit.Capacity(); cost > most {
			d.errorf(d.f["cost"], "cost %d never fits in %s, which holds %d: every request would be refused", cost, l.describe(), most)
		}
		if l.Algorithm.Name() == slidingLog && cost > 0 && l.Quota/cost > mostEntries {
			d.errorf(nodes[i], "%s keeps the time of up to %d requests for each key; a sliding-log may keep %d at most: choose another algorithm",
				l.describe(), l.Quota/cost, mostEntries)
		}
	}
}

// checkPairs adds an error for two limits of the same name, and for each redundant limit.
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
			// If two limits are the same, the second is the error.
			if i != j && a.Redundant(&b.Limit) && (i > j || !b.Redundant(&a.Limit)) {
				d.errorf(nodes[i], "%s never refuses a request that %s admits: remove it or change its numbers", a.describe(), b.describe())
				break
			}
		}
	}
}

const (
	calendar       = "calendar"
	gcra           = "gcra"
	slidingLog     = "sliding-log"
	inFlight       = "in-flight"
	anchoredWindow = "anchored-window"
)

// algorithm reads the name of an algorithm. After an error it returns a valid one.
func (d *decoder) algorithm(n ast.Node, what string) string {
	var known []string
	for _, l := range counters.All {
		known = append(known, l.Algorithm.Name())
	}
	known = append(known, calendar)
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

// calendarUnit returns the unit of the calendar that a period names, or 0.
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

// isMeter reports whether the algorithm of the limit has a burst.
func isMeter(l limit) bool {
	switch l.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		return true
	}
	return false
}

// periodName returns a period as in stored names: 1m, 3s, 1d, 1500ms.
func periodName(d time.Duration) string { return period.Name(d) }

// describe returns how messages name a limit: "the limit 1m (20 per 1m)".
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
		s += periodName(l.Period)
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
