package weir

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

const (
	// maxPrepared is how many lists of limits a rule keeps prepared. When one more comes, the
	// rule drops the others, and prepares a list again when the list is used.
	maxPrepared = 1 << 14

	maxDepth = 64 // lists that differ only in the values of their algorithms
)

// policyFor returns the limits of a request under a rule that has Policy or ForKey, or what the
// rule says instead. It returns nil if the rule has no key of the request and says nothing.
func (rule *rule) policyFor(v *verdict, r *http.Request, key string, applies bool) (p *prepared, err error) {
	var own, asked Policy
	if rule.ForKey != nil && applies {
		own = rule.ForKey(key)
	}
	if rule.Policy != nil && own.kind != allowed {
		asked = rule.Policy(r.WithContext(asking{v.Context}))
	}
	switch {
	case own.kind == allowed || asked.kind == allowed:
		return isAllowed, nil
	case own.kind == denied || asked.kind == denied:
		return isDenied, nil
	case !applies:
		return nil, nil
	case own.kind == unlimited:
		return isUnlimited, nil
	}
	base := rule.own
	switch asked.kind {
	case limited:
		if base, err = rule.countable(v, asked.limits); err != nil {
			return nil, err
		}
	case unlimited:
		base = isUnlimited
	}
	if own.kind == limited {
		p := rule.prepare(own.limits, base)
		if p.err == nil {
			return p, nil
		}
		rule.log.warn(v.Context, "policy of ForKey ignored", rule.Name, p.err)
	}
	if base == nil {
		return nil, fmt.Errorf("weir: rule %q: the policy is zero, and the rule has no Limits: %w", rule.Name, quota.ErrLimit)
	}
	return base, nil
}

// countable prepares limits that Policy has returned. In place of a limit that cannot be counted
// exactly, it prepares a lower limit that can be counted, and logs the error.
func (rule *rule) countable(v *verdict, limits []Limit) (*prepared, error) {
	p := rule.prepare(limits, nil)
	if p.err == nil {
		return p, nil
	}
	limits = slices.Clone(limits)
	for i := range limits {
		var uncountable quota.Uncountable
		if errors.As(limits[i].Fault(), &uncountable) {
			limits[i] = uncountable.Nearest()
		}
	}
	nearest := rule.prepare(limits, nil)
	if nearest.err != nil {
		return nil, fmt.Errorf("%w: %w", nearest.err, quota.ErrLimit)
	}
	rule.log.warn(v.Context, "limit of Policy lowered", rule.Name, fmt.Errorf("%w: %w", p.err, quota.ErrLimit))
	return nearest, nil
}

// prepare returns limits in prepared form. They replace limits of base, which may be nil. It
// keeps each form, and finds it by the values of the limits, which the caller may change later.
func (rule *rule) prepare(limits []Limit, base *prepared) *prepared {
	hash := hashOf(limits, base)
	first, _ := rule.lists.Load(hash)
	same, _ := first.(*prepared)
	for p := same; p != nil; p = p.next {
		if p.base == base && slices.Equal(p.of, limits) {
			return p
		}
	}
	p := &prepared{of: slices.Clone(limits), base: base, hash: hash}
	var replaced []policy
	if base != nil {
		replaced = base.policies
	}
	var err error
	if p.policies, err = rule.policiesOf(p.of, replaced); err != nil {
		p.err = &RuleError{rule.Name, err}
	}
	p.loose = base != nil && base.loose || slices.ContainsFunc(p.of, func(l Limit) bool {
		return !compare.Can(l.Algorithm)
	})
	if p.loose {
		return p
	}
	if same != nil && same.depth < maxDepth {
		p.next, p.depth = same, same.depth+1
	}
	if rule.listCount.Add(1) > maxPrepared {
		rule.lists.Clear()
		rule.listCount.Store(1)
	}
	rule.lists.Store(hash, p)
	return p
}

// hashOf hashes limits, and those that they replace, without the values of algorithms, which may
// not be hashable.
func hashOf(limits []Limit, base *prepared) (h uint64) {
	if base != nil {
		h = base.hash
	}
	for i := range limits {
		l, algorithm := limits[i], ""
		if l.Algorithm != nil {
			algorithm = l.Algorithm.Name()
		}
		h = maphash.Comparable(listSeed, hashed{h, l.Name, algorithm, l.Quota, l.Period, l.Burst})
	}
	return h
}

type hashed struct {
	h               uint64
	name, algorithm string
	quota           int64
	period          time.Duration
	burst           int64
}

var listSeed = maphash.MakeSeed()

// PolicyOf returns the policy of a key under a rule: what ForKey says of the key, and otherwise
// Limits, with the stored names of limits. It asks Rule.Policy nothing, which needs a request: if
// the rule has no Limits, the limits of a key that has no policy, or that are to replace
// limits of the request, are the zero Policy. The error is not nil if there is no such rule, or if
// the key has a limit that is invalid.
func (l *Limiter) PolicyOf(rule, key string) (Policy, error) {
	for _, r := range l.rules {
		if r.Name == rule {
			return r.policyOf(key)
		}
	}
	return Policy{}, fmt.Errorf("weir: there is no rule %q", rule)
}

// PolicyOf returns the policy of a key, as Limiter.PolicyOf does, or the error of Validate.
func (r Rule) PolicyOf(key string) (Policy, error) {
	rule, err := prepare(r, defaultWriter)
	if err != nil {
		return Policy{}, err
	}
	return rule.policyOf(key)
}

func (rule *rule) policyOf(key string) (Policy, error) {
	own, p := Policy{}, rule.own
	if rule.ForKey != nil {
		own = rule.ForKey(key)
	}
	switch {
	case own.kind > limited:
		return own, nil
	case p == nil:
		return Policy{}, nil
	case own.kind == limited:
		if p = rule.prepare(own.limits, p); p.err != nil {
			return Policy{}, p.err
		}
	}
	limits := make([]Limit, len(p.policies))
	for i := range limits {
		limits[i] = p.policies[i].limit
	}
	return Limited(limits...), nil
}
