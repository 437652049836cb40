package quota

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/line"
	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/internal/sparse"
)

// Hold spends charges, and holds their units under concurrency limits (see algorithms.InFlight)
// until release is called. At least one of the charges must have a concurrency limit. Use Hold for
// jobs, connections, and exclusive access across all processes that share the store. Hold keeps
// renewing the units, so the work may take longer than the lease duration, which is the Period of
// the limit. If the process dies, the units are released when their lease expires. Units that were
// spent under other limits are not refunded.
//
// If the charges do not fit, Hold waits until ctx's deadline (see TakeInLine), and then returns a
// *LimitedError. If ctx has no deadline, Hold returns the *LimitedError immediately. If ctx is
// cancelled, Hold returns ctx.Err(). While Hold waits, it spends nothing. Cancelling ctx after Hold
// has returned does not release the units.
//
// The first call to release returns the units to the store, and later calls do nothing. If units
// cannot be renewed or released, Hold logs a warning to slog.Default(), at most once a second. If
// the store is down for longer than half the lease duration, the units may expire while they are
// still in use. It is an error if a charge has a Cost of 0 or less. Errors from the store are
// returned unchanged. If there is such an error, units may have been spent, and units of a
// concurrency limit count until their lease expires.
func Hold(ctx context.Context, store Store, charges ...Charge) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spends(charges...); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(charges, func(c Charge) bool { return c.Limit.InFlight() }) {
		return nil, errors.New("quota: Hold: no charge is of a concurrency limit; want one, or Hold would hold nothing")
	}
	t := &Transaction{Charges: slices.Clone(charges)} // a LimitedError keeps them
	if deadline, ok := ctx.Deadline(); ok {
		t.Within = max(0, time.Until(deadline))
	}
	if _, err := TakeInLine(ctx, store, t); err != nil {
		return nil, err
	}
	if !t.Allowed() {
		return nil, &LimitedError{Transaction: t}
	}
	time.Sleep(t.Wait) // a microsecond, if a limit is a queue
	return Keep(context.WithoutCancel(ctx), store, t, nil), nil
}

// Keep holds the units that an allowed transaction has spent under concurrency limits, until
// release is called. Keep renews the units as Hold does, and is for code that calls Store.Take
// itself. If t has spent no units under concurrency limits, Keep returns nil. The caller may modify
// t after Keep has returned. Keep passes ctx to the store, so ctx must never be cancelled or
// expire.
//
// If units cannot be renewed or released, Keep calls the given function with a description of the
// problem, such as "units not refunded", and with the rule's name. If the function is nil, Keep
// logs a warning to slog.Default() instead.
func Keep(ctx context.Context, store Store, t *Transaction, failed func(ctx context.Context, what, rule string, err error)) (release func()) {
	var charges []Charge
	lease := MaxTicks * time.Microsecond
	for i := range t.Charges {
		if c := t.Charges[i]; c.Cost > 0 && c.Limit.InFlight() {
			c.Cost, c.Spent = -c.Cost, t.Decisions[i].At
			charges, lease = append(charges, c), min(lease, c.Limit.Period)
		}
	}
	if len(charges) == 0 {
		return nil
	}
	if failed == nil {
		failed = warnHeld
	}
	h := &held{ctx: ctx, store: store, failed: failed, began: time.Now(), charges: charges, lease: lease}
	h.mu.Lock() // renew may begin before AfterFunc returns
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(lease/2, h.renew)
	return h.release
}

// held has units in flight that somebody holds.
type held struct {
	ctx    context.Context
	store  Store
	failed func(ctx context.Context, what, rule string, err error)
	began  time.Time

	mu      sync.Mutex
	charges []Charge // the charges that give the units back, with negative costs
	lease   time.Duration
	timer   *time.Timer
}

// release gives the units back. A second call does nothing.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
	if len(h.charges) == 0 {
		return
	}
	back := Transaction{Charges: h.charges}
	h.charges = nil
	if err := h.store.Take(h.ctx, &back); err != nil {
		h.failed(h.ctx, "units not refunded", back.Charges[0].Rule, err)
		return
	}
	if line.Anyone() && !h.silently() {
		for i := range back.Charges {
			line.Release(lineOf(h.store, &back.Charges[i]))
		}
	}
}

// stays is how long units are passed on, on average, to those who wait in the same process, before
// they are left to whichever process asks first. It is 25 times the interval in which processes
// ask, so a unit is unused for 4% of the time at most.
const stays = 250 * time.Millisecond

// silently reports whether nobody is told of the release. The longer a process has held units, the
// more often it leaves them to all, so processes with more units leave more.
func (h *held) silently() bool {
	if i, ok := h.store.(Instant); ok && compare.Equal(i.Instant(), h.store) {
		return false
	}
	return rand.N(stays) < time.Since(h.began)
}

// renew spends the units again, even if they do not fit, and then gives the old units back.
// In between the units count twice, so another request may be refused although it fits, but
// no request is admitted that does not fit.
func (h *held) renew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.charges) == 0 {
		return
	}
	fresh := Transaction{Mode: ModeForce}
	for _, c := range h.charges {
		c.Cost, c.Spent = -c.Cost, 0
		fresh.Charges = append(fresh.Charges, c)
	}
	if err := h.takeSafely(&fresh); err != nil { // the store may still have spent the units
		h.failed(h.ctx, "request in flight not renewed", fresh.Charges[0].Rule, err)
		h.timer.Reset(h.lease / 4)
		return
	}
	old := Transaction{Charges: h.charges}
	h.charges = nil
	for i, c := range fresh.Charges {
		c.Cost, c.Spent = -c.Cost, fresh.Decisions[i].At
		h.charges = append(h.charges, c)
	}
	if err := h.takeSafely(&old); err != nil {
		h.failed(h.ctx, "units not refunded", old.Charges[0].Rule, err)
	}
	h.timer.Reset(h.lease / 2)
}

// takeSafely asks the store and returns a panic as an error, because on the goroutine of a
// timer a panic would end the process.
func (h *held) takeSafely(t *Transaction) error {
	_, err := panics.Call("weir: the store panicked", func() error { return h.store.Take(h.ctx, t) })
	return err
}

// heldLog bounds the lines of warnHeld, for Hold has no options.
var heldLog sparse.Gate

func warnHeld(ctx context.Context, what, rule string, err error) {
	if unlogged, ok := heldLog.Pass(); ok {
		attrs := []any{"rule", rule, "err", err, "cause", Cause(err)}
		if unlogged > 0 {
			attrs = append(attrs, "unlogged", unlogged)
		}
		slog.WarnContext(ctx, "quota: "+what, attrs...)
	}
}
