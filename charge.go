package weir

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// charge collects the charges that the request owes under each rule. A request owes nothing
// if a rule or a rider refuses it, and after an error. charge then only asks whether the other
// rules refuse the request.
func (l *Limiter) charge(v *verdict, riders []rider) {
	r := v.event.Request
	for _, rule := range l.rules {
		whole, applies := rule.Key(r)
		if !applies || len(whole) == 0 || whole[0] == 0 || rule.keyless.holds() {
			whole, applies = rule.unusualKey(whole, applies)
		}
		if rule.passes(r, whole, applies) {
			continue
		}
		key, aside := storedkey.Of(whole), false
		for i := 0; i < len(riders) && !aside; i++ {
			aside = riders[i].meet(v, rule, key, applies)
		}
		own := l.override(v, rule, whole, applies)
		if reason := rule.denial(r, whole, own, applies); reason != 0 && !aside {
			v.deny(Refusal{reason, rule.Name, quota.Never}, rule, key)
			break // no refusal is longer
		}
		if !applies || v.reason != 0 || v.event.Err != nil {
			continue
		}
		to, items := &v.Transaction, &v.items
		if aside {
			to, items = &v.extras().aside.Transaction, &v.extra.aside.items
		}
		if err := rule.owe(v, to, items, key, own, aside); err != nil {
			v.event.Err, v.Refusal = err, Refusal{Reason: ReasonError, Rule: rule.Name}
		}
	}
	if v.reason != 0 { // the other rules charge nothing
		v.event.Err = nil
		v.Refusal.RetryAfter = max(v.Refusal.RetryAfter, v.least)
		v.extra.denial = v.Refusal
		v.items = v.items[:0]
		v.trim()
	}
}

// owe adds what the request of v owes the limits of a rule to the charges of t. It fails if
// LimitsFor returns an invalid limit, or if a limit is invalid with the buffer.
func (rule *rule) owe(v *verdict, t *quota.Transaction, items *[]item, key string, own *override, aside bool) (err error) {
	policies, r := rule.policies, v.event.Request
	switch {
	case own != nil && !own.later:
		policies = own.policies
	case rule.LimitsFor != nil:
		if policies, err = rule.chosen(v, r, aside); err != nil {
			return err
		}
		if own != nil {
			policies = rule.overridden(v, own, policies)
		}
	}
	n, cost := len(t.Charges), rule.cost(r)
	for i := range policies {
		p, c, it := &policies[i], oneMore(&t.Charges), oneMore(items)
		// Mostly c and it have the values of an earlier request under the same limit.
		if it.policy != p || c.Limit.Period != p.limit.Period {
			c.Rule, c.Limit, c.Spent, it.policy = p.rule.Name, p.limit, 0, p
		}
		c.Key, c.Cost, it.key, it.cost = key, cost, key, cost
	}
	if v.buffer == 0 {
		return nil
	}
	for i := n; i < len(t.Charges); i++ {
		limit := &t.Charges[i].Limit
		limit.Period += v.buffer
		if err := limit.Fault(); err != nil {
			return fmt.Errorf("weir: rule %q: limit %q with a buffer of %v: %w: %w", rule.Name, limit.Name, v.buffer, err, quota.ErrLimit)
		}
	}
	return nil
}

// chosen returns the limits that LimitsFor chooses for a request. In place of a limit that
// cannot be counted exactly, it returns a lower limit that can be counted, and logs the
// mistake. Any other mistake is an error, but only logged if the rule is in shadow.
func (rule *rule) chosen(v *verdict, r *http.Request, shadow bool) ([]policy, error) {
	limits := rule.LimitsFor(r.WithContext(asking{v.Context}))
	if limits == nil && rule.unchosen.CompareAndSwap(false, true) {
		rule.warn("LimitsFor returned nil, so a request was not limited", unchosenLikely)
	}
	policies, err := rule.policiesOf(limits, nil)
	if err == nil {
		return policies, nil
	}
	limits = slices.Clone(limits)
	for i := range limits {
		var uncountable interface{ Nearest() Limit }
		if errors.As(limits[i].Fault(), &uncountable) {
			limits[i] = uncountable.Nearest()
		}
	}
	policies, still := rule.policiesOf(limits, nil)
	if still != nil && !shadow {
		return nil, fmt.Errorf("%w: %w", still, quota.ErrLimit)
	}
	rule.log.warn(v.Context, "use a limit", rule.Name, fmt.Errorf("%w: %w", err, quota.ErrLimit))
	return policies, nil
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

// passes reports whether a rule ignores a request. It does so if Allow or AllowFrom reports
// true, or if the request has no key and neither NoKey nor DenyFrom may refuse it.
func (rule *rule) passes(r *http.Request, key string, applies bool) bool {
	if applies && rule.Allow == nil && rule.AllowFrom == nil { // this check is inlined, so most rules cost no call
		return false
	}
	return rule.allows(r, key, applies)
}

func (rule *rule) allows(r *http.Request, key string, applies bool) bool {
	return !applies && rule.DenyFrom == nil && rule.NoKey != NoKeyRefuse || applies && rule.Allow != nil && rule.Allow(key) || rule.AllowFrom != nil && rule.AllowFrom(r)
}

// denial returns ReasonDeny if the rule denies a request, ReasonNoKey if the request lacks the
// key that it must have, and otherwise 0. The store is not asked.
func (rule *rule) denial(r *http.Request, key string, own *override, applies bool) Reason {
	if applies && own == nil && rule.Deny == nil && rule.DenyFrom == nil { // this check is inlined, so most rules cost no call
		return 0
	}
	return rule.denies(r, key, own, applies)
}

func (rule *rule) denies(r *http.Request, key string, own *override, applies bool) Reason {
	switch {
	case own != nil && own.denied || rule.DenyFrom != nil && rule.DenyFrom(r) || applies && rule.Deny != nil && rule.Deny(key):
		return ReasonDeny
	case !applies && rule.NoKey == NoKeyRefuse:
		return ReasonNoKey
	}
	return 0
}

// cost returns how many units a request costs. If Cost returns a negative number, cost
// returns math.MaxInt64, which never fits.
func (rule *rule) cost(r *http.Request) int64 {
	if rule.Cost == nil && !rule.freePreflight { // this check is inlined, so most rules cost no call
		return 1
	}
	return rule.costOf(r)
}

func (rule *rule) costOf(r *http.Request) int64 {
	if rule.freePreflight && preflight(r) {
		return 0
	}
	if rule.Cost == nil {
		return 1
	}
	cost := rule.Cost(r)
	switch {
	case cost < 0:
		cost = math.MaxInt64
	case cost == 0:
		if rule.costless.again() {
			rule.warn("cost was 0 in each of its first 200 requests, so it limited none of them", costlessLikely)
		}
		return 0
	}
	rule.costless.end()
	return cost
}

// preflight reports whether a request is a CORS preflight, which a browser sends by itself,
// without a body or credentials (Fetch standard, CORS-preflight request). A client
// certificate belongs to the connection and is ignored.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Header["Expect"]) == 0 && len(r.Header["Upgrade"]) == 0 &&
		len(r.Header["Authorization"]) == 0 && len(r.Header["Proxy-Authorization"]) == 0 && len(r.Header["Cookie"]) == 0
}
