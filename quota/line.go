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

// TakeInLine takes t as store.Take does, but if a concurrency limit refuses t, it waits for up to
// t.Within until units are released. It returns how long it waited, not counting its calls to the
// store. TakeInLine is for code that makes transactions itself, such as Hold and weir.Limiter. The
// Mode of t must be ModeSpend.
//
// Nobody knows when units in flight will be released, so a store cannot reserve them for later.
// Instead, the caller waits in a line for the limit and key that refuse it, and then calls the
// store again. Until all of its charges fit at the same time, including those of rate limits, it
// spends and holds nothing. The callers in a process are served in order of arrival: a later
// caller that charges the same limit and key waits behind the earlier ones. Only the first caller
// in a line calls the store. It does so when Keep releases units in this process, when a rate
// limit has enough units, and otherwise every 5 to 15 ms, because another process may have
// released units. A process therefore calls the store about 100 times a second for each limit and
// key with a line, and at most 1000 times a second in all.
//
// If a process offered the units it releases only to its own callers, it could keep them forever.
// Keep therefore sometimes releases units without notifying the callers in its own process, so
// that the units go to whichever process calls the store first. The probability is d/250 ms for
// units that were held for a time d, and 0 if the store is an Instant, because no other process
// shares it.
//
// If t does not fit within t.Within, or if waiting cannot help, t is refused. If ctx is cancelled
// first, nothing is spent and TakeInLine returns the error of ctx. If the deadline of ctx passes
// first, t is refused. An error from the store is returned immediately. A call to the store does
// not end with ctx, so TakeInLine may return only when the current call has ended. A transaction
// without a concurrency limit waits only behind callers that have one. It then reserves a slot,
// which begins t.Wait after TakeInLine has returned.
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
