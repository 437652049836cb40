package weir

import "fmt"

// maxOverrides is how many lists of limits a rule keeps prepared. When one more comes, the
// rule drops the others, and prepares a list again when the list is used.
const maxOverrides = 1 << 14

// An override is the prepared form of a list of limits that Rule.Overrides returned.
type override struct {
	limits   []Limit  // as Overrides returned them
	policies []policy // empty if the rule does not apply
	later    bool     // policies is empty: limits replace what LimitsFor chooses for a request
	denied   bool
	err      error // not nil if a limit is invalid
}

var unlimited override

// override returns the override of a key, or nil if the key has none.
func (l *Limiter) override(v *verdict, rule *rule, key string, applies bool) *override {
	if rule.Overrides == nil || !applies { // this check is inlined, so a rule without Overrides costs no call
		return nil
	}
	return l.validOverride(v, rule, key)
}

// validOverride returns the override of a key, or nil if the key has none. An invalid
// override is logged, and the rule's own limits stay in force, so that a mistake does not
// exempt a key.
func (l *Limiter) validOverride(v *verdict, rule *rule, key string) *override {
	o := rule.override(key)
	if o == nil || o.err == nil {
		return o
	}
	rule.ignoreOverride(v, o.err)
	return nil
}

func (rule *rule) ignoreOverride(v *verdict, err error) {
	rule.log.warn(v.Context, "use an override", rule.Name, fmt.Errorf("%w: the override of a key is ignored", err))
}

// overridden returns the limits of an override that replace the limits that LimitsFor has
// chosen. It returns the chosen limits if the override is invalid with them.
func (rule *rule) overridden(v *verdict, own *override, chosen []policy) []policy {
	policies, err := rule.policiesOf(own.limits, chosen)
	if err != nil {
		rule.ignoreOverride(v, err)
		return chosen
	}
	return policies
}

// override returns the override of a key, or nil if the key has none.
func (rule *rule) override(key string) *override {
	limits, ok := rule.Overrides(key)
	switch {
	case !ok:
		return nil
	case len(limits) == 0:
		return &unlimited
	}
	if o, ok := rule.prepared.Load(&limits[0]); ok {
		if o := o.(*override); len(o.limits) == len(limits) {
			return o
		}
	}
	o := &override{limits: limits}
	switch {
	case len(limits) == 1 && limits[0].Quota == 0:
		o.denied = true
	case rule.LimitsFor != nil:
		o.later = true
	default:
		o.policies, o.err = rule.policiesOf(limits, rule.policies)
	}
	if rule.preparedCount.Add(1) > maxOverrides {
		rule.prepared.Clear()
		rule.preparedCount.Store(1)
	}
	rule.prepared.Store(&limits[0], o)
	return o
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

// LimitsOf returns the limits of a key under a rule, with their stored names: the limits
// that Overrides returns for the key, and otherwise Limits. If there is no such rule, or if
// Overrides returns an invalid limit, err is not nil and ok is false. If the limits depend
// on what LimitsFor chooses for a request, ok is false too, and err is nil. If ok is false,
// limits is empty. If ok is true and limits is empty, the key is not limited. A single limit
// of Quota 0 means that every request of the key is refused.
func (l *Limiter) LimitsOf(rule, key string) (limits []Limit, ok bool, err error) {
	for _, r := range l.rules {
		if r.Name != rule {
			continue
		}
		policies, ok := r.policies, r.LimitsFor == nil
		if r.Overrides != nil {
			if o := r.override(key); o != nil {
				switch {
				case o.err != nil:
					return nil, false, o.err
				case o.denied:
					return []Limit{{}}, true, nil
				}
				policies, ok = o.policies, !o.later
			}
		}
		for i := range policies {
			limits = append(limits, policies[i].limit)
		}
		return limits, ok, nil
	}
	return nil, false, fmt.Errorf("weir: there is no rule %q", rule)
}
