// Package credit grants extra units to keys, beyond a rule's limits, for example when a customer
// has just paid.
//
//	paying := credit.New(store, credit.Options{Rules: []string{"api"}})
//	limiter, err := weir.New(paying, weir.Options{Rules: rules}) // one of the rules is named "api"
//	err = credit.Grant(ctx, paying, "api", "acme", 10_000, 24*time.Hour)
//
// When the rule's limits refuse a request, the units granted to the request's key pay for the
// request, until these units are used up or expire. Granted units are kept in the store, so all
// processes that share the store see a grant within a second.
package credit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
)

// New returns a Store that wraps the store next. If the limits of one of the named rules refuse a
// charge, the Store pays for the charge with granted units. Each refusal under these rules requires
// a second call to the wrapped store; refusals under other rules do not. New panics if next is nil
// or if o.Rules is empty.
//
// The returned Store must be the outermost decorator. If it wraps a quota.HybridStore, most of the
// second calls are answered from memory, because the HybridStore caches for one second that a key
// has no granted units.
//
// Granted units pay for a request in full or not at all. Limits that admit the request are charged
// as usual; granted units replace only the limits that refuse the request. If a pause, a ban, a
// Denied policy or a concurrency limit refuses the request, no granted units are spent. A rule in
// shadow mode never spends granted units, because it refuses no requests. The events of such a rule
// therefore also report refusals that granted units would have prevented. If the second call to the
// wrapped store fails, the request is refused.
//
// With this Store, quota.Peek includes granted units in Remaining. Allowed is true if either the
// limit or the granted units can pay for the whole charge. quota.AllowAtMost and quota.ModeAtMost
// spend the limits' units first, and then granted units in a separate call. A refund of units that
// one call has taken from both goes to the limits, so granted units may be lost, but none are
// gained.
//
// In the Decision on a charge that was paid with granted units, At is Paid, and Remaining is the
// number of units left under the limit that refused the charge. If the rule's Settle function
// refunds such a charge, the units are granted again, unless they have expired. The refund is also
// lost if the key has had no granted units for an hour or more.
func New(next quota.Store, o Options) *Store {
	switch {
	case safe.Nil(next):
		panic("credit: the store is nil")
	case len(o.Rules) == 0:
		panic("credit: Rules is empty")
	}
	return &Store{next, slices.Clone(o.Rules)}
}

// Options configures the Store that New returns.
type Options struct {
	// Rules are the names of the rules whose keys can be granted units. At least one is required.
	Rules []string
}

// A Store uses granted units to pay for charges that would otherwise be refused. See New.
type Store struct {
	next  quota.Store
	rules []string
}

// Grant grants 1 to 2^50 extra units to a key under a rule. The units expire after d, which is at
// least 1 ms, or after 35 years if d is 0. They are added to any units left from earlier grants, up
// to 2^50 in total. All these units then expire together, at the later of the two expiry times.
//
// If only the second store of a quota.Fallback has recorded the units, Grant returns an error that
// wraps quota.ErrFellBack, because the units are lost when the first store works again. After that,
// call Grant again. It also returns an error if store is the result of New, and its Options.Rules
// lack the rule.
func Grant(ctx context.Context, store quota.Store, rule, key string, units int64, d time.Duration) error {
	switch {
	case units < 1 || units > quota.MaxTicks:
		return fmt.Errorf("credit: Grant: units is %d; want 1 to 2^50", units)
	case d < 0 || d > forever:
		return fmt.Errorf("credit: Grant: d is %v; want 0 to 35 years", d)
	case d > 0 && d < time.Millisecond:
		return fmt.Errorf("credit: Grant: d is %v; want 0 or at least 1ms, such as %d*time.Second", d, d)
	case d == 0:
		d = forever
	}
	if s, ok := store.(*Store); ok && !slices.Contains(s.rules, rule) {
		return fmt.Errorf("credit: Grant: rule %q is not in Options.Rules, so the store would never spend the units; known are %q", rule, s.rules)
	}
	return take(ctx, store, "Grant", &quota.Transaction{Charges: []quota.Charge{charge(rule, key, -units, d.Truncate(time.Microsecond))}})
}

