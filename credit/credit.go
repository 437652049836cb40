// Package credit has units beyond the limits of a rule, for a customer that has just paid:
//
//	store := credit.New(redis, "api")
//	err := credit.Grant(ctx, store, "api", "acme", 10_000, 24*time.Hour)
//
// A request that the limits of its rule refuse is then paid with granted units, until they
// are used or their time is over. The store keeps them, so all processes that share it see
// them within a second.
package credit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed83679106/weir"
)

// New returns a store that pays with granted units what limits of the rules refuse. It asks
// next a second time for each such refusal, and for none of other rules. Behind New, Hybrid
// remembers for a second that a key has no units, so New belongs outside all other
// decorators. It panics if next is nil or there are no rules.
//
// A request is paid in full or not at all: by the limits that admit it, and by granted units
// in place of all that refuse it. No pause, ban or deny, and no limit of requests in flight,
// can be paid. If next fails when it is asked again, the refusal stands.
//
// The Decision of a paid charge has At 1, and Remaining is that of the refusing limit. Units
// that a rule with Settle gives back are granted units again, as long as their time is not
// over.
func New(next weir.Store, rules ...string) *Store {
	if next == nil || len(rules) == 0 {
		panic("credit: the store is nil, or there are no rules")
	}
	return &Store{next, slices.Clone(rules)}
}

// A Store is what New returns.
type Store struct {
	next  weir.Store
	rules []string
}

// Grant gives a key of a rule units for d, or until they are used if d is 0. They add up
// with units that are left of earlier grants; the time of all is the longest.
func Grant(ctx context.Context, store weir.Store, rule, key string, units int64, d time.Duration) error {
	switch {
	case units < 1 || units > weir.MaxTicks:
		return fmt.Errorf("credit: a grant of %d units is not from 1 to 2^50", units)
	case d < 0 || d > forever:
		return fmt.Errorf("credit: a grant for %v is not for up to 35 years", d)
	case d == 0:
		d = forever
	}
	return store.Take(ctx, &weir.Transaction{Charges: []weir.Charge{charge(rule, key, -units, d.Truncate(time.Microsecond))}})
}

// Left returns how many granted units a key of a rule has left, and until when.
func Left(ctx context.Context, store weir.Store, rule, key string) (units int64, until time.Time, err error) {
	t := weir.Transaction{Charges: []weir.Charge{charge(rule, key, 0, forever)}}
	if err := store.Take(ctx, &t); err != nil || t.Decisions[0].Remaining == 0 {
		return 0, time.Time{}, err
	}
	d := &t.Decisions[0]
	return d.Remaining, t.At.Add(d.ResetAfter), nil
}

// Revoke takes all granted units of a key of a rule back.
func Revoke(ctx context.Context, store weir.Store, rule, key string) error {
	return store.Take(ctx, &weir.Transaction{Charges: []weir.Charge{charge(rule, key, 0, forever)}, Forget: true})
}

const forever = weir.MaxTicks * time.Microsecond

func charge(rule, key string, cost int64, d time.Duration) weir.Charge {
	return weir.Charge{Rule: rule, Key: key, Cost: cost, Limit: weir.Limit{Name: "credit", Algorithm: credit{}, Quota: 1, Period: d}}
}

// paid is Decision.At of a charge that was paid. No limit has units of that instant, so
// without New they are given back to none.
const paid = 1

// Take implements weir.Store.
func (s *Store) Take(ctx context.Context, t *weir.Transaction) error {
	if slices.ContainsFunc(t.Charges, isPaid) {
		return s.giveBack(ctx, t)
	}
	if err := s.next.Take(ctx, t); err != nil || t.Allowed() || t.AtMost > 0 {
		return err
	}
	refused := make([]bool, len(t.Charges))
	for i := range t.Decisions {
		refused[i] = !t.Decisions[i].Allowed
	}
	for range t.Charges { // Hybrid may know only one of the limits that refuse
		p, where := s.payment(t, refused)
		if p == nil || s.next.Take(ctx, p) != nil {
			return nil
		}
		if p.Allowed() {
			fill(t, p, where, refused)
			return nil
		}
		for i, j := range where {
			if !p.Decisions[j].Allowed {
				if refused[i] { // the key has too few units
					return nil
				}
				refused[i] = true
			}
		}
	}
	return nil
}

// payment returns a transaction in which the refused charges are paid, and where each charge
// is in it; or nil if one cannot be paid.
func (s *Store) payment(t *weir.Transaction, refused []bool) (p *weir.Transaction, where []int) {
	p = new(weir.Transaction)
	for i, c := range t.Charges {
		if refused[i] {
			if !s.payable(&c) {
				return nil, nil
			}
			c = charge(c.Rule, c.Key, c.Cost, forever)
		}
		where = append(where, add(p, c))
	}
	return p, where
}

// fill makes t a transaction that was paid by p.
func fill(t, p *weir.Transaction, where []int, refused []bool) {
	for i := range t.Decisions {
		d := &t.Decisions[i]
		if refused[i] {
			d.Allowed, d.RetryAfter, d.At = true, 0, paid
		} else {
			*d = p.Decisions[where[i]]
		}
	}
	t.At, t.Wait = p.At, 0
}

// add adds a charge, unless it is of the credit of a key that another charge pays with: a
// rule is paid once, whatever the number of its limits. It returns the place of the charge.
func add(t *weir.Transaction, c weir.Charge) int {
	pays := func(c *weir.Charge) bool { return c.Limit.Algorithm == weir.Algorithm(credit{}) }
	same := func(o weir.Charge) bool { return o.Rule == c.Rule && o.Key == c.Key && pays(&o) && pays(&c) }
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

// payable reports whether granted units can pay a charge. The algorithms of pauses, bans and
// requests in flight, and of what keeps a Peek from spending, say that they cannot.
func (s *Store) payable(c *weir.Charge) bool {
	_, never := c.Limit.Algorithm.(interface{ Unpayable() })
	return slices.Contains(s.rules, c.Rule) && !never
}

func isPaid(c weir.Charge) bool { return c.Cost < 0 && c.Spent == paid }

// giveBack gives units back to what has paid them.
func (s *Store) giveBack(ctx context.Context, t *weir.Transaction) error {
	p := weir.Transaction{}
	for _, c := range t.Charges {
		if isPaid(c) {
			c = charge(c.Rule, c.Key, c.Cost, forever)
			c.Spent = paid
		}
		add(&p, c)
	}
	err := s.next.Take(ctx, &p)
	t.Decisions, t.At, t.Wait, t.Undo = make([]weir.Decision, len(t.Charges)), p.At, 0, nil
	for i := range t.Decisions {
		t.Decisions[i] = weir.Decision{Allowed: true, Remaining: -1, At: p.At.UnixMicro()}
	}
	return err
}
