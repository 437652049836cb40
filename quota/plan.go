package quota

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/mix"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/plans"
	"github.com/seed83679106/weir/internal/printable"
)

// Plan returns precomputed data for the i-th charge, such as a hash of its names. The data depends
// only on the rule and the limit. Call Plan only if Validate has returned nil and the rules and
// limits of the charges have not changed since.
func (t *Transaction) Plan(i int) *plans.Plan { return &t.plan(i).Plan }

func (t *Transaction) plan(i int) *plan {
	if i == 0 {
		return &t.first
	}
	return &t.others[i-1]
}

// makePlans makes a plan for each charge, unless t already has a plan for that rule and
// limit at the same index. It fails if a charge is invalid.
func (t *Transaction) makePlans() error {
	if n := len(t.Charges) - 1; n > len(t.others) {
		t.others = slices.Grow(t.others, n-len(t.others))[:n]
	}
	for i := range t.Charges {
		c, p := &t.Charges[i], t.plan(i)
		if !p.of(c) {
			t.distinct = min(t.distinct, i) // the plan gets other Names
			if err := p.make(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// A plan keeps the rule and a copy of the limit for which it was made, so that a changed
// limit gets a new plan.
type plan struct {
	plans.Plan
	known bool // whether rule and limit are set
	rule  string
	limit Limit

	hashed uint64 // see hash
	seed   maphash.Seed
}

// hash returns the hash of the limit with a seed. The plan must be known.
func (p *plan) hash(seed maphash.Seed) uint64 {
	if p.seed != seed {
		p.hashed, p.seed = hashLimit(seed, p.limit), seed
	}
	return p.hashed
}

// hashLimit hashes all of a limit but its name.
func hashLimit(seed maphash.Seed, l Limit) uint64 {
	l.Name = ""
	return maphash.Comparable(seed, l)
}

// of reports whether p is the plan of c.
func (p *plan) of(c *Charge) bool {
	l, m := &c.Limit, &p.limit
	return p.known && l.Quota == m.Quota && l.Period == m.Period && l.Burst == m.Burst &&
		c.Rule == p.rule && l.Name == m.Name && l.Algorithm == m.Algorithm
}

func (p *plan) make(c *Charge) error {
	was := p.known
	p.known, p.seed = false, maphash.Seed{}
	if !printable.Is(c.Rule) {
		return fmt.Errorf("quota: rule %q: %w", c.Rule, printable.Err)
	}
	l := &c.Limit
	if err := l.Fault(); err != nil {
		return fmt.Errorf("quota: rule %q: limit %q: %w", c.Rule, l.StoredName(), err)
	}
	p.Plan = plans.Plan{Names: c.names()}
	if m, ok := l.Algorithm.(Metered); ok {
		p.Unit, p.Rate, p.Full = m.Meter(l)
		p.Size = p.Full / p.Unit
	}
	// Algorithms need not be comparable, but a plan keeps only comparable ones.
	p.known = was && l.Algorithm == p.limit.Algorithm || compare.Can(l.Algorithm)
	if p.known {
		p.rule, p.limit = c.Rule, *l
	}
	return nil
}

// names returns the hash of the names under which the state of a charge is stored.
func (c *Charge) names() uint64 {
	h := mix.String(0, c.Rule)
	if c.Limit.Name != "" {
		h = mix.String(h, c.Limit.Name)
	} else {
		var b [period.Size]byte
		h = mix.String(h, period.Append(b[:0], c.Limit.Period))
	}
	return mix.String(h, c.Limit.Algorithm.Name())
}