func take(ctx context.Context, store quota.Store, what string, t *quota.Transaction) error {
	if err := store.Take(ctx, t); err != nil {
		return err
	}
	if t.FellBack() {
		return fmt.Errorf("credit: %s: %w", what, quota.ErrFellBack)
	}
	return nil
}

// Left returns how many granted units a key has left under a rule, and when they expire. If no
// units are left, until is the zero Time.
func Left(ctx context.Context, store quota.Store, rule, key string) (units int64, until time.Time, err error) {
	t := quota.Transaction{Charges: []quota.Charge{charge(rule, key, 0, forever)}}
	if err := store.Take(ctx, &t); err != nil || t.Decisions[0].Remaining == 0 {
		return 0, time.Time{}, err
	}
	d := &t.Decisions[0]
	return d.Remaining, t.At.Add(d.ResetAfter), nil
}

// Revoke removes all of a key's granted units under a rule. Like Grant, it may return an error
// that wraps quota.ErrFellBack.
func Revoke(ctx context.Context, store quota.Store, rule, key string) error {
	return take(ctx, store, "Revoke", &quota.Transaction{Charges: []quota.Charge{charge(rule, key, 0, forever)}, Mode: quota.ModeForget})
}

const forever = quota.MaxTicks * time.Microsecond

func charge(rule, key string, cost int64, d time.Duration) quota.Charge {
	return quota.Charge{Rule: rule, Key: key, Cost: cost, Limit: quota.Limit{Name: "credit", Algorithm: credit{}, Quota: d.Microseconds(), Period: time.Second}}
}

// Paid is the value of Decision.At for a charge that was paid with granted units. Such a charge can
// be refunded only through a store returned by New.
const Paid = 1

// Unpaid implements optional.Payer. It returns the store that was passed to New, which does not use
// granted units.
func (s *Store) Unpaid() quota.Store { return s.next }

// Take implements quota.Store.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error {
	if slices.ContainsFunc(t.Charges, isPaid) {
		return s.refund(ctx, t)
	}
	if err := s.next.Take(ctx, t); err != nil {
		return err
	}
	switch {
	case t.Mode == quota.ModePeek:
		s.count(ctx, t)
	case t.Mode == quota.ModeAtMost, !t.Allowed():
		s.pay(ctx, t)
	}
	return nil
}

// pay pays with granted units in place of the limits that refuse t or, if t.Mode is ModeAtMost, that
// have no units left, up to t.Most units in total. If there are not enough granted units, t remains
// as it is.
func (s *Store) pay(ctx context.Context, t *quota.Transaction) {
	if t.Within > 0 {
		before := slices.Clone(t.Decisions)
		defer func() {
			if !t.Allowed() { // p does not wait, so limits that would admit t after a wait have refused p
				copy(t.Decisions, before)
			}
		}()
	}
	refused, atMost := make([]bool, len(t.Charges)), t.Mode == quota.ModeAtMost
	for range t.Charges { // in each iteration, one more limit may refuse or have no units left
		for i := range refused {
			refused[i] = refused[i] || lacks(t, i)
		}
		p, where := s.payment(t, refused)
		if p == nil || !slices.Contains(refused, true) || atMost && t.Granted >= t.Most {
			return
		}
		if atMost {
			p.Mode, p.Most = quota.ModeAtMost, t.Most-t.Granted
		}
		if s.next.Take(ctx, p) != nil {
			return
		}
		if p.Allowed() {
			t.Granted += p.Granted
			fill(t, p, where, refused)
			if !atMost {
				t.At, t.Wait = p.At, 0
				return
			}
			continue
		}
		if !merge(t, p, where, refused) {
			return
		}
	}
}

// merge copies to t which further limits refuse p, because a HybridStore may report only one of the
// limits that refuse t. It returns false if a key has too few granted units.
func merge(t, p *quota.Transaction, where []int, refused []bool) bool {
	for i, j := range where {
		switch {
		case p.Decisions[j].Allowed:
		case refused[i]:
			return false
		default:
			t.Decisions[i] = p.Decisions[j]
		}
	}
	return true
}

