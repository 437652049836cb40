package quota

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A LimitedError says that charges were refused. errors.As finds it in the errors of Wait and
// Reserve.
type LimitedError struct {
	// Transaction has the charges. Its Decisions say when each charge would fit.
	Transaction *Transaction
}

func (e *LimitedError) Error() string {
	t := e.Transaction
	for i, d := range t.Decisions {
		if d.Allowed {
			continue
		}
		c := &t.Charges[i]
		if c.Limit.InFlight() {
			return fmt.Sprintf("quota: rule %q has as many requests in flight as it may: limit %v", c.Rule, c.Limit)
		}
		if d.RetryAfter == Never {
			return fmt.Sprintf("quota: rule %q never allows %d at once: limit %v", c.Rule, c.Cost, c.Limit)
		}
		return fmt.Sprintf("quota: rule %q is at its limit, retry after %v: limit %v", c.Rule, t.RetryAfter(), c.Limit)
	}
	return "quota: limited"
}

// RetryAfter is the wait until all charges fit, if nothing else is spent. It may be Never.
func (e *LimitedError) RetryAfter() time.Duration { return e.Transaction.RetryAfter() }

// Allow spends one charge if it fits now. Otherwise RetryAfter of the Decision says when
// the charge would fit. Allow is for work that is not HTTP. Wait is like Allow, but waits
// until the charge fits. After an error Allowed is false, and the caller chooses whether to
// go on.
//
// A Cost of 0 or below is an error, because such a charge is always allowed. Peek reads a
// key without spending, and Store.Take with a negative Cost refunds units.
func Allow(ctx context.Context, store Store, charge Charge) (Decision, error) {
	if err := spends(charge); err != nil {
		return Decision{}, err
	}
	t := Transaction{Charges: []Charge{charge}}
	if err := store.Take(ctx, &t); err != nil {
		return Decision{}, err
	}
	return t.Decisions[0], nil
}

// AllowAtMost spends as many units of a charge as fit now, at most its Cost, in one call of
// the store: no other charge comes between. If not even one unit fits, granted is 0, and
// RetryAfter of the Decision says when one unit would fit. In everything else AllowAtMost
// is like Allow. ModeAtMost does the same for several charges.
func AllowAtMost(ctx context.Context, store Store, charge Charge) (granted int64, d Decision, err error) {
	if err := spends(charge); err != nil {
		return 0, d, err
	}
	t := Transaction{Mode: ModeAtMost, Most: charge.Cost}
	charge.Cost = 1
	t.Charges = []Charge{charge}
	if err := store.Take(ctx, &t); err != nil {
		return 0, d, err
	}
	return t.Granted, t.Decisions[0], nil
}

// spends returns an error unless all charges spend something. A Cost of 0 does not mean 1,
// because the caller may have forgotten or miscounted it.
func spends(charges ...Charge) error {
	for i := range charges {
		if c := &charges[i]; c.Cost <= 0 {
			return fmt.Errorf("quota: rule %q: Cost is %d; want at least 1, because a charge that spends nothing is never limited", c.Rule, c.Cost)
		}
	}
	return nil
}

// Wait spends charges and returns at their slot, the first instant at which all of them
// fit. If the wait would be longer than within, or would end after the deadline of ctx,
// Wait spends nothing and returns a *LimitedError at once. Wait is for work that is not
// HTTP: queues, gRPC, batch jobs. Callers of a key get their slots in the order in which
// they come, in all processes that share the store. For a concurrency limit use Hold: Wait does not
// wait for its units, and does not release them.
//
// If ctx has ended before the call, Wait spends nothing and returns the error of ctx. If
// ctx ends during the wait, Wait cancels the slot and returns the error of ctx. The call
// of the store does not end with ctx, because Wait must know what to refund. If the slot
// has begun when the store answers, Wait returns nil, even if ctx has ended.
//
// A charge whose Cost is 0 or below is an error. An error of the store is returned
// unchanged. Units may then have been spent, and the caller chooses whether to go on.
func Wait(ctx context.Context, store Store, within time.Duration, charges ...Charge) error {
	r, err := Reserve(ctx, store, within, charges...)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Reserve spends charges at their slot, as Wait does, but returns a Reservation of the slot
// without waiting. In everything else Reserve is like Wait.
func Reserve(ctx context.Context, store Store, within time.Duration, charges ...Charge) (*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spends(charges...); err != nil {
		return nil, err
	}
	charges = slices.Clone(charges) // Cancel needs them
	r := &Reservation{store: store, t: Transaction{Charges: charges, Within: atMost(ctx, within)}}
	if err := r.take(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return r, nil
}

// atMost returns within, or the time until the deadline of ctx if that is less.
func atMost(ctx context.Context, within time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline))
	}
	return max(0, within)
}

// A Reservation is a reserved turn. Only one goroutine may use it at a time.
type Reservation struct {
	store Store
	t     Transaction
	turn  time.Time // on the clock of this process
}

func (r *Reservation) take(ctx context.Context) error {
	if err := r.store.Take(ctx, &r.t); err != nil {
		return err
	}
	if !r.t.Allowed() {
		return &LimitedError{Transaction: &r.t}
	}
	r.turn = time.Now().Add(r.t.Wait)
	return nil
}

// Delay returns the time until the slot begins; 0 if it has begun.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.turn)) }

// Wait returns when the slot begins. If ctx ends before, Wait cancels the slot and returns
// the error of ctx.
func (r *Reservation) Wait(ctx context.Context) error {
	d := r.Delay()
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		_ = r.Cancel(context.WithoutCancel(ctx)) // if it fails, the units stay spent
		return ctx.Err()
	}
}

// Cancel refunds the units if the slot has not begun, so that other callers may spend
// them. If no later slot was reserved, the keys are then as they were before Reserve. A
// second call does nothing.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.Delay() == 0 {
		return nil
	}
	r.turn = time.Time{}
	return Refund(ctx, r.store, &r.t)
}

// Refund refunds the units that an allowed transaction has spent. If t waits and no later
// slot was reserved, the keys are then as they were before t. Charges whose Cost is 0 or below
// have nothing to refund.
func Refund(ctx context.Context, store Store, t *Transaction) error {
	back := Transaction{Charges: make([]Charge, 0, len(t.Charges))}
	for i, c := range t.Charges {
		if c.Cost > 0 {
			c.Cost, c.Spent = -min(c.Cost, 2*MaxTicks), t.Decisions[i].At
			back.Charges = append(back.Charges, c)
			if len(t.Undo) > 0 {
				back.Cancels = append(back.Cancels, t.Undo[i])
			}
		}
	}
	return store.Take(ctx, &back)
}

// Peek returns what would be decided if charges were taken now, and spends nothing: see
// ModePeek.
//
// If a HybridStore refuses a charge from memory, Remaining may be -1.
func Peek(ctx context.Context, store Store, charges ...Charge) (*Transaction, error) {
	t := &Transaction{Charges: slices.Clone(charges), Mode: ModePeek}
	err := store.Take(ctx, t)
	return t, err
}

// Reset refunds all units that the keys of charges have spent under their limits. The
// Cost of the charges is ignored. Slots that are already reserved keep their instants, and
// callers that come afterwards get later slots. To refund only some units, Take a charge
// of negative Cost. To allow more than the limit, raise the limit, for instance by
// Rule.Policy.
func Reset(ctx context.Context, store Store, charges ...Charge) error {
	t := &Transaction{Charges: slices.Clone(charges)}
	for i := range t.Charges {
		t.Charges[i].Cost, t.Charges[i].Spent = -4*MaxTicks, 0
	}
	return store.Take(ctx, t)
}
