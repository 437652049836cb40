package quota

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
)

// Hold spends charges, and holds their units under concurrency limits (see algorithms.InFlight)
// until release is called. At least one of the charges must have a concurrency limit. Use Hold for
// jobs, connections, and exclusive access across all processes that share the store. The units have
// a lease, whose duration is the Period of the limit. Hold keeps renewing the lease, so the work
// may take longer. If the process dies, the units are released when the lease expires. Units that
// were spent under other limits are not refunded.
//
// If the charges do not fit, Hold waits until ctx's deadline (see TakeInLine), and then returns a
// *LimitedError. If ctx has no deadline, Hold returns the *LimitedError immediately. If ctx is
// cancelled, Hold returns ctx.Err(). While Hold waits, it spends nothing. Cancelling ctx after Hold
// has returned does not release the units.
//
// The first call to release returns the units to the store, and later calls do nothing. If the
// store fails, the release is retried until the store answers or the lease expires. If units cannot
// be renewed or released, Hold logs a warning to slog.Default(), at most once a second. If the
// store is down for longer than half the lease duration, the units may expire while they are still
// in use. It is an error if a charge has a Cost of 0 or less. Errors from the store are returned
// unchanged. After such an error, units may have been spent; those of a concurrency limit count
// until their lease expires.
func Hold(ctx context.Context, store Store, charges ...Charge) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkSpends(charges...); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(charges, func(c Charge) bool { return c.Limit.InFlight() }) {
		return nil, errors.New("quota: Hold: no charge is of a concurrency limit; want one, or Hold would hold nothing")
	}
	t := &Transaction{Charges: slices.Clone(charges)} // a LimitedError keeps the charges
	if deadline, ok := ctx.Deadline(); ok {
		t.Within = max(0, time.Until(deadline))
	}
	if _, err := TakeInLine(ctx, store, t); err != nil {
		return nil, err
	}
	if !t.Allowed() {
		return nil, &LimitedError{Transaction: t}
	}
	time.Sleep(t.Wait) // if a limit is a queue, a microsecond; otherwise 0
	return Keep(context.WithoutCancel(ctx), store, t, nil), nil
}

// Keep holds the units that an allowed transaction has spent under concurrency limits, until
// release is called. Keep renews the units as Hold does, and is for code that calls Store.Take
// itself. If t has spent no units under concurrency limits, Keep returns nil. The caller may modify
// t after Keep has returned. The context ctx is passed to the store, so it must never be cancelled
// or expire.
//
// If units cannot be renewed or released, the given function is called with a description of the
// problem, such as "units not refunded", and with the rule's name. If the function is nil, a
// warning is logged to slog.Default() instead.
func Keep(ctx context.Context, store Store, t *Transaction,
	failed func(ctx context.Context, what, rule string, err error)) (release func()) {
	var charges []Charge
	lease := MaxTicks * time.Microsecond
	for i := range t.Charges {
		if c := &t.Charges[i]; c.Cost > 0 && c.Limit.InFlight() {
			charges, lease = append(charges, t.refunds(i)), min(lease, c.Limit.Period)
		}
	}
	if len(charges) == 0 {
		return nil
	}
	if failed == nil {
		failed = warnHeld
	}
	now := time.Now()
	h := &held{ctx: ctx, store: store, failed: failed, began: now, ends: now.Add(lease), charges: charges, lease: lease}
	heldHere.add(store, charges)
	h.mu.Lock() // the timer may call renew before AfterFunc returns
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(lease/2, h.renew)
	return h.release
}

// A held value contains the units in flight that Keep holds for one transaction, and the data
// needed to renew and release these units.
type held struct {
	ctx    context.Context
	store  Store
	failed func(ctx context.Context, what, rule string, err error)
	began  time.Time

	mu      sync.Mutex
	charges []Charge  // the charges that release the units, with negative costs
	ends    time.Time // when the lease of the units expires
	lease   time.Duration
	timer   *time.Timer
}

// release releases the units. A second call does nothing.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer.Stop()
	if len(h.charges) == 0 {
		return
	}
	charges := h.charges
	h.charges = nil
	heldHere.remove(h.store, charges)
	if err := h.store.Take(h.ctx, &Transaction{Charges: charges}); err != nil {
		h.failed(h.ctx, "units not refunded", charges[0].Rule, err)
		h.retry(charges, h.ends, firstRetry)
		return
	}
	h.wake(charges)
}

// wake causes the callers that wait for the released units to call the store.
func (h *held) wake(charges []Charge) {
	if anyoneWaits() && !h.isSilent() {
		for i := range charges {
			releaseIn(waitKeyOf(h.store, &charges[i]))
		}
	}
}

