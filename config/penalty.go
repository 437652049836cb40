package config

import (
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
)

// The fields of a penalty and of its strikes. No client sees a name of these.
var (
	penaltyFields = []string{"strikes", "for", "most"}
	strikesFields = []string{"limit", "period", "algorithm", "burst"}
)

// A penalty is a weir.Penalty with its strikes as the file has them.
type penalty struct {
	weir.Penalty
	strikes limit
}

// String is "10 per 1m (anchored-window), for 10m to 1d".
func (p *penalty) String() string {
	most := p.MaxDuration
	if most == 0 {
		most = max(24*time.Hour, p.Duration) // as weir.Penalty has it
	}
	return p.strikes.String() + " (" + p.strikes.Algorithm.Name() + "), for " + spell(p.Duration) + " to " + spell(most)
}

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
			d.errorf(n, "most %s is less than for %s", spell(p.MaxDuration), spell(p.Duration))
		}
	}
	if len(d.errs) == before {
		d.probe(n, weir.Rule{Penalty: &p.Penalty}, 0)
	}
	return p
}
