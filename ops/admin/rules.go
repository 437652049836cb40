package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed83679106/weir/ops/watch"
)

// A ruleRow is what the page shows about a rule.
type ruleRow struct {
	ruleBody
	Last15 watch.Count
	Minute watch.Count
	Spark  spark
	keys   int   // how many keys the rule refused in the last 5 minutes, as far as they are known
	recent int   // how many of these keys it refused in the last minute
	all    int64 // refusals of these keys, at least
	most   watch.Refused
}

// Share returns how many requests the rule refused in the last minute.
func (r *ruleRow) Share() string { return share(r.Minute.Refused, r.Minute.Allowed+r.Minute.Refused) }

// Bad reports whether the rule refuses half of its requests.
func (r *ruleRow) Bad() bool { return r.Minute.Refused > 0 && r.Minute.Refused >= r.Minute.Allowed }

// ruleRows returns a row for each rule. offenders are the keys of the last 5 minutes.
func (h *Handler) ruleRows(rules []ruleBody, offenders []watch.Refused) []ruleRow {
	rows := make([]ruleRow, len(rules))
	for i := range rules {
		r := &rows[i]
		r.ruleBody = rules[i]
		for _, k := range offenders {
			if k.Rule != r.Name || k.Shadow != (r.Enforce == 0) {
				continue
			}
			if r.keys == 0 {
				r.most = k
			}
			r.keys, r.all = r.keys+1, r.all+k.AtLeast()
			if time.Since(k.Last) < time.Minute {
				r.recent++
			}
		}
		if h.o.Traffic == nil {
			continue
		}
		counts, since := h.o.Traffic.History(r.Name)
		r.Minute, _ = minute(counts, since)
		for _, c := range counts {
			r.Last15.Add(c)
		}
		r.Spark = sparkOf(counts)
	}
	return rows
}

// A spark is a chart of the last 15 minutes: an outline of all requests and, inside it, of those
// that were refused or would have been refused.
type spark struct {
	All, Shadow, Refused string // data of SVG paths, in a box of 60 by 20
	Peak                 string // the maximum of requests in a column, as a rate
}

// sparkOf draws columns of 15 s.
func sparkOf(counts []watch.Count) (s spark) {
	const columns, height = 60, 20
	var sums [columns]watch.Count
	most := int64(0)
	for i, c := range counts {
		sum := &sums[i*columns/len(counts)]
		sum.Add(c)
		most = max(most, sum.Allowed+sum.Shadow+sum.Refused)
	}
	if most == 0 {
		return s
	}
	draw := func(n func(c *watch.Count) int64) string {
		var path strings.Builder
		for i := range sums {
			if n := n(&sums[i]); n > 0 {
				y := max(1, float64(height)*float64(n)/float64(most)) // even a single refusal is visible
				fmt.Fprintf(&path, "M%d %dv-%.1fh1v%.1fz", i, height, y, y)
			}
		}
		return path.String()
	}
	s.All = draw(func(c *watch.Count) int64 { return c.Allowed + c.Shadow + c.Refused })
	s.Shadow = draw(func(c *watch.Count) int64 {
		if c.Shadow == 0 {
			return 0
		}
		return c.Shadow + c.Refused
	})
	s.Refused = draw(func(c *watch.Count) int64 { return c.Refused })
	s.Peak = rate(most, 15)
	return s
}