// The delays between attempts to release units while the store fails: 100 ms, 200 ms, and so on,
// doubled up to 5 s. A quarter of each delay is random, so that units of many requests are not
// released at the same time.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// retry releases units whose release has failed, unless their lease expires first. The store may
// have released the units despite the error. A second attempt could then release units that another
// request of this process has spent in the same µs. If there is such a request, retry waits until
// it has ended.
func (h *held) retry(charges []Charge, ends time.Time, wait time.Duration) {
	if time.Until(ends) <= wait {
		return
	}
	time.AfterFunc(wait-rand.N(wait/4), func() {
		switch {
		case heldHere.holdsUnits(h.store, charges):
			h.retry(charges, ends, wait)
		case h.takeSafely(&Transaction{Charges: charges}) != nil:
			h.retry(charges, ends, min(2*wait, lastRetry))
		default:
			h.wake(charges)
		}
	})
}

// A process passes a released unit on to its own waiting callers for keepsFor on average. Then the
// process that calls the store first gets the unit. Because keepsFor is 25 times the interval at
// which processes call the store, a unit is unused for at most 4 % of the time.
const keepsFor = 250 * time.Millisecond

// isSilent reports whether the release should wake no caller of this process, so that any process
// may get the units. The result is random, and more likely to be true the longer the process has
// held the units. A process with more units therefore leaves more units to other processes.
func (h *held) isSilent() bool {
	if isInstant(h.store) {
		return false
	}
	return rand.N(keepsFor) < time.Since(h.began)
}

// renew spends the units again, even if they do not fit, and then releases the old units. In
// between, the units count twice. A request that fits may then be refused, but no request is
// admitted that does not fit.
func (h *held) renew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.charges) == 0 {
		return
	}
	fresh := Transaction{Mode: ModeForce}
	for _, c := range h.charges {
		c.Cost, c.Spent, c.FellBack = -c.Cost, 0, false
		fresh.Charges = append(fresh.Charges, c)
	}
	if err := h.takeSafely(&fresh); err != nil { // the store may still have spent the units
		h.failed(h.ctx, "request in flight not renewed", fresh.Charges[0].Rule, err)
		h.timer.Reset(h.lease / 4)
		return
	}
	old, ended := h.charges, h.ends
	h.charges, h.ends = nil, time.Now().Add(h.lease)
	for i := range fresh.Charges {
		h.charges = append(h.charges, fresh.refunds(i))
	}
	heldHere.add(h.store, h.charges)
	heldHere.remove(h.store, old)
	if err := h.takeSafely(&Transaction{Charges: old}); err != nil {
		h.failed(h.ctx, "units not refunded", old[0].Rule, err)
		h.retry(old, ended, firstRetry)
	}
	h.timer.Reset(h.lease / 2)
}

// takeSafely calls the store and converts a panic to an error, because a panic in the goroutine of
// a timer would end the process.
func (h *held) takeSafely(t *Transaction) error {
	_, err := safe.Call("weir: the store panicked", func() error { return h.store.Take(h.ctx, t) })
	return err
}

// heldHere counts the units that this process holds, by the instant at which they were spent. This
// variable is global for the same reason as waitingCallers. It does not count units of stores in
// memory, because such stores do not fail.
var heldHere liveUnits

type liveUnits struct {
	mu    sync.Mutex
	units map[liveKey]int64
}

type liveKey struct {
	waitKey
	spent    int64
	fellBack bool
}

func liveKeyOf(store Store, c *Charge) liveKey {
	return liveKey{waitKeyOf(store, c), c.Spent, c.FellBack}
}

func (l *liveUnits) add(store Store, charges []Charge) { l.change(store, charges, -1) }

func (l *liveUnits) remove(store Store, charges []Charge) { l.change(store, charges, 1) }

func (l *liveUnits) change(store Store, charges []Charge, sign int64) {
	if isInstant(store) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.units == nil {
		l.units = map[liveKey]int64{}
	}
	for i := range charges {
		k := liveKeyOf(store, &charges[i])
		if l.units[k] += sign * charges[i].Cost; l.units[k] <= 0 {
			delete(l.units, k)
		}
	}
}

// holdsUnits reports whether the process holds units that were spent at the same instant, under the
// same limit and for the same key, as those of a charge.
func (l *liveUnits) holdsUnits(store Store, charges []Charge) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(charges, func(c Charge) bool {
		return l.units[liveKeyOf(store, &c)] > 0
	})
}

// isInstant reports whether a store makes its decisions in memory: see optional.Instant.
func isInstant(store Store) bool {
	i, ok := store.(instant)
	return ok && safe.Equal(i.Instant(), store)
}

// The gate heldLog limits how often warnHeld logs. It is global because Hold has no options.
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

// InFlight reports whether the limit is a concurrency limit: see optional.Concurrent.
func (l *Limit) InFlight() bool {
	_, ok := l.Algorithm.(concurrent)
	return ok
}
