package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/line"
)

// TakeInLine is like store.Take, but if a concurrency limit refuses t, TakeInLine waits up to
// t.Within for units to be released. It returns how long it waited, not counting its calls to the
// store. TakeInLine is for code that creates transactions itself; other code uses Hold. The Mode of
// t must be ModeSpend.
//
// In each process, the callers that wait for the same limit and key form a queue, in order of
// arrival. Only the first caller in a queue calls the store. It calls the store when Keep releases
// units in the same process, and when a rate limit has enough units; otherwise, it calls the store
// every 5 to 15 ms. All queues in a process together make at most 1,000 calls per second. A waiting
// caller spends nothing until all of its charges fit at the same time. The page docs/inflight.md in
// the repository explains how processes share the units.
//
// The transaction t is refused if waiting cannot help, or if t still does not fit when t.Within or
// ctx's deadline has passed. If ctx is cancelled first, TakeInLine spends nothing and returns
// ctx.Err(). Errors from the store are returned immediately. TakeInLine does not interrupt its
// calls to the store, so it may return some time after ctx is done. A transaction without a
// concurrency limit waits only for callers ahead of it in the queue. It then reserves a slot. The
// slot begins t.Wait after the return of TakeInLine.
func TakeInLine(ctx context.Context, store Store, t *Transaction) (waited time.Duration, err error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	if t.Mode != ModeSpend {
		return 0, fmt.Errorf("quota: TakeInLine: Mode is %d; want ModeSpend, because other modes do not wait", t.Mode)
	}
	w := waiter{ctx: context.WithoutCancel(ctx), store: store, t: t, ticket: line.Ticket()}
	within := t.Within
	defer func() { t.Within = within }()
	w.giveUp = time.Now().Add(min(within, MaxTicks*time.Microsecond))
	w.prepare()

	asked, after := false, time.Duration(0)
	if !w.behind() {
		if err := w.ask(); err != nil || t.Allowed() {
			return 0, err
		}
		asked, after = true, w.blocked()
	}
	if after == Never {
		return 0, nil
	}
	if within > time.Microsecond {
		asked, err = w.wait(ctx, asked, after)
	}
	if !asked && (err == nil || err == ctx.Err()) {
		err = cmp.Or(w.giveWay(), err)
	}
	return w.waited, err
}

// A waiter is a caller of TakeInLine.
type waiter struct {
	ctx      context.Context // of the store
	store    Store
	t        *Transaction
	giveUp   time.Time
	ticket   uint64
	inFlight bool // t has a charge of a concurrency limit
	queues   bool // t has a charge of a Queuer
	at       int  // the charge in whose line the caller waits

	waited time.Duration // without the calls of the store
}

func (w *waiter) prepare() {
	for i := range w.t.Charges {
		l := &w.t.Charges[i].Limit
		_, queues := l.Algorithm.(Queuer)
		w.inFlight, w.queues = w.inFlight || l.InFlight(), w.queues || queues
	}
}

// ask takes the transaction, now or never, unless it has no concurrency limit.
func (w *waiter) ask() error {
	switch t := w.t; {
	case !w.inFlight:
		t.Within = max(time.Until(w.giveUp), time.Microsecond)
	case w.queues:
		t.Within = time.Microsecond // with 0 a queue would let a burst pass
	default:
		t.Within = 0
	}
	return w.store.Take(w.ctx, w.t)
}

// blocked finds the charge that refuses the transaction for the longest time. It returns how long
// to wait before the store is asked again, 0 if nobody knows, or Never if waiting cannot help.
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

// behind reports whether others wait in the line of one of the charges, and came earlier.
func (w *waiter) behind() bool {
	if !line.Anyone() {
		return false
	}
	for i := range w.t.Charges {
		if c := &w.t.Charges[i]; c.Cost > 0 && line.Ahead(lineOf(w.store, c), w.ticket) {
			w.at = i
			return true
		}
	}
	return false
}

// wait waits in line until the transaction is decided or its time is over, and reports whether
// the store was asked about it.
func (w *waiter) wait(ctx context.Context, asked bool, after time.Duration) (bool, error) {
	line := line.Join(lineOf(w.store, &w.t.Charges[w.at]), w.ticket, after)
	defer line.Leave()
	asking := time.Duration(0)
	defer func(since time.Time) { w.waited = time.Since(since) - asking }(time.Now())
	_, announced := ctx.Deadline()
	timer := time.NewTimer(time.Until(w.giveUp))
	defer timer.Stop()
	for {
		due, left := line.Due(), time.Until(w.giveUp)
		switch {
		case left <= 0:
			return asked, nil
		case due == 0 && w.behind():
			line.Stay(lineOf(w.store, &w.t.Charges[w.at]), 0)
			continue
		case due == 0:
			start := time.Now()
			err := w.ask()
			asking += time.Since(start)
			if err != nil || w.t.Allowed() {
				return true, err
			}
			if asked, after = true, w.blocked(); after == Never {
				return true, nil
			}
			line.Stay(lineOf(w.store, &w.t.Charges[w.at]), after)
			continue
		}
		timer.Reset(min(due, left))
		select {
		case <-line.Wake():
		case <-timer.C:
		case <-ctx.Done():
			if announced && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return asked, nil // its deadline was the end of Within
			}
			return asked, ctx.Err()
		}
	}
}

// giveWay refuses a transaction for which the store was not asked, because others were first. The
// decisions describe the keys as they are.
func (w *waiter) giveWay() error {
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

// lineOf returns the line of a charge. Stores that cannot be compared share the lines of their
// type.
func lineOf(store Store, c *Charge) line.Key {
	k := line.Key{Store: store, Rule: c.Rule, Key: c.StoredKey(), Limit: c.Limit.StoredName(), Algorithm: c.Limit.Algorithm.Name()}
	if !compare.Can(store) {
		k.Store = reflect.TypeOf(store)
	}
	return k
}
