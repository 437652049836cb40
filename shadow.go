package weir

import (
	"strconv"

	"github.com/seed83679106/weir/internal/mix"
)

// An Enforcement is the percentage of keys for which a rule is enforced. The zero Enforcement is
// Percent(100). Enforcements are comparable.
type Enforcement struct{ shadow float64 } // percent of the keys in shadow

// Percent returns an Enforcement that enforces a rule for p percent of its keys. New returns an
// error if p is not in the range from 0 to 100.
func Percent(p float64) Enforcement { return Enforcement{100 - p} }

// Percent returns the percentage of keys for which the rule is enforced, from 0 to 100.
func (e Enforcement) Percent() float64 { return 100 - e.shadow }

// String returns the percentage with at most four significant digits, such as "10%".
func (e Enforcement) String() string { return strconv.FormatFloat(e.Percent(), 'g', 4, 64) + "%" }

// shadows is the rider of rules in shadow. It has the store decide their charges in a call of
// its own, once the other rules have admitted the request, and lets the request pass.
type shadows struct {
	bystander
	l *Limiter
}

// newShadows returns nil if no rule is in shadow.
func newShadows(l *Limiter) rider {
	for _, r := range l.rules {
		if r.Enforce != Percent(100) {
			return &shadows{l: l}
		}
	}
	return nil
}

func (s *shadows) meet(_ *verdict, rule *rule, key string, _ bool) (aside bool) {
	return rule.inShadow(key)
}

// start charges the rules in shadow. Their wait counts from the turn of the request, which has
// come.
func (s *shadows) start(v *verdict) func() {
	b := v.aside()
	if b == nil {
		return nil
	}
	if v.Within > 0 {
		b.Within = max(v.Within-v.Wait, noPlace)
	}
	e := Event{Request: v.event.Request, Transaction: &b.Transaction, Shadow: true}
	if e.Took, e.Err = s.l.timedTake(v, s.l.unpaid, &b.Transaction); e.Err != nil {
		e.Refusal, e.Key = Refusal{Reason: ReasonError, Rule: b.Charges[0].Rule}, b.Charges[0].Key
	} else if f, i := refusalOf(&b.Transaction, len(b.items)); f.Reason != 0 {
		e.Refusal, e.Key = f, b.Charges[i].Key
	} else {
		b.spent = true
	}
	if e.Err == nil {
		checkCosts(b.items, b.Decisions)
	}
	s.l.report(v, &e)
	return nil
}

// inShadow reports whether the rule is in shadow for a key: whether a hash of the rule's
// name and the key, as a number from 0 to 100, is below the percentage in shadow.
func (r *rule) inShadow(key string) bool {
	if r.Enforce.shadow == 0 {
		return false
	}
	return mix.Fraction(r.Name, key) < r.Enforce.shadow/100
}
