package weir

import (
	"fmt"
	"math"
	"net/http"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// charge collects the charges that the request owes under each rule. A request owes nothing
// if a rule or a rider refuses it, and after an error. charge then only asks whether the other
// rules refuse the request.
func (l *Limiter) charge(v *verdict, rules []*rule, riders []rider) {
	r := v.event.Request
	for _, rule := range rules {
		whole, applies := rule.Key(r)
		if !applies || len(whole) == 0 || whole[0] == 0 || rule.keyless.holds() {
			whole, applies = rule.unusualKey(whole, applies)
		}
		p, invalid := rule.own, error(nil)
		if rule.Policy != nil || rule.ForKey != nil {
			p, invalid = rule.policyFor(v, r, whole, applies)
		}
		if p == isAllowed || !applies && p != isDenied && rule.NoKey != NoKeyRefuse {
			continue
		}
		key, aside, riding := storedkey.Of(whole), false, len(v.riding)
		for i := 0; i < len(riders) && !aside; i++ {
			aside = riders[i].meet(v, rule, key, applies && p != isUnlimited)
		}
		if aside {
			v.ride(riding)
		} else if reason := rule.denial(p == isDenied, applies); reason != 0 {
			v.deny(Refusal{reason, rule.Name, quota.Never}, rule, key)
			break // no refusal is longer
		}
		switch {
		case !applies || v.reason != 0 || v.event.Err != nil:
		case invalid == nil && aside:
			rule.owe(r, &v.extras().aside.Transaction, &v.extra.aside.items, key, p.policies)
		case invalid == nil:
			rule.owe(r, &v.Transaction, &v.items, key, p.policies)
		case aside:
			rule.log.warn(v.Context, "rule in shadow skipped", rule.Name, invalid)
		default:
			v.event.Err, v.Refusal = invalid, Refusal{Reason: ReasonError, Rule: rule.Name}
		}
	}
	if v.reason != 0 { // the other rules charge nothing
		v.event.Err = nil
		v.Refusal.RetryAfter = max(v.Refusal.RetryAfter, v.least)
		v.extra.denial = v.Refusal
		clear(v.items) // they would keep keys alive in the pool
		v.items = v.items[:0]
		v.trim()
	}
}

// deny refuses the request of v for another reason than a limit.
func (v *verdict) deny(f Refusal, by *rule, key string) {
	v.Refusal, v.reason, v.event.Key = f, f.Reason, key
	v.extras().denial, v.extra.by = f, by
}

// trim removes the charges of riders, because Observe and FromContext show the transaction.
func (v *verdict) trim() {
	n := len(v.items)
	if len(v.Charges) > n {
		clear(v.Charges[n:]) // they would keep keys alive
		v.Charges, v.Decisions = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))]
	}
	v.ride(0)
}

// ride removes the charges of riders from the nth.
func (v *verdict) ride(n int) {
	clear(v.riding[n:]) // they would keep keys alive
	v.riding = v.riding[:n]
}

// owe adds what a request owes the limits of a rule to the charges of t.
func (rule *rule) owe(r *http.Request, t *quota.Transaction, items *[]item, key string, policies []policy) {
	cost := rule.cost(r)
	for i := range policies {
		p, c, it := &policies[i], oneMore(&t.Charges), oneMore(items)
		// Mostly c and it have the values of an earlier request under the same limit. c is
		// empty if it was the charge of a rider.
		if it.policy != p || c.Limit.Period == 0 {
			c.Rule, c.Limit, c.Spent, it.policy = p.rule.Name, p.limit, 0, p
			c.Limit.Period += p.rule.buffer
		}
		c.Key, c.Cost, it.key, it.cost = key, cost, key, cost
	}
}

// oneMore appends an element to a slice and returns it. The element may have the fields of
// an earlier use.
func oneMore[T any](s *[]T) *T {
	n := len(*s)
	if n == cap(*s) {
		*s = append(*s, *new(T))
	} else {
		*s = (*s)[:n+1]
	}
	return &(*s)[n]
}

// denial returns ReasonDeny if the policy denies a request, ReasonNoKey if the request lacks the
// key that it must have, and otherwise 0. The store is not asked.
func (rule *rule) denial(denied, applies bool) Reason {
	switch {
	case denied:
		return ReasonDeny
	case !applies && rule.NoKey == NoKeyRefuse:
		return ReasonNoKey
	}
	return 0
}

// cost returns how many units a request costs. If Cost returns a negative number, cost
// returns math.MaxInt64, which never fits.
func (rule *rule) cost(r *http.Request) int64 {
	if rule.Cost == nil { // this check is inlined, so most rules cost no call
		return 1
	}
	return rule.costOf(r)
}

func (rule *rule) costOf(r *http.Request) int64 {
	cost := rule.Cost(r)
	switch {
	case cost < 0:
		if rule.negative.again() {
			rule.miswired("cost negative in each of the first 200 requests", "they were refused", negativeLikely)
		}
		cost = math.MaxInt64
	case cost == 0:
		if rule.costless.again() {
			rule.miswired("cost 0 in each of the first 200 requests", "none of them was limited", costlessLikely)
		}
		rule.negative.end()
		return 0
	default:
		rule.negative.end()
	}
	rule.costless.end()
	return cost
}

// policyFor returns the limits of a request under a rule that has Policy or ForKey, or what the
// rule says instead. It returns nil if the rule has no key of the request and says nothing.
func (rule *rule) policyFor(v *verdict, r *http.Request, key string, applies bool) (p *prepared, err error) {
	var own, asked Policy
	if rule.ForKey != nil && applies {
		own = rule.ForKey(key)
	}
	if rule.Policy != nil && own.kind != allowedKind {
		asked = rule.Policy(r.WithContext(asking{v.Context}))
	}
	switch {
	case own.kind == allowedKind || asked.kind == allowedKind:
		return isAllowed, nil
	case own.kind == deniedKind || asked.kind == deniedKind:
		return isDenied, nil
	case !applies:
		return nil, nil
	case own.kind == unlimitedKind:
		return isUnlimited, nil
	}
	base := rule.own
	switch asked.kind {
	case limitedKind:
		if base, err = rule.countable(v.Context, asked.limits); err != nil {
			return nil, err
		}
	case unlimitedKind:
		base = isUnlimited
	}
	if own.kind == limitedKind {
		p := rule.prepare(own.limits, base)
		if p.err == nil {
			return p, nil
		}
		rule.log.warn(v.Context, "policy of ForKey ignored", rule.Name, p.err)
	}
	if base == nil {
		return nil, fmt.Errorf("weir: rule %q: %w: the policy is zero, and the rule has no Limits", rule.Name, quota.ErrLimit)
	}
	return base, nil
}
