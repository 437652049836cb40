package accesslog

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// maxSampled is the maximum number of keys that a demand counts. If there are more keys, the demand
// leaves out half of them, chosen by a hash, so that the remaining keys are a fair sample.
const maxSampled = 1 << 18

// A demand counts the units that keys requested under one limit in each whole period of the clock.
// It counts allowed and refused requests.
type demand struct {
	limit quota.Limit
	most  int // keys
	keys  map[uint64]*spending
	level int // keys whose hash begins with fewer zeros than this are left out

	periods map[requested]int64 // periods without units do not count
	peaks   []int64             // of each key that was counted, sorted; set by finish

	top     string // the key that requested the most units in a period
	topPeak int64
}

// requested holds the number of units that a key requested in a period, and the number of leading
// zeros in the key's hash.
type requested struct {
	zeros int
	units int64
}

// A spending counts the units that one key requested.
type spending struct {
	period, units int64 // of its latest period
	peak          int64 // the most units in an earlier period
}

func newDemand(limit quota.Limit, most int) *demand {
	return &demand{limit: limit, most: most, keys: map[uint64]*spending{}, periods: map[requested]int64{}}
}

// hash returns a hash of a key that is the same in each run, so the same log leads to the same
// sample.
func hash(key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	x := h.Sum64() // the first bits of FNV depend too little on the last byte
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

func zeros(hash uint64) int { return bits.LeadingZeros64(hash) }

// add counts the units of a request. The instant is never earlier than in the previous call.
func (d *demand) add(key string, at time.Time, units int64) {
	id := hash(key)
	if zeros(id) < d.level || units <= 0 {
		return
	}
	a := d.keys[id]
	if a == nil {
		a = &spending{}
		d.keys[id] = a
	}
	if p := at.UnixMicro() / d.limit.Period.Microseconds(); p != a.period {
		d.end(id, a)
		a.period = p
	}
	if a.units += units; a.units > d.topPeak {
		d.top, d.topPeak = strings.Clone(storedkey.Of(key)), a.units
	}
	for len(d.keys) > d.most {
		d.level++
		maps.DeleteFunc(d.keys, func(id uint64, _ *spending) bool { return zeros(id) < d.level })
		maps.DeleteFunc(d.periods, func(of requested, _ int64) bool { return of.zeros < d.level })
	}
}

// end ends the latest period of a key.
func (d *demand) end(id uint64, a *spending) {
	if a.units > 0 {
		d.periods[requested{zeros(id), a.units}]++
	}
	a.peak, a.units = max(a.peak, a.units), 0
}

// finish ends all periods. No units may be added afterwards.
func (d *demand) finish() {
	for id, a := range d.keys {
		d.end(id, a)
		d.peaks = append(d.peaks, a.peak)
	}
	slices.Sort(d.peaks)
}

// share returns n if one key of every n was counted.
func (d *demand) share() int64 { return 1 << d.level }

// all returns an estimate of the number of keys. The estimate is exact if share returns 1.
func (d *demand) all() int64 { return int64(len(d.peaks)) * d.share() }

// peak returns the number of units that a given share of the keys never exceeded in a period. The
// share is in thousandths.
func (d *demand) peak(share int) int64 {
	return d.peaks[max(0, (len(d.peaks)*share+999)/1000-1)]
}

// refused returns the share of the keys, and of the units, that a limit of this many units would
// refuse if it counted in whole periods of the clock.
func (d *demand) refused(most int64) (keys, units float64) {
	above, _ := slices.BinarySearch(d.peaks, most+1)
	refused, all := int64(0), int64(0)
	for of, times := range d.periods {
		refused += max(0, of.units-most) * times
		all += of.units * times
	}
	return float64(len(d.peaks)-above) / float64(len(d.peaks)), float64(refused) / float64(all)
}

// suggested returns the number that 99 % of the keys never exceed, to two digits, rounded up.
func (d *demand) suggested() int64 {
	n, unit := d.peak(990), int64(1)
	for (n+unit-1)/unit > 99 {
		unit *= 10
	}
	return (n + unit - 1) / unit * unit
}

// unmeasured returns why a limit has no demand, or "".
func unmeasured(l *quota.Limit, span time.Duration) string {
	switch {
	case l.Algorithm.Name() == "calendar":
		return "is of calendar periods"
	case l.Period > span:
		return "has a longer period than the log"
	}
	return ""
}

// A suggestion is a limit that could replace a limit of a rule.
type suggestion struct {
	quota.Limit
	demand    *demand // nil if the limit stays as it is
	why       string  // why the limit stays as it is
	redundant bool    // it never refuses a request that another suggestion admits
}

// suggestions returns a suggestion for each limit of a rule.
func (rule *Rule) suggestions(span time.Duration) []suggestion {
	all := make([]suggestion, len(rule.Limits))
	for i, l := range rule.Limits {
		s := &all[i]
		s.Limit, s.why = l, cmp.Or(unmeasured(&l, span), "was never charged")
		for _, d := range rule.demands {
			if d.limit.Label() == l.Label() && d.limit.Period == l.Period && unmeasured(&l, span) == "" {
				s.demand, s.Quota = d, d.suggested()
			}
		}
	}
	for i := range all {
		for j := range all {
			all[i].redundant = all[i].redundant || i != j && !all[j].redundant && all[i].Redundant(&all[j].Limit)
		}
	}
	return all
}

// WriteSuggestions writes how many units keys requested under each limit, and how much several
// other limits would have refused. It also writes the YAML of limits that refuse only the 1 % of
// the keys with the highest demand.
func (r *Report) WriteSuggestions(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	var yaml []string
	for _, rule := range r.Rules {
		var limits []string
		measured := false
		for _, s := range rule.suggestions(r.To.Sub(r.From)) {
			if s.demand == nil {
				p("\nrule %s: no suggestion for %s, which %s", rule.Name, describe([]quota.Limit{s.Limit}), s.why)
			} else {
				s.demand.write(p, rule.Name)
				measured = true
			}
			if s.redundant {
				p("  %s is left out: another limit of the rule refuses at least as much", yamlOf(s.Limit))
				continue
			}
			limits = append(limits, yamlOf(s.Limit))
		}
		if measured {
			yaml = append(yaml, fmt.Sprintf("  - name: %q\n    config: [%s]", rule.Name, strings.Join(limits, ", ")))
		}
	}
	if len(yaml) == 0 {
		return
	}
	p("\nLimits that 99 %% of the keys never exceeded, as config of the rules (those without a suggestion are unchanged):\n\nlimits:\n%s",
		strings.Join(yaml, "\n"))
	p("\nBefore you use them, replay the log with them: the log has the past, perhaps with an attack or a holiday in it; give people" +
		" room to grow, and begin with enforce: 0%%.")
}

func (d *demand) write(p func(format string, args ...any), rule string) {
	about := ""
	if d.share() > 1 {
		about = "about "
	}
	p("\nrule %s, in whole periods of %s: %s%s", rule, period.Name(d.limit.Period), about, many(d.all(), "key"))
	p("  the most units of a key in a period: p50 %s, p90 %s, p99 %s, all %s", digits(d.peak(500)),
		digits(d.peak(900)), digits(d.peak(990)), digits(d.peak(1000)))
	s := d.suggested()
	for _, most := range slices.Compact(slices.Sorted(slices.Values([]int64{d.peak(900), s, d.peak(1000)}))) {
		keys, units := d.refused(most)
		n := int64(keys*float64(d.all()) + 0.5)
		p("  a limit of %s refuses %s%s of %s (%s), and %.2g %% of all units", digits(most), about, digits(n),
			many(d.all(), "key"), share(n, d.all()), 100*units)
	}
	if top := d.peak(1000); top >= 5*d.peak(990) {
		p("  %s had %s: an attack, a crawler or a proxy? One such key does not raise the suggestion, many do",
			strconv.Quote(d.top), digits(top))
	}
	if d.share() > 1 {
		p("  one of %s keys was counted, chosen by a hash: a rare key with more units may be missing", digits(d.share()))
	}
	if d.all() < 100 {
		p("  fewer than 100 keys: p99 is the key that had the most")
	}
}

// yamlOf returns a limit as in a limits file.
func yamlOf(l quota.Limit) string {
	name, of := l.Name, period.Name(l.Period)
	if l.Algorithm.Name() == "calendar" {
		of = map[string]string{"1d": "day", "7d": "week", "30d": "month"}[of]
		if name == of {
			name = ""
		}
	}
	text := fmt.Sprintf("limit: %d, period: %s", l.Quota, of)
	if name != "" {
		text = fmt.Sprintf("name: %q, %s", name, text)
	}
	if l.Algorithm.Name() != "calendar" { // which the period names
		text += ", algorithm: " + l.Algorithm.Name()
	}
	if l.Burst > 0 {
		text += fmt.Sprintf(", burst: %d", l.Burst)
	}
	return "{" + text + "}"
}
