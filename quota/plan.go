package quota

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
)

// Plan returns precomputed numbers for charge i. The first is a hash of the names that distinguish
// the states of a key: the Rule, the StoredName and the name of the algorithm. This hash depends on
// no secret, so combine it with a secret hash of the key. The others are the Period in µs and the
// Capacity. Both are 0 unless the algorithm is a Metered (see package optional), the Capacity is
// below 2^62 parts, and the charge has no Headroom. Call Plan only if Validate has returned nil and
// the rules, limits and headrooms of the charges have not changed since.
func (t *Transaction) Plan(i int) (names uint64, period, capacity int64) {
	p := t.plan(i)
	return p.names, p.period, p.capacity
}

func (t *Transaction) plan(i int) *plan {
	if i == 0 {
		return &t.first
	}
	return &t.others[i-1]
}

// makePlans makes a plan for each charge, unless t already has a plan for that rule and limit at
// the same index. It returns an error if a charge is invalid.
func (t *Transaction) makePlans() error {
	if n := len(t.Charges) - 1; n > len(t.others) {
		t.others = slices.Grow(t.others, n-len(t.others))[:n]
	}
	for i := range t.Charges {
		c, p := &t.Charges[i], t.plan(i)
		if !p.matches(c) {
			t.distinct = min(t.distinct, i) // the plan's names will change
			if err := cmp.Or(t.checkHeadroom(c), p.make(c)); err != nil {
				return err
			}
		}
	}
	return nil
}

// A plan keeps the rule and a copy of the limit for which it was made, so that a changed
// limit gets a new plan.
type plan struct {
	names            uint64 // see Transaction.Plan
	period, capacity int64

	known bool // whether rule and limit are set
	rule  string
	limit Limit

	headroom int64 // the charge's Headroom; if it is not 0, capacity is 0 and the plan is not reused

	hashed uint64 // see hash
	seed   maphash.Seed
}

// hash returns the hash of the plan's limit with the given seed. The plan must be known.
func (p *plan) hash(seed maphash.Seed) uint64 {
	if p.seed != seed {
		p.hashed, p.seed = hashLimit(seed, p.limit), seed
	}
	return p.hashed
}

// hashLimit hashes all fields of a limit except its name.
func hashLimit(seed maphash.Seed, l Limit) uint64 {
	l.Name = ""
	return maphash.Comparable(seed, l)
}

// matches reports whether p is a plan for c.
func (p *plan) matches(c *Charge) bool {
	l, m := &c.Limit, &p.limit
	return p.known && c.Headroom|p.headroom == 0 && l.Quota == m.Quota && l.Period == m.Period && l.Burst == m.Burst &&
		c.Rule == p.rule && l.Name == m.Name && l.Algorithm == m.Algorithm
}

func (p *plan) make(c *Charge) error {
	was := p.known
	p.known, p.seed = false, maphash.Seed{}
	if !storedkey.IsName(c.Rule) {
		return fmt.Errorf("quota: rule %q: %w", c.Rule, storedkey.ErrName)
	}
	l := &c.Limit
	if err := l.Fault(); err != nil {
		return fmt.Errorf("quota: rule %q: limit %q: %w", c.Rule, l.Label(), err)
	}
	p.names = c.names()
	p.period, p.capacity, p.headroom = 0, 0, c.Headroom
	if _, ok := l.Algorithm.(metered); ok && c.Headroom == 0 {
		period, capacity := l.Period/time.Microsecond, cmp.Or(l.Burst, l.Quota)
		if hi, parts := bits.Mul64(uint64(capacity), uint64(period)); hi == 0 && parts < 1<<62 {
			p.period, p.capacity = int64(period), capacity
		}
	}
	// An Algorithm need not be comparable, but only a plan with a comparable one can be reused.
	p.known = was && l.Algorithm == p.limit.Algorithm || safe.Comparable(l.Algorithm)
	if p.known {
		p.rule, p.limit = c.Rule, *l
	}
	return nil
}

// names returns the hash of the names under which the state of a charge is stored.
func (c *Charge) names() uint64 {
	var b [64]byte
	h := storedkey.HashName(storedkey.HashName(0, c.Rule), c.Limit.appendStoredName(b[:0]))
	return storedkey.HashName(h, c.Limit.Algorithm.Name())
}
