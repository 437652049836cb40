package weir

import (
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// charge collects the charges that the request owes under each rule. A request owes nothing
// if a rule refuses it, and after an error. charge then only asks the other rules whether
// they refuse the request.
func (l *Limiter) charge(v *verdict, r *http.Request, buffer time.Duration) (err error) {
	wait := time.Duration(0) // for the limits of banned keys, as far as this process knows it
	for i := range l.rules {
		rule := l.rules[i]
		guards := rule.guards()
		if (v.refused || err != nil) && !guards {
			continue
		}
		whole, applies := rule.Key(r)
		if !applies || len(whole) == 0 || whole[0] == 0 || rule.keyless.holds() {
			whole, applies = rule.unusualKey(whole, applies)
		}
		p, mistake := rule.own, error(nil)
		if rule.Policy != nil || rule.ForKey != nil {
			p, mistake = rule.policyFor(v, r, whole, applies)
		}
		if p == isAllowed || !applies && p != isDenied && rule.NoKey != NoKeyRefuse {
			continue
		}
		key := storedkey.Of(whole)
		shadow := rule.inShadow(key)
		if guards && !shadow {
			wait = max(wait, rule.guard(v, r, key, p == isDenied, applies))
		}
		if !applies || v.refused || err != nil {
			continue
		}
		if mistake != nil && shadow {
			rule.log.warn(v.Context, "use a limit", rule.Name, mistake)
			continue
		}
		if err = mistake; err == nil {
			err = rule.charge(v, r, key, p.policies, shadow, buffer)
		}
		if err != nil {
			v.Refusal = Refusal{Reason: ReasonError, Rule: rule.Name}
		}
	}
	if v.refused { // the other rules charge nothing
		v.Refusal.RetryAfter = max(v.Refusal.RetryAfter, wait)
		v.extra.refusal = v.Refusal
		v.items = v.items[:0]
		v.hideChecks()
		return nil
	}
	if err == nil && l.guards {
		v.appendBanChecks()
	}
	return err
}

// charge adds what the request owes the limits of a rule to the charges of v, or to the
// charges in shadow. It fails if a limit is invalid with the buffer.
func (rule *rule) charge(v *verdict, r *http.Request, key string, policies []policy, shadow bool, buffer time.Duration) error {
	t, items := &v.Transaction, &v.items
	if shadow {
		t, items = &v.extras().shadow, &v.extra.items
	}
	n := len(t.Charges)
	v.addCharges(t, items, policies, key, rule.cost(r))
	for i := n; i < len(t.Charges) && buffer > 0; i++ {
		limit := &t.Charges[i].Limit
		limit.Period += buffer
		if err := limit.Fault(); err != nil {
			return fmt.Errorf("weir: rule %q: limit %q with a buffer of %v: %w: %w", rule.Name, limit.Name, buffer, err, quota.ErrLimit)
		}
	}
	return nil
}

// addCharges adds a charge to t and an item to items for each policy.
func (v *verdict) addCharges(t *quota.Transaction, items *[]item, policies []policy, key string, cost int64) {
	for i := range policies {
		p, c, it := &policies[i], oneMore(&t.Charges), oneMore(items)
		// Mostly c and it have the values of an earlier request under the same limit.
		if it.policy != p || c.Limit.Period != p.limit.Period {
			c.Rule, c.Limit, c.Spent, it.policy = p.rule.Name, p.limit, 0, p
		}
		c.Key, c.Cost, it.key, it.cost = key, cost, key, cost
		v.flies = v.flies || p.inFlight
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

// guard refuses a request without a call of the store: if the rule denies it, if it lacks the
// key that it must have, or if a ban is known. If several rules refuse it, the longest refusal
// stands. wait is how long the limits of the rule will refuse the request, as far as this
// process knows it. If the rule does not apply, the request has no key.
func (rule *rule) guard(v *verdict, r *http.Request, key string, denied, applies bool) (wait time.Duration) {
	var f Refusal
	if denied {
		f = Refusal{ReasonDeny, rule.Name, quota.Never}
	} else if !applies && rule.NoKey == NoKeyRefuse {
		f = Refusal{ReasonNoKey, rule.Name, quota.Never}
	} else if applies {
		var rest time.Duration
		if rest, wait = rule.known.rest(key, func() int64 { return rule.cost(r) }); rest > 0 {
			f = Refusal{ReasonBan, rule.Name, rest}
		}
	}
	if f.Reason != 0 && (!v.refused || f.RetryAfter > v.Refusal.RetryAfter) {
		v.refuseFor(f, rule, key)
	}
	return wait
}

// refuseFor refuses the request of v because of a ban or a deny.
func (v *verdict) refuseFor(f Refusal, by *rule, key string) {
	v.Refusal, v.refused = f, true
	v.extras().refusal, v.extra.by, v.extra.key = f, by, key
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

// A banCheck is what an inquiry asks about the ban of a key, besides the charges of the
// request.
type banCheck struct {
	*bans
	key      string
	from, to int  // items[from:to] are the limits of the rule
	ban      int  // index of the charge that looks up the ban
	strikes  bool // the next charge looks up the strikes
}

// appendBanChecks adds charges of cost 0 to v, after the charges that the request owes. For
// each rule that has a Penalty, one charge looks up the ban of the key and, if the key may
// have strikes, another charge looks up the strikes.
func (v *verdict) appendBanChecks() {
	for i, n := 0, 0; i < len(v.items); i += n {
		n = v.items[i].limits
		b, key := v.items[i].rule.bans, v.items[i].key
		if b == nil {
			continue
		}
		c := banCheck{bans: b, key: key, from: i, to: i + n, ban: len(v.Charges), strikes: b.mayHaveStruck(key)}
		v.checks = append(v.checks, c)
		v.Charges = append(v.Charges, b.charge(b.ban, key, 0))
		if c.strikes {
			v.Charges = append(v.Charges, b.charge(b.strikes, key, 0))
		}
	}
}
