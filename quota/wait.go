package quota

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A LimitedError reports that charges were refused. Use errors.As to find it in the errors of Wait
// and Reserve.
type LimitedError struct {
	// Transaction holds the charges. Its Decisions say when each charge would fit.
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

// RetryAfter returns the wait until all charges fit, if nothing else is spent. It may be Never.
func (e *LimitedError) RetryAfter() time.Duration { return e.Transaction.RetryAfter() }

// Allow spends one charge if it fits now. Otherwise the RetryAfter of the Decision is the wait
// until the charge would fit. Allow is for work other than HTTP requests. Wait is like Allow, but
// waits until the charge fits. After an error, Allowed is false, and the caller chooses whether to
// proceed.
//
// A Cost of 0 or less is an error, because such a charge would always be allowed. To read a key
// without spending, use Peek. To refund units, call Store.Take with a negative Cost.
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

// AllowAtMost spends as many units of a charge as fit now, up to its Cost. It makes a single call
// to the store, so no other charge comes in between. If not even one unit fits, granted is 0, and
// the RetryAfter of the Decision is the wait until one unit would fit. In all other respects
// AllowAtMost is like Allow. ModeAtMost does the same for several charges.
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

// Wait spends charges and returns at their slot, the first instant at which all of them fit. If
// the wait would be longer than within, or would end after the deadline of ctx, Wait spends
// nothing and returns a *LimitedError at once. Wait is for work other than HTTP requests, such as
// queues, gRPC and batch jobs. Callers that charge the same key get their slots in order of
// arrival, across all processes that share the store. For a concurrency limit use Hold, because
// Wait neither waits for its units nor releases them.
//
// If ctx is done before the call, Wait spends nothing and returns the error of ctx. If ctx ends
// during the wait, Wait cancels the slot and returns the error of ctx. The call to the store
// continues when ctx ends, because Wait must know what to refund. If the slot has begun when the
// store answers, Wait returns nil, even if ctx has ended.
//
// It is an error if a charge has a Cost of 0 or less. Errors from the store are returned
// unchanged. Units may then have been spent, and the caller chooses whether to proceed.
func Wait(ctx context.Context, store Store, within time.Duration, charges ...Charge) error {
	r, err := Reserve(ctx, store, within, charges...)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Reserve spends charges at their slot, as Wait does, but returns a Reservation for the slot
// without waiting. In all other respects Reserve is like Wait.
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

// A Reservation is a slot that Reserve has reserved. Only one goroutine may use it at a time.
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

// Wait waits until the slot begins. If ctx ends first, Wait cancels the slot and returns the error
// of ctx.
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

// Cancel refunds the units if the slot has not begun, so that other callers may spend them. If no
// later slot was reserved since, Cancel restores the states that the keys had before Reserve. A
// second call does nothing.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.Delay() == 0 {
		return nil
	}
	r.turn = time.Time{}
	return Refund(ctx, r.store, &r.t)
}

// Refund refunds the units that an allowed transaction has spent. If t has reserved a slot and no
// later slot was reserved since, Refund restores the states that the keys had before t. Charges
// whose Cost is 0 or less have nothing to refund.
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

// Peek returns the decisions that the store would now make on charges, and spends nothing: see
// ModePeek.
//
// If a HybridStore refuses a charge from memory, its Remaining may be -1.
func Peek(ctx context.Context, store Store, charges ...Charge) (*Transaction, error) {
	t := &Transaction{Charges: slices.Clone(charges), Mode: ModePeek}
	err := store.Take(ctx, t)
	return t, err
}

// Reset refunds, for each of the charges, all units that its key has spent under its limit. The
// Cost of a charge is ignored. Slots that are already reserved keep their times, and new callers
// get later slots. To refund only some units, Take a charge with a negative Cost. To allow more
// than the limit, raise the limit, for example with weir.Rule.Policy.
func Reset(ctx context.Context, store Store, charges ...Charge) error {
	t := &Transaction{Charges: slices.Clone(charges)}
	for i := range t.Charges {
		t.Charges[i].Cost, t.Charges[i].Spent = -4*MaxTicks, 0
	}
	return store.Take(ctx, t)
}
