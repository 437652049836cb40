package config

import (
	"cmp"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
)

// The fields of a penalty and of its strikes. Strikes have no name, because clients
// never see them.
var (
	penaltyFields = []string{"strikes", "for", "most"}
	strikesFields = []string{"limit", "period", "algorithm", "burst"}
)

// A penalty is a weir.Penalty and the limit that its strikes were made from.
type penalty struct {
	weir.Penalty
	strikes limit
}

// String returns a text such as "10 per 1m (anchored-window), for 10m to 1d".
func (p *penalty) String() string {
	most := cmp.Or(p.MaxDuration, max(24*time.Hour, p.Duration)) // the default of weir.Penalty
	return p.strikes.String() + " (" + p.strikes.Algorithm.Name() + "), for " + periodName(p.Duration) + " to " + periodName(most)
}

// penalty reads a penalty. The limit of its strikes inherits only the timezone of the rule.
func (d *ruleDecoder) penalty(n ast.Node, what string) *penalty {
	before := len(d.errs)
	p := &penalty{}
	f := d.mapping(n, "a "+what, penaltyFields, "strikes", "for")
	set(f, "strikes", &p.strikes, func(n ast.Node, what string) limit {
		s := d.s
		s.algorithm, s.burst = anchoredWindow, 0
		return d.limit(n, what, strikesFields, s, true)
	})
	p.Strikes = p.strikes.Limit
	set(f, "for", &p.Duration, d.duration)
	set(f, "most", &p.MaxDuration, d.duration)
	if n := f["most"]; n != nil && len(d.errs) == before && p.MaxDuration < p.Duration {
		d.errorf(n, "most (%s) is shorter than for (%s)", periodName(p.MaxDuration), periodName(p.Duration))
	}
	if len(d.errs) == before {
		d.valid(n, weir.Rule{Penalty: &p.Penalty})
	}
	return p
}
