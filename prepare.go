package weir

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/printable"
	"github.com/seed83679106/weir/quota"
)

func newRule(r Rule, w *headers.Writer) (*rule, error) {
	p, err := r.prepare(w)
	if err != nil {
		return nil, r.fault(err)
	}
	return p, nil
}

// fault returns the error of New for the rule. Its Unwrap returns err, which does not name the rule.
func (r *Rule) fault(err error) error { return fmt.Errorf("weir: rule %q: %w", r.Name, err) }

func (r Rule) prepare(w *headers.Writer) (*rule, error) {
	switch {
	case r.Name == "":
		return nil, errors.New("the Name is empty")
	case !printable.Is(r.Name):
		return nil, printable.Err
	case r.Key == nil:
		return nil, errors.New("the Key is nil")
	case len(r.Limits) == 0 && r.Policy == nil:
		return nil, errors.New("the list of Limits is empty; want one, or a Policy")
	case !(r.Enforce.shadow >= 0 && r.Enforce.shadow <= 100):
		return nil, fmt.Errorf("the Enforce is %v; want 0%% to 100%%", r.Enforce)
	case r.Status != 0 && (r.Status < 400 || r.Status > 599):
		return nil, fmt.Errorf("the status is %d; want 400 to 599", r.Status)
	case r.NoKey > NoKeyRefuse:
		return nil, fmt.Errorf("the NoKey is %d; want NoKeySkip, NoKeyShare or NoKeyRefuse", r.NoKey)
	case r.RetryJitter < 0 || r.RetryJitter > quota.MaxTicks*time.Microsecond:
		return nil, fmt.Errorf("the RetryJitter is %v; want 0 to 2^50 µs", r.RetryJitter)
	}
	if r.Unit == "" {
		r.Unit = headers.Requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("the unit is %q; want lower-case letters, digits and hyphens", r.Unit)
	}
	p := &rule{Rule: r, writer: w, global: isGlobal(r.Key), exceeded: answer.QuotaExceeded.WithStatus(r.Status), abnormal: answer.AbnormalUsage.WithStatus(r.Status)}
	if r.Status == answer.ReducedCapacity.Status {
		p.exceeded = answer.ReducedCapacity
	}
	var err error
	if p.policies, err = p.policiesOf(r.Limits, nil); err == nil {
		err = p.checkLimits()
	}
	if err != nil {
		return nil, err
	}
	if len(r.Limits) > 0 {
		p.own = &prepared{policies: p.policies}
	}
	if r.Penalty != nil {
		if err := r.Penalty.validate(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// buffered returns the rule with a buffer, or an error if a limit is invalid with it.
func (r *rule) buffered(d time.Duration) (*rule, error) {
	b := &rule{Rule: r.Rule, index: r.index, buffer: d, exceeded: r.exceeded, abnormal: r.abnormal, writer: r.writer, log: r.log, global: r.global}
	var err error
	if b.policies, err = b.policiesOf(r.Limits, nil); err != nil {
		return nil, r.fault(err)
	}
	if r.own != nil {
		b.own = &prepared{policies: b.policies}
	}
	return b, nil
}

// Validate returns the error that New would return for a Limiter with only this rule. To obtain the
// cause without the rule's name, call [errors.Unwrap] on the error.
func (r Rule) Validate() error {
	_, err := newRule(r, defaultWriter)
	return err
}

// defaultWriter is for rules that no Limiter has.
var defaultWriter, _ = newWriter(0, nil)

// checkLimits returns an error if a limit, or a Settle, does nothing.
func (r *rule) checkLimits() error {
	settles := r.Settle == nil || len(r.policies) == 0
	for i := range r.policies {
		a := &r.policies[i]
		settles = settles || !a.inFlight
		if err := checkBurst(&a.limit); err != nil {
			return fmt.Errorf("limit %q: %w", a.limit.Name, err)
		}
		for j := range r.policies {
			// A Settle, or a policy of a key, may exceed one limit and not the other.
			if b := &r.policies[j]; i != j && r.Settle == nil && r.ForKey == nil && a.limit.Redundant(&b.limit) {
				return fmt.Errorf("limit %q never refuses a request that limit %q admits: remove it or change its numbers", a.limit.Name, b.limit.Name)
			}
		}
	}
	if !settles {
		return errors.New("the Settle is set, but all limits are concurrency limits; want nil, because these release their units themselves")
	}
	return nil
}

// newWriter returns the writer of header fields in a dialect, for rules.
func newWriter(d headers.Dialect, rules []Rule) (*headers.Writer, error) {
	units := make([]string, len(rules))
	for i := range rules {
		if units[i] = rules[i].Unit; units[i] == "" {
			units[i] = headers.Requests
		}
	}
	w, err := headers.NewWriter(d, units...)
	if err != nil {
		return nil, fmt.Errorf("weir: %w", err)
	}
	return w, nil
}

// checkBurst returns an error if the algorithm ignores Burst. The limit must be valid.
func checkBurst(l *Limit) error {
	one, two := l.WithBurst(1), l.WithBurst(2)
	if l.Burst == 0 || one.Capacity() != two.Capacity() {
		return nil
	}
	return fmt.Errorf("burst is %d; want 0, because %s has no burst", l.Burst, l.Algorithm.Name())
}

// longest returns how long a ban lasts at most.
func (p *Penalty) longest() time.Duration {
	if p.MaxDuration == 0 {
		return max(24*time.Hour, p.Duration)
	}
	return p.MaxDuration
}

func (p *Penalty) validate() error {
	most := p.longest()
	switch {
	case p.Duration < time.Microsecond || p.Duration%time.Microsecond != 0:
		return fmt.Errorf("penalty: Duration is %v; want whole microseconds above 0", p.Duration)
	case most < p.Duration || most%time.Microsecond != 0:
		return fmt.Errorf("penalty: MaxDuration is %v; want whole microseconds, at least Duration, %v", most, p.Duration)
	case most > quota.MaxTicks/ban.Repeats*time.Microsecond:
		return fmt.Errorf("penalty: the longest ban is %v; want at most %v", most, quota.MaxTicks/ban.Repeats*time.Microsecond)
	}
	strikes := p.Strikes.Named(strikesName)
	err := strikes.Fault()
	if err == nil {
		err = checkBurst(&strikes)
	}
	if _, queue := strikes.Algorithm.(quota.Queuer); err == nil && (queue || strikes.InFlight()) {
		err = fmt.Errorf("the algorithm is %s; want one that can count strikes", strikes.Algorithm.Name()) // they neither wait nor end
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strikesName, err)
	}
	return nil
}

// PolicyOf returns a key's policy in the same way as Limiter.PolicyOf. If the rule is invalid, it
// returns the error from Validate.
func (r Rule) PolicyOf(key string) (Policy, error) {
	rule, err := newRule(r, defaultWriter)
	if err != nil {
		return Policy{}, err
	}
	return rule.policyOf(key)
}
