package weir

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A LimitedError says that charges were refused. It is what errors.As finds in
// the errors of Wait, Reserve and Limiter.Transport.
type LimitedError struct {
	// Transaction is the refusal: which charges, and when each would fit.
	Transaction *Transaction
}

func (e *LimitedError) Error() string {
	t := e.Transaction
	switch t.Refusal.Reason {
	case ReasonBan:
		return fmt.Sprintf("weir: rule %q has banned the key, retry after %v", t.Refusal.Rule, t.RetryAfter())
	case ReasonDeny:
		return fmt.Sprintf("weir: rule %q denies the key", t.Refusal.Rule)
	case ReasonPause:
		return fmt.Sprintf("weir: rule %q has paused the key, retry after %v", t.Refusal.Rule, t.RetryAfter())
	}
	for i, d := range t.Decisions {
		if d.Allowed {
			continue
		}
		c := &t.Charges[i]
		if d.RetryAfter == Never {
			return fmt.Sprintf("weir: rule %q never allows %d at once: limit %v", c.Rule, c.Cost, c.Limit)
		}
		return fmt.Sprintf("weir: rule %q is at its limit, retry after %v: limit %v", c.Rule, t.RetryAfter(), c.Limit)
	}
	return "weir: limited"
}

// RetryAfter is when everything would fit, if nothing else is spent. It may be
// Never.
func (e *LimitedError) RetryAfter() time.Duration { return e.Transaction.RetryAfter() }

// Allow asks for one charge, now or never, and says whether it fits and, if not,
// when it would: RetryAfter. It is for work that is not HTTP, as Wait is, which
// waits. After an error Allowed is false: whether to go on is the caller's choice.
//
// A Cost of 0 or below is an error, because it is always allowed and limits
// nothing. Peek looks without spending, and Store.Take gives back.
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

// spends returns an error unless all charges spend something. 0 does not mean 1:
// it is what a Cost that was forgotten and one that was miscounted look like, and
// elsewhere it looks.
func spends(charges ...Charge) error {
	for i := range charges {
		if c := &charges[i]; c.Cost <= 0 {
			return fmt.Errorf("weir: rule %q: a charge of cost %d spends nothing and is never limited: set its Cost", c.Rule, c.Cost)
		}
	}
	return nil
}

// Wait spends charges and returns when it is their turn, or refuses at once,
// with a *LimitedError, if that is not within that time. It is for work that is
// not HTTP: queues, gRPC, batch jobs. There is one line for all who wait on the
// same store, in other processes too: first come, first served.
//
// If ctx ends while it waits, the turn is given back, and Wait returns the error
// of ctx. A charge whose Cost is 0 or below is an error: it would wait for nothing
// and spend nothing. If ctx has ended before, nothing is spent. The store is asked in its own
// time, whatever becomes of ctx meanwhile: only so is it known what to give back.
// A turn that has come by then is the caller's, and Wait returns nil. A turn that
// lies beyond the deadline of ctx is refused at once. An error of the store is
// returned as it is: whether to go on is the caller's choice, and units may have
// been spent.
func Wait(ctx context.Context, store Store, within time.Duration, charges ...Charge) error {
	r, err := Reserve(ctx, store, within, charges...)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Reserve spends charges at the first instant within that time at which they
// all fit, and does not wait for it. Otherwise it is as Wait.
func Reserve(ctx context.Context, store Store, within time.Duration, charges ...Charge) (*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spends(charges...); err != nil {
		return nil, err
	}
	r := &Reservation{store: store, t: Transaction{Charges: slices.Clone(charges), Within: atMost(ctx, within)}} // Cancel gives back these
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

// A Reservation is a turn that was reserved. It is for one goroutine.
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

// Delay is how long it is until the turn comes; 0 if it has come.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.turn)) }

// Wait returns when the turn has come. If ctx ends before, it gives the turn
// back and returns the error of ctx.
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
		_ = r.Cancel(context.WithoutCancel(ctx)) // units that are lost are admitted to nobody
		return ctx.Err()
	}
}

