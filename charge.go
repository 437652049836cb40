package weir

import (
	"net/http"
	"time"
)

// charge asks every rule what the request owes, or, if it owes nothing, whether the
// rule refuses it. It owes nothing if it is free, if a rule refuses it, and after an
// error.
func (l *Limiter) charge(v *verdict, r *http.Request, buffer time.Duration) (err error) {
	for i := range l.rules {
		rule := l.rules[i]
		if (v.free || v.refused || err != nil) && !rule.guards() {
			continue
		}
		whole, applies := rule.Key(r)
		if rule.passes(r, whole, applies) {
			continue
		}
		key := StoredKey(whole)
		shadow := rule.Shadow > 0 && rule.inShadow(key)
		if !shadow {
			rule.guard(v, r, whole, key, applies)
		}
		switch {
		case !applies:
		case v.free && !shadow && rule.bans != nil:
			v.checkBan(rule.bans, key)
		case v.free || v.refused || err != nil:
		default:
			if err = rule.charge(v, r, key, shadow, buffer); err != nil {
				v.Refusal = Refusal{Reason: ReasonError, Rule: rule.Name}
			}
		}
	}
	if v.refused { // other rules charge nothing then
		v.items = v.items[:0]
		v.hideChecks()
		return nil
	}
	return err
}

// charge adds what the request owes the limits of a rule to the charges of v, or to
// those in shadow. It fails if LimitsFor returns a limit that is invalid.
func (rule *rule) charge(v *verdict, r *http.Request, key string, shadow bool, buffer time.Duration) (err error) {
	policies := rule.policies
	if rule.LimitsFor != nil {
		if policies, err = rule.policiesOf(rule.LimitsFor(r.WithContext((*asking)(v)))); err != nil {
			return err
		}
	}
	t, items := &v.Transaction, &v.items
	if shadow {
		t, items = &v.extras().shadow, &v.extra.items
	}
	cost := rule.cost(r)
	for i := range policies {
		// Field by field: a copy of what was just written would stall.
		t.Charges = append(t.Charges, Charge{})
		c := &t.Charges[len(t.Charges)-1]
		c.Rule, c.Key, c.Limit, c.Cost = rule.Name, key, policies[i].limit, cost
		c.Limit.Period += buffer
		*items = append(*items, item{})
		it := &(*items)[len(*items)-1]
		it.policy, it.key, it.cost = &policies[i], key, cost
	}
	return nil
}

// passes reports whether a rule has nothing to say about a request: it does not
// apply, or one of its lists allows the request.
func (rule *rule) passes(r *http.Request, key string, applies bool) bool {
	return !applies && rule.DenyFrom == nil || applies && rule.Allow != nil && rule.Allow(key) || rule.AllowFrom != nil && rule.AllowFrom(r)
}

// guard refuses a request without asking the store, if the rule denies it or a ban
// is known, and no other rule has it wait for longer. The request has no key if the
// rule does not apply.
func (rule *rule) guard(v *verdict, r *http.Request, whole, key string, applies bool) {
	var f Refusal
	if rule.DenyFrom != nil && rule.DenyFrom(r) || applies && rule.Deny != nil && rule.Deny(whole) {
		f = Refusal{ReasonDeny, rule.Name, Never}
	} else if applies && rule.bans != nil {
		if rest, wait := rule.bans.known.rest(key, v.free, func() int64 { return rule.cost(r) }); rest > 0 {
			f = Refusal{ReasonBan, rule.Name, wait}
		}
	}
	if f.Reason != 0 && (!v.refused || f.RetryAfter > v.Refusal.RetryAfter) {
		v.refuseFor(f, key)
	}
}

// decide charges the rules that apply to r and records the outcome in v. It does not
// sleep: the caller waits for v.Wait, up to maxWait. buffer is added to every period.
func (l *Limiter) decide(v *verdict, r *http.Request, maxWait, buffer time.Duration) error {
	e := Event{Request: r, Transaction: &v.Transaction}
	if e.Err = l.charge(v, r, buffer); e.Err != nil || v.refused {
		if e.Err == nil {
			e.Key = v.extra.key
		}
		return l.observe(v, e)
	}
	within := l.enter(v, maxWait)
	waits := false
	defer func() { // even if the store panics
		if !waits {
			l.leave(v)
		}
	}()
	if len(v.Charges) > 0 {
		v.Within = within
		if err := l.ask(v, &e); err != nil {
			return err
		}
	}
	if v.extra != nil && len(v.extra.shadow.Charges) > 0 && !v.refused {
		l.askInShadow(v, r, within)
	}
	waits = !v.refused && v.Wait > 0
	return nil
}

// ask has the store decide what v owes, with its bans and pauses, in one call.
func (l *Limiter) ask(v *verdict, e *Event) error {
	v.appendBanChecks()
	v.appendPauses()
	e.Took, e.Err = l.timedTake((*asking)(v), &v.Transaction)
	e.judge()
	if e.Err == nil {
		l.applyPenalties(v, e)
	}
	v.hideChecks()
	if v.refused && v.Wait > 0 { // for a ban: nobody will wait for the turn
		l.giveBack(v)
	}
	if v.free && v.Refusal.Reason == 0 {
		return nil // nothing was decided
	}
	if err := l.observe(v, *e); err != nil {
		return err
	}
	v.refused = v.Refusal.Reason != 0
	return nil
}

// askInShadow charges rules in shadow, which refuse nobody.
func (l *Limiter) askInShadow(v *verdict, r *http.Request, within time.Duration) {
	t := &v.extra.shadow
	t.Within = within
	e := Event{Request: r, Transaction: t, Shadow: true}
	e.Took, e.Err = l.timedTake((*asking)(v), t)
	e.judge()
	if l.observe(v, e) != nil {
		v.extra.shadow = Transaction{}
	}
}

// hideChecks leaves in the transaction what users may see: what the request owes.
func (v *verdict) hideChecks() {
	n := len(v.items)
	if len(v.Charges) == n {
		return
	}
	clear(v.Charges[n:]) // keys are not kept
	clear(v.checks)      // nor here
	v.Charges, v.Decisions, v.checks = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))], v.checks[:0]
}

// giveBack gives back a turn that v does not use.
func (l *Limiter) giveBack(v *verdict) {
	if err := giveBack((*asking)(v), l.store, &v.Transaction); err != nil {
		l.log.warn(v, v.Charges[0].Rule, err) // units that are lost are admitted to nobody
	}
	v.Wait = 0
}
