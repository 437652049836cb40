package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// TakeInLine is like store.Take, but if a concurrency limit refuses t, TakeInLine waits up to
// t.Within for units to be released. It returns how long it has waited, without its calls to the
// store. TakeInLine is for code that creates transactions itself; other code uses Hold. The Mode of
// t must be ModeSpend.
//
// In each process, callers that wait for the same limit and key form a line, in order of arrival.
// Only the first caller in a line calls the store. It does so when Keep releases units in the same
// process, when a rate limit has enough units, and otherwise every 5 to 15 ms. All lines in a
// process together make at most 1,000 calls per second. A waiting caller spends nothing until all
// of its charges fit at the same time. The page docs/inflight.md explains how processes share the
// units.
//
// The transaction t is refused if waiting cannot help, or if t still does not fit when t.Within or
// ctx's deadline has passed. If ctx is cancelled first, TakeInLine spends nothing and returns
// ctx.Err(). Errors from the store are returned immediately. TakeInLine does not interrupt its
// calls to the store, so it may return some time after ctx is done. A transaction without a
// concurrency limit waits only for callers ahead of it in the line, and then reserves a slot. The
// slot begins t.Wait after TakeInLine returns.
func TakeInLine(ctx context.Context, store Store, t *Transaction) (waited time.Duration, err error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	if t.Mode != ModeSpend {
		return 0, fmt.Errorf("quota: TakeInLine: Mode is %d; want ModeSpend, because other modes do not wait", t.Mode)
	}
	w := waiter{ctx: context.WithoutCancel(ctx), store: store, t: t, arrival: arrive()}
	within := t.Within
	defer func() { t.Within = within }()
	w.giveUp = time.Now().Add(min(within, MaxTicks*time.Microsecond))
	w.prepare()

	called, after := false, time.Duration(0)
	if !w.isBehind() {
		if err := w.take(); err != nil || t.Allowed() {
			return 0, err
		}
		called, after = true, w.blocked()
	}
	if after == Never {
		return 0, nil
	}
	if within > time.Microsecond {
		called, err = w.wait(ctx, called, after)
	}
	if !called && (err == nil || err == ctx.Err()) {
		err = cmp.Or(w.refuse(), err)
	}
	return w.waited, err
}

// A waiter represents a caller of TakeInLine.
type waiter struct {
	ctx      context.Context // the context for the store
	store    Store
	t        *Transaction
	giveUp   time.Time
	arrival  uint64
	inFlight bool // t has a charge of a concurrency limit
	queues   bool // t has a charge of a Queuer
	at       int  // the index of the charge in whose line the caller waits

	waited time.Duration // how long the caller has waited, without the calls to the store
}

func (w *waiter) prepare() {
	for i := range w.t.Charges {
		l := &w.t.Charges[i].Limit
		_, queues := l.Algorithm.(queuer)
		w.inFlight, w.queues = w.inFlight || l.InFlight(), w.queues || queues
	}
}

// take calls the store. A transaction with a concurrency limit must fit now; any other transaction
// may wait in the store until giveUp.
func (w *waiter) take() error {
	switch t := w.t; {
	case !w.inFlight:
		t.Within = max(time.Until(w.giveUp), time.Microsecond)
	case w.queues:
		t.Within = time.Microsecond // with 0, a limit that is a queue would allow a burst
	default:
		t.Within = 0
	}
	return w.store.Take(w.ctx, w.t)
}

// blocked finds the charge that refuses the transaction for the longest time. It returns the time
// to wait before the next call to the store, 0 if this time is unknown, or Never if waiting cannot
// help.
func (w *waiter) blocked() (after time.Duration) {
	longest, left := time.Duration(0), time.Until(w.giveUp)
	for i := range w.t.Charges {
		c, d := &w.t.Charges[i], &w.t.Decisions[i]
		if d.Allowed {
			continue
		}
		unknown := c.Limit.InFlight() && d.RetryAfter == Never && c.Cost <= c.Limit.Quota
		if !unknown && d.RetryAfter > left {
			return Never
		}
		if d.RetryAfter > longest {
			w.at, longest, after = i, d.RetryAfter, max(d.RetryAfter, time.Millisecond)
			if unknown {
				after = 0
			}
		}
	}
	return after
}

// isBehind reports whether a caller that arrived earlier waits in the line of one of the charges.
func (w *waiter) isBehind() bool {
	if !anyoneWaits() {
		return false
	}
	for i := range w.t.Charges {
		if c := &w.t.Charges[i]; c.Cost > 0 && earlierWaits(waitKeyOf(w.store, c), w.arrival) {
			w.at = i
			return true
		}
	}
	return false
}

// key identifies what the caller waits for.
func (w *waiter) key() waitKey { return waitKeyOf(w.store, &w.t.Charges[w.at]) }

// wait waits in line until a decision on the transaction is made or the time is over. It reports
// whether the store was called.
func (w *waiter) wait(ctx context.Context, called bool, after time.Duration) (bool, error) {
	place := joinLine(w.key(), w.arrival, after)
	defer place.leave()
	calling := time.Duration(0)
	defer func(since time.Time) { w.waited = time.Since(since) - calling }(time.Now())
	_, announced := ctx.Deadline()
	timer := time.NewTimer(time.Until(w.giveUp))
	defer timer.Stop()
	for {
		due, left := place.timeUntilDue(), time.Until(w.giveUp)
		switch {
		case left <= 0:
			return called, nil
		case due == 0 && w.isBehind():
			place.wait(w.key(), 0)
			continue
		case due == 0:
			start := time.Now()
			err := w.take()
			calling += time.Since(start)
			if err != nil || w.t.Allowed() {
				return true, err
			}
			if called, after = true, w.blocked(); after == Never {
				return true, nil
			}
			place.wait(w.key(), after)
			continue
		}
		timer.Reset(min(due, left))
		select {
		case <-place.wake:
		case <-timer.C:
		case <-ctx.Done():
			if announced && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return called, nil // the deadline of ctx is where Within ends
			}
			return called, ctx.Err()
		}
	}
}

// refuse refuses a transaction for which the store was not called, because other callers are ahead
// in the line. The decisions describe the current states of the keys.
func (w *waiter) refuse() error {
	w.t.Mode, w.t.Within = ModePeek, 0
	defer func() { w.t.Mode = ModeSpend }()
	if err := w.store.Take(w.ctx, w.t); err != nil {
		return err
	}
	if d := &w.t.Decisions[w.at]; w.t.Allowed() {
		d.Allowed, d.Remaining, d.RetryAfter = false, 0, Never
	}
	return nil
}
