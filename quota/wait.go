package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/period"
)

// A LimitedError reports that charges were refused. Wait, Reserve, Hold and Stream.Draw return a
// *LimitedError.
type LimitedError struct {
	// Transaction holds the charges. Its Decisions report when each charge would fit.
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

// RetryAfter returns how long to wait before trying again. It may be Never.
func (e *LimitedError) RetryAfter() time.Duration { return e.Transaction.RetryAfter() }

// Allow spends one charge if its limit allows it now. Otherwise, it spends nothing, and the
// Decision's RetryAfter is the time to wait before trying again. If there is an error, Allowed is
// false, and the caller may choose to proceed anyway.
//
// A Cost of 0 or less is an error, because such a charge would always be allowed. Use Peek to read
// the state of a key without spending anything, and Store.Take with a negative Cost to refund
// units.
func Allow(ctx context.Context, store Store, charge Charge) (Decision, error) {
	if err := checkSpends(charge); err != nil {
		return Decision{}, err
	}
	t := Transaction{Charges: []Charge{charge}}
	if err := store.Take(ctx, &t); err != nil {
		return Decision{}, err
	}
	return t.Decisions[0], nil
}

// AllowAtMost spends as many units as are available now, up to the Cost of the charge. If no unit
// is available, granted is 0, and the Decision's RetryAfter is the time until a unit is available.
// In all other respects, AllowAtMost is like Allow. To spend several charges in this way, use
// ModeAtMost.
func AllowAtMost(ctx context.Context, store Store, charge Charge) (granted int64, d Decision, err error) {
	if err := checkSpends(charge); err != nil {
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

// checkSpends returns an error unless all charges spend something. A Cost of 0 does not mean 1,
// because the caller may have forgotten or miscounted it.
func checkSpends(charges ...Charge) error {
	for i := range charges {
		if c := &charges[i]; c.Cost <= 0 {
			return fmt.Errorf("quota: rule %q: Cost is %d; want at least 1, "+
				"because a charge that spends nothing is never limited", c.Rule, c.Cost)
		}
	}
	return nil
}

// Wait reserves a slot, which begins at the first instant at which all charges fit, and waits until
// the slot begins. If the slot would begin after ctx's deadline, or if the wait would exceed the
// given duration, Wait spends nothing and immediately returns a *LimitedError. Callers with the
// same key get slots in order of arrival, across all processes that share the store. For
// concurrency limits, use Hold instead, because Wait neither waits until units in flight are
// released nor releases units itself.
//
// If ctx is done before the call, Wait spends nothing and returns ctx.Err(). If ctx is done before
// the slot begins, Wait cancels the reservation and returns ctx.Err(). Wait does not interrupt its
// call to the store, because only the store's answer shows what to refund. If the slot has begun
// when the store answers, Wait returns nil even if ctx is done.
//
// It is an error if a charge has a Cost of 0 or less. Errors from the store are returned unchanged.
// After such an error, units may have been spent, and the caller may choose to proceed anyway.
func Wait(ctx context.Context, store Store, within time.Duration, charges ...Charge) error {
	r, err := Reserve(ctx, store, within, charges...)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Reserve is like Wait, but returns a Reservation for the slot instead of waiting for it.
func Reserve(ctx context.Context, store Store, within time.Duration, charges ...Charge) (*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkSpends(charges...); err != nil {
		return nil, err
	}
	charges = slices.Clone(charges) // a copy, because Cancel needs the charges later
	r := &Reservation{store: store, t: Transaction{Charges: charges, Within: atMost(ctx, within)}}
	if err := store.Take(context.WithoutCancel(ctx), &r.t); err != nil {
		return nil, err
	}
	if !r.t.Allowed() {
		return nil, &LimitedError{Transaction: &r.t}
	}
	r.slot = time.Now().Add(r.t.Wait)
	return r, nil
}

// atMost returns within, or the time until the deadline of ctx if that is less.
func atMost(ctx context.Context, within time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline))
	}
	return max(0, within)
}

// A Reservation represents a reserved slot. It is not safe for concurrent use.
type Reservation struct {
	store Store
	t     Transaction
	slot  time.Time // when the slot begins, by the clock of this process; zero if the reservation is canceled
}

var errCanceled = errors.New("quota: Wait: the reservation is canceled; want another")

// Delay returns the time until the slot begins, or 0 if it has already begun.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.slot)) }

// Wait waits until the slot begins. If ctx is done first, Wait cancels the reservation and returns
// ctx.Err(). If the reservation was canceled earlier, Wait returns an error.
func (r *Reservation) Wait(ctx context.Context) error {
	d := r.Delay()
	switch {
	case r.slot.IsZero():
		return errCanceled
	case d == 0:
		return nil
	}
	err := period.Sleep(ctx, d)
	if err != nil {
		_ = r.Cancel(context.WithoutCancel(ctx)) // after an error, the units stay spent
	}
	return err
}

// Cancel refunds the units, unless the slot has already begun. If no later slot has been reserved
// in the meantime, Cancel restores each key's state from before the call to Reserve. A second call
// does nothing.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.Delay() == 0 {
		return nil
	}
	r.slot = time.Time{}
	return Refund(ctx, r.store, &r.t)
}

// Refund undoes the allowed transaction t by refunding the units that it has spent. If t reserved a
// slot and no later slot has been reserved since, Refund restores each key's state from before t.
// Refund ignores charges whose Cost is 0 or less.
func Refund(ctx context.Context, store Store, t *Transaction) error {
	back, times := Transaction{Charges: make([]Charge, 0, len(t.Charges))}, int64(1)
	if t.Mode == ModeAtMost {
		times = t.Granted
	}
	for i := range t.Charges {
		if cost := t.Charges[i].Cost; cost > 0 && times > 0 {
			c := t.refunds(i)
			c.Cost = -min(cost, 2*MaxTicks/times) * times
			back.Charges = append(back.Charges, c)
			if len(t.Undo) > 0 {
				back.Cancels = append(back.Cancels, t.Undo[i])
			}
		}
	}
	return store.Take(ctx, &back)
}

// Peek returns the decisions that a call to Take with these charges would get now, but spends
// nothing. See ModePeek.
//
// If the store is a HybridStore and refuses a charge from its cache, the Remaining of that charge
// may be −1.
func Peek(ctx context.Context, store Store, charges ...Charge) (*Transaction, error) {
	t := &Transaction{Charges: slices.Clone(charges), Mode: ModePeek}
	err := store.Take(ctx, t)
	return t, err
}

// Reset refunds all units that the key of each charge has spent under the limit of that charge. It
// ignores the Cost. Slots that are already reserved keep their times, and new callers get later
// slots. To refund only some units, call Take with a negative Cost. Reset returns false if there
// was nothing to refund, for example because the key is misspelled. If only the second store of a
// Fallback has refunded units, Reset returns ErrFellBack.
func Reset(ctx context.Context, store Store, charges ...Charge) (found bool, err error) {
	t, err := Peek(ctx, store, charges...)
	if err != nil {
		return false, err
	}
	for i := range t.Decisions {
		found = found || t.Decisions[i].ResetAfter > 0
	}
	t = &Transaction{Charges: t.Charges}
	for i := range t.Charges {
		t.Charges[i].Cost, t.Charges[i].Spent = -4*MaxTicks, 0
	}
	if err = store.Take(ctx, t); err == nil && t.FellBack() {
		err = ErrFellBack
	}
	return found, err
}