// lacks reports whether the limit of a charge refuses t or, if t.Mode is ModeAtMost, has no units left.
func lacks(t *quota.Transaction, i int) bool {
	d := &t.Decisions[i]
	return !d.Allowed || t.Mode == quota.ModeAtMost && d.Remaining >= 0 && d.Remaining < t.Charges[i].Cost
}

// count adds granted units to the decisions of a Peek.
func (s *Store) count(ctx context.Context, t *quota.Transaction) {
	look, where := quota.Transaction{}, make([]int, len(t.Charges))
	for i := range t.Charges {
		if c := &t.Charges[i]; s.payable(c) {
			where[i] = add(&look, charge(c.Rule, c.Key, 0, forever))
		}
	}
	if len(look.Charges) == 0 || s.next.Take(ctx, &look) != nil {
		return
	}
	for i := range t.Charges {
		c, d := &t.Charges[i], &t.Decisions[i]
		if !s.payable(c) {
			continue
		}
		left := look.Decisions[where[i]].Remaining
		if d.Remaining >= 0 {
			d.Remaining += left
		}
		if !d.Allowed && c.Cost <= left {
			d.Allowed, d.RetryAfter = true, 0
		}
	}
}

// payment returns a transaction in which granted units pay for the refused charges of t. For each
// charge of t, the second result contains the index of the charge that replaces it in p. If a
// refused charge cannot be paid, p is nil.
func (s *Store) payment(t *quota.Transaction, refused []bool) (p *quota.Transaction, where []int) {
	p = new(quota.Transaction)
	for i, c := range t.Charges {
		if refused[i] {
			if !s.payable(&c) {
				return nil, nil
			}
			c = charge(c.Rule, c.Key, c.Cost, forever)
		} else if u, ok := c.Limit.Algorithm.(Unpayable); ok {
			c = u.Refusing(c)
		}
		where = append(where, add(p, c))
	}
	return p, where
}

// fill copies the decisions on p, which has paid for t, to t.
func fill(t, p *quota.Transaction, where []int, refused []bool) {
	for i := range t.Decisions {
		d := &t.Decisions[i]
		switch {
		case !refused[i]:
			*d = p.Decisions[where[i]]
		case !d.Allowed:
			d.Allowed, d.RetryAfter, d.At, d.FellBack = true, 0, Paid, p.Decisions[where[i]].FellBack
		}
	}
}

// add adds a charge to t and returns its index. If t already charges the granted units of the same
// rule and key, add merges the two charges, because a request pays its cost only once, however many
// limits of the rule refuse it.
func add(t *quota.Transaction, c quota.Charge) int {
	pays := func(c *quota.Charge) bool { return c.Limit.Algorithm == quota.Algorithm(credit{}) }
	same := func(o quota.Charge) bool { return o.Rule == c.Rule && o.Key == c.Key && pays(&o) && pays(&c) }
	i := slices.IndexFunc(t.Charges, same)
	switch {
	case i < 0:
		i = len(t.Charges)
		t.Charges = append(t.Charges, c)
	case c.Cost > 0:
		t.Charges[i].Cost = max(t.Charges[i].Cost, c.Cost)
	}
	return i
}

// payable reports whether granted units can pay for a charge.
func (s *Store) payable(c *quota.Charge) bool {
	_, never := c.Limit.Algorithm.(Unpayable)
	return slices.Contains(s.rules, c.Rule) && !never && !c.Limit.InFlight()
}

func isPaid(c quota.Charge) bool { return c.Cost < 0 && c.Spent == Paid }

// refund refunds units. Units of paid charges become granted units again, and all others are
// refunded under their limits.
func (s *Store) refund(ctx context.Context, t *quota.Transaction) error {
	p := quota.Transaction{}
	for _, c := range t.Charges {
		if isPaid(c) {
			fellBack := c.FellBack
			c = charge(c.Rule, c.Key, c.Cost, forever)
			c.Spent, c.FellBack = Paid, fellBack
		}
		add(&p, c)
	}
	err := s.next.Take(ctx, &p)
	t.Result = quota.Result{Decisions: make([]quota.Decision, len(t.Charges)), At: p.At}
	for i := range t.Decisions {
		t.Decisions[i] = quota.Decision{Allowed: true, Remaining: -1, At: p.At.UnixMicro()}
	}
	return err
}
