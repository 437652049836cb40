package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

const (
	// maxPrepared is how many lists of limits a rule keeps prepared. When one more comes, the
	// rule drops the others, and prepares a list again when the list is used.
	maxPrepared = 1 << 14

	maxDepth = 64 // lists that differ only in the values of their algorithms
)

// countable prepares limits that Policy has returned. In place of a limit that cannot be counted
// exactly, it prepares a lower limit that can be counted, and logs the error.
func (rule *rule) countable(ctx context.Context, limits []Limit) (*prepared, error) {
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
		return nil, nearest.err
	}
	rule.log.warn(ctx, "limit of Policy lowered", rule.Name, p.err)
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
		p.err = rule.fault(fmt.Errorf("%w: %w", quota.ErrLimit, err))
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

func (rule *rule) policyOf(key string) (Policy, error) {
	own, p := Policy{}, rule.own
	if rule.ForKey != nil {
		own = rule.ForKey(key)
	}
	switch {
	case own.kind > limitedKind:
		return own, nil
	case p == nil:
		return Policy{}, nil
	case own.kind == limitedKind:
		if p = rule.prepare(own.limits, p); p.err != nil {
			return Policy{}, p.err
		}
	}
	return Limited(limitsOf(p.policies)...), nil
}

// prepared is limits in the form in which a rule charges them.
type prepared struct {
	policies []policy // empty if the request is not charged
	err      error    // not nil if a limit is invalid

	of    []Limit   // what was prepared
	base  *prepared // what it replaces, or nil
	hash  uint64
	next  *prepared // of the same hash
	depth int       // how many follow
	loose bool      // it is not kept
}

// What a rule says of a request if it has no limits for it.
var isUnlimited, isDenied, isAllowed = new(prepared), new(prepared), new(prepared)

// policiesOf prepares limits of a rule: it names them, validates them, and builds their
// fields. If the limits are of a key, base has the limits that they replace.
func (r *rule) policiesOf(limits []Limit, base []policy) ([]policy, error) {
	var policies []policy
	for _, l := range limits {
		alone := l.Name == "" && len(limits) == 1 // fields show it under the rule's name
		from := replaced(&l, base, len(limits))
		if from != nil {
			inherit(&l, &from.limit)
			alone = len(limits) == 1 && from.name == r.Name
		}
		err := l.Fault()
		if l.Algorithm == nil && len(base) > 0 {
			err = fmt.Errorf("%w, and the limit replaces none of the limits %s", err, namesOf(base))
		}
		if l.Period != 0 {
			l.Name = l.StoredName()
		}
		if err != nil {
			return nil, fmt.Errorf("limit %q: %w", l.Name, err)
		}
		long := l
		long.Period += r.buffer
		if err := long.Fault(); err != nil {
			return nil, fmt.Errorf("limit %q with a buffer of %v: %w", l.Name, r.buffer, err)
		}
		for _, p := range policies {
			if p.limit.Name == l.Name {
				return nil, fmt.Errorf("two limits are named %q", l.Name)
			}
		}
		policies = append(policies, newPolicy(r, len(limits), alone, l))
	}
	return policies, nil
}

// newPolicy prepares a limit. If alone, header fields show the limit under the name of the
// rule, and otherwise as rule/limit.
func newPolicy(r *rule, limits int, alone bool, l Limit) policy {
	p := policy{rule: r, limits: limits, limit: l, name: r.Name, inFlight: l.InFlight()}
	if !alone {
		p.name += "/" + l.Name
	}
	p.fields = r.writer.Prepare(headers.Policy{Name: p.name, Resource: r.Name, Unit: r.Unit, Limit: l})
	p.json, _ = json.Marshal(p.name) // a string can always be marshalled
	p.problem = r.exceeded.Violating(p.json)
	return p
}

// namesOf returns the stored names of limits, for an error.
func namesOf(policies []policy) string {
	var names []string
	for i := range policies {
		names = append(names, strconv.Quote(policies[i].limit.Name))
	}
	return strings.Join(names, ", ")
}

// replaced returns the one of the policies that l, one of n limits, replaces, or nil if l
// replaces none. A limit with a name replaces the policy of the same name. A limit without a
// name replaces the policy of the same period. If no policy has the same period, but n is 1
// and there is one policy, l replaces that policy.
func replaced(l *Limit, policies []policy, n int) *policy {
	var same *policy
	for i := range policies {
		p := &policies[i]
		if l.Name != "" && l.Name == p.limit.Name || l.Name == "" && l.Period == p.limit.Period {
			same = p
		}
	}
	if same == nil && n == 1 && len(policies) == 1 && l.Name == "" {
		same = &policies[0]
	}
	return same
}

// inherit sets the Name of l, and fields of l that are zero, to the values of the limit
// that l replaces.
func inherit(l, from *Limit) {
	l.Name = from.Name
	if l.Period == 0 {
		l.Period = from.Period
	}
	switch {
	case l.Algorithm == nil:
		l.Algorithm = from.Algorithm
	case l.Algorithm.Name() != from.Algorithm.Name():
		return
	}
	if l.Burst == 0 {
		l.Burst = from.Burst
	}
}

func limitsOf(policies []policy) []Limit {
	limits := make([]Limit, len(policies))
	for i := range policies {
		limits[i] = policies[i].limit
	}
	return limits
}
