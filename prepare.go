package weir

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/printable"
	"github.com/seed83679106/weir/quota"
)

func prepare(r Rule, w *headers.Writer) (*rule, error) {
	p, err := r.prepare(w)
	if err != nil {
		return nil, &RuleError{r.Name, err}
	}
	return p, nil
}

func (r Rule) prepare(w *headers.Writer) (*rule, error) {
	switch {
	case r.Name == "":
		return nil, errors.New("it has no name")
	case !printable.Is(r.Name):
		return nil, printable.Err
	case r.Key == nil:
		return nil, errors.New("it has no key")
	case len(r.Limits) == 0 && r.Policy == nil:
		return nil, errors.New("it has no limits")
	case !(r.Enforce.shadow >= 0 && r.Enforce.shadow <= 100):
		return nil, fmt.Errorf("the Enforce is %v; want 0%% to 100%%", r.Enforce)
	case r.Status != 0 && (r.Status < 400 || r.Status > 599):
		return nil, fmt.Errorf("the Status %d is not from 400 to 599", r.Status)
	case r.NoKey > NoKeyRefuse:
		return nil, fmt.Errorf("the NoKey %d is not NoKeySkip, NoKeyShare or NoKeyRefuse", r.NoKey)
	case r.RetryJitter < 0 || r.RetryJitter > quota.MaxTicks*time.Microsecond:
		return nil, fmt.Errorf("the RetryJitter %v is not from 0 to 2^50 µs", r.RetryJitter)
	}
	if r.Unit == "" {
		r.Unit = headers.Requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("unit %q is not of lower-case letters, digits and hyphens", r.Unit)
	}
	p := &rule{Rule: r, writer: w, global: isGlobal(r.Key), chargesUsed: isChargeUsed(r.Settle), exceeded: quotaExceeded.withStatus(r.Status), abnormal: abnormalUsage.withStatus(r.Status)}
	if r.Status == reducedCapacity.status {
		p.exceeded = reducedCapacity
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
	b := &rule{Rule: r.Rule, index: r.index, buffer: d, exceeded: r.exceeded, abnormal: r.abnormal, writer: r.writer, log: r.log, global: r.global, chargesUsed: r.chargesUsed}
	var err error
	if b.policies, err = b.policiesOf(r.Limits, nil); err != nil {
		return nil, &RuleError{r.Name, err}
	}
	if r.own != nil {
		b.own = &prepared{policies: b.policies}
	}
	return b, nil
}

// Validate returns the error that New would return for the rule alone, or nil. errors.Unwrap
// of the error returns the reason, which does not name the rule.
func (r Rule) Validate() error {
	_, err := prepare(r, defaultWriter)
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
		return errors.New("the Settle changes nothing, because requests in flight give their units back")
	}
	return nil
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
	p.problem = r.exceeded.violating(p.json)
	return p
}

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
			err = fmt.Errorf("%w, and replaces none of the limits %s", err, namesOf(base))
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