// Cancel gives back what was reserved, so that others may go in its place,
// unless the turn has come. If it was the last in line, the keys are as they were
// before. It may be called again, and then does nothing.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.Delay() == 0 {
		return nil
	}
	r.turn = time.Time{}
	return giveBack(ctx, r.store, &r.t)
}

// giveBack gives back what a transaction that was allowed has spent, and nothing
// else. If it waits and was the last in line, the keys are as they were before.
func giveBack(ctx context.Context, store Store, t *Transaction) error {
	back := Transaction{Charges: make([]Charge, 0, len(t.Charges))}
	for i, c := range t.Charges {
		if c.Cost > 0 {
			c.Cost, c.Spent = -min(c.Cost, 2*MaxTicks), t.Decisions[i].At
			back.Charges = append(back.Charges, c)
			if len(t.Undo) > 0 {
				back.Undo = append(back.Undo, t.Undo[i])
			}
		}
	}
	return store.Take(ctx, &back)
}

// Peek returns what a store says of charges without spending anything: what
// remains, when more is free, when all is. Their Cost is ignored.
func Peek(ctx context.Context, store Store, charges ...Charge) (*Transaction, error) {
	return takeAll(ctx, store, charges, 0)
}

// Reset gives back all that the keys of charges have spent; their Cost is
// ignored. What is reserved keeps its instant: nobody goes before it. To give
// back some, Take a charge of negative Cost; to allow more than the limit, raise
// it, for instance by Rule.LimitsFor.
func Reset(ctx context.Context, store Store, charges ...Charge) error {
	_, err := takeAll(ctx, store, charges, -2*MaxTicks)
	return err
}

func takeAll(ctx context.Context, store Store, charges []Charge, cost int64) (*Transaction, error) {
	t := &Transaction{Charges: make([]Charge, len(charges))}
	for i, c := range charges {
		c.Cost = cost
		t.Charges[i] = c
	}
	return t, store.Take(ctx, t)
}

// enter returns how long a request may wait: at most maxWait, and next to nothing if
// MaxWaiting others wait or ask whether they must. If it may wait it is one of them from
// now on, until it leaves: places that were taken after the store was asked would
// bound nothing.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
	if maxWait <= 0 {
		return 0
	}
	within := atMost(v.Context, maxWait)
	if within > 0 && l.waiting.Add(1) > int64(l.o.MaxWaiting) {
		l.waiting.Add(-1)
		within = 0
	}
	if within == 0 {
		return noPlace
	}
	v.entered = true
	return within
}

// noPlace is the Within of a request that can't wait although others do. It is not 0,
// which would turn the queue of a LeakyBucket into a meter.
const noPlace = time.Microsecond

func (l *Limiter) leave(v *verdict) {
	if v.entered {
		v.entered = false
		l.waiting.Add(-1)
	}
}

// wait returns when the turn of v has come, or gives it back when the context of
// the request ends.
func (l *Limiter) wait(v *verdict) error {
	defer l.leave(v)
	r := Reservation{store: l.store, t: v.Transaction, turn: time.Now().Add(v.Wait)}
	return r.Wait(v.Context)
}

// giveBack gives back a turn that v does not use.
func (l *Limiter) giveBack(v *verdict) {
	if err := giveBack((*asking)(v), l.store, &v.Transaction); err != nil {
		l.log.warn(v, v.Charges[0].Rule, err) // units that are lost are admitted to nobody
	}
	v.Wait = 0
}

// clientClosedRequest is what nginx logs where a client hung up before it was
// answered.
const clientClosedRequest = 499

// unserved answers a request that was not served because its context ended with
// err. The client may be gone, but a log must not read as if it was served, and a
// cache must keep nothing.
func unserved(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		reducedCapacity.write(w, r)
		return
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	delete(h, "Content-Length") // there is no body
	delete(h, "Content-Encoding")
	w.WriteHeader(clientClosedRequest)
}
