package config

import (
	"fmt"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
)

// A limit is a weir.Limit with what can't be seen in one.
type limit struct {
	weir.Limit
	unit     algorithms.Unit // of the calendar, or 0
	location *time.Location
}

func (d *decoder) limit(n ast.Node, what string, fields []string, s settings, alone bool) (l limit) {
	before := len(d.errs)
	f := d.mapping(n, what, fields, "limit", "period")
	d.settings(&s, f)
	if n := f["limit"]; n != nil {
		l.Quota = d.atLeast1(n, "limit")
	}
	period := f["period"]
	if l.unit = calendarUnit(period); period != nil && l.unit == 0 {
		l.Period = d.duration(period, "period")
	}
	if len(d.errs) > before {
		return l
	}

	switch {
	case l.unit != 0 && f["algorithm"] != nil && s.algorithm != calendar:
		d.errorf(f["algorithm"], "%s has no window of a %v; only calendar has", s.algorithm, l.unit)
	case l.unit != 0:
		l.Limit = algorithms.Calendar(l.Quota, l.unit, s.location)
		l.location = s.location
	case s.algorithm == calendar:
		d.errorf(period, "the calendar has no window of %s; it has day, week and month", spell(l.Period))
	case f["timezone"] != nil:
		d.errorf(f["timezone"], "timezone is for the periods day, week and month")
	default:
		l.Algorithm = algorithmNamed(s.algorithm)
	}
	if len(d.errs) > before {
		return l
	}
	if isMeter(l) {
		l.Burst = s.burst
	} else if f["burst"] != nil {
		d.errorf(f["burst"], "%s has no burst: gcra, token-bucket and leaky-bucket have", l.Algorithm.Name())
	}
	switch name := f["name"]; {
	case name != nil:
		l.Name, _ = d.text(name, "name")
		d.probe(name, weir.Rule{Limits: []weir.Limit{l.Limit}}, 0)
	case !alone && l.Name == "":
		l.Name = l.StoredName()
	}
	if len(d.errs) == before {
		d.probe(n, weir.Rule{Limits: []weir.Limit{l.Limit}}, 0)
	}
	return l
}

// together checks the limits of a rule against each other.
func (d *decoder) together(nodes []ast.Node, limits []limit) {
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
			// If two limits are the same, the second is the mistake.
			if i != j && redundant(a, b) && (i > j || !redundant(b, a)) {
				d.errorf(nodes[i], "%s never refuses a request that %s admits: remove it or change its numbers", a.called(), b.called())
				break
			}
		}
	}
}

const (
	calendar       = "calendar"
	slidingLog     = "sliding-log"
	anchoredWindow = "anchored-window"
)

// counters are limits of each algorithm that needs no calendar.
var counters = []weir.Limit{
	algorithms.GCRA(1, 1), algorithms.TokenBucket(1, 1, 1), algorithms.LeakyBucket(1, 1, 1),
	algorithms.FixedWindow(1, 1), algorithms.AnchoredWindow(1, 1), algorithms.SlidingWindow(1, 1), algorithms.SlidingLog(1, 1),
}

// algorithmNamed returns nil for calendar, and for names that are not known.
func algorithmNamed(name string) weir.Algorithm {
	for _, l := range counters {
		if l.Algorithm.Name() == name {
			return l.Algorithm
		}
	}
	return nil
}

func (d *decoder) algorithm(n ast.Node) string {
	name, ok := d.text(n, "algorithm")
	if ok && name != calendar && algorithmNamed(name) == nil {
		known := []string{}
		for _, l := range counters {
			known = append(known, l.Algorithm.Name())
		}
		d.errorf(n, "unknown algorithm %s%s", name, meant(name, append(known, calendar)))
		ok = false
	}
	if !ok {
		return slidingLog
	}
	return name
}

func (d *decoder) timezone(n ast.Node) *time.Location {
	name, ok := d.text(n, "timezone")
	if !ok {
		return nil
	}
	loc, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // which is another one on another machine
		d.errorf(n, "unknown timezone %s; names are such as UTC and Europe/Berlin", name)
	}
	return loc
}

// calendarUnit returns the window of the calendar that a period names, or 0.
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

func isMeter(l limit) bool {
	switch l.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		return true
	}
	return false
}

// spell returns a period as stored names have it: 1m, 3s, 1d, 1500ms.
func spell(d time.Duration) string { return period.Name(d) }

// called is how messages name a limit: "the limit 1m (20 per 1m)".
func (l limit) called() string {
	if l.Name == "" {
		return "the limit of " + l.String()
	}
	return "the limit " + l.Name + " (" + l.String() + ")"
}

// String is what the limit allows: "20 per 1m, 5 at once".
func (l limit) String() string {
	s := fmt.Sprintf("%d per ", l.Quota)
	switch {
	case l.unit == 0:
		s += spell(l.Period)
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
