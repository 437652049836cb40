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

// penalty reads a penalty. The limit of its strikes inherits only the timezone from s.
func (d *decoder) penalty(n ast.Node, s settings) *penalty {
	before := len(d.errs)
	p := &penalty{}
	f := d.mapping(n, "a penalty", penaltyFields, "strikes", "for")
	if n := f["strikes"]; n != nil {
		s.algorithm, s.burst = anchoredWindow, 0
		p.strikes = d.limit(n, "strikes", strikesFields, s, true)
		p.Strikes = p.strikes.Limit
	}
	if n := f["for"]; n != nil {
		p.Duration = d.duration(n, "for")
	}
	if n := f["most"]; n != nil {
		if p.MaxDuration = d.duration(n, "most"); len(d.errs) == before && p.MaxDuration < p.Duration {
			d.errorf(n, "most (%s) is shorter than for (%s)", periodName(p.MaxDuration), periodName(p.Duration))
		}
	}
	if len(d.errs) == before {
		d.validate(n, weir.Rule{Penalty: &p.Penalty})
	}
	return p
}
