package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
)

// BreakerOptions are the options for Breaker. The zero value is ready to use.
type BreakerOptions struct {
	// Failures is the number of consecutive failures after which the breaker opens; 0 means 5.
	// Failures that happen together count as one: after a failure, another one counts only if it
	// occurs at least 25 ms later and its request began after the earlier failure was known. Five
	// failures therefore take at least 100 ms, however many requests fail, so a shorter disruption
	// does not open the breaker.
	Failures int

	// Cooldown is how long an open breaker waits before it calls the store again. It must be at
	// least 1 ms; 0 means one second. After each cooldown, one request becomes the probe, which has
	// to wait for the store even if the store is still down.
	Cooldown time.Duration

	// OnChange, if not nil, is called after the breaker has opened, with the error that caused it,
	// and after the breaker has closed, with a nil error. It is not called after a failed probe. If
	// the store has several servers, OnChange is called after the first of their breakers has
	// opened and after the last one has closed. OnChange runs without a lock in the goroutine of
	// the request that caused the change. If calls to OnChange take longer than Cooldown, they may
	// overlap.
	OnChange func(open bool, err error)

	// Logger receives a line with the error when the breaker opens, and another line when the
	// breaker closes; nil means slog.Default().
	Logger *slog.Logger
}

const moment = 25 * time.Millisecond // failures within this time count as one

// Breaker wraps a store in a circuit breaker. While the wrapped store is down, calls fail
// immediately instead of waiting for the store. After o.Failures consecutive failures the breaker
// opens, and Take returns ErrOpen without calling the wrapped store. After o.Cooldown the breaker
// lets a single transaction through as a probe. If the probe succeeds, the breaker closes; if the
// probe fails, another cooldown begins. If the breaker opens or closes while a call is in progress,
// the result of that call is ignored.
//
// Some errors do not show that the wrapped store is unhealthy, so the breaker ignores them:
// ErrBusy, errors.ErrUnsupported, and any error for a transaction that is invalid or whose context
// is done. If a probe returns such an error, the next call is used as another probe. The breaker
// sets no deadline, so it stays open if a probe never receives an answer.
//
// If the wrapped store has several servers (see optional.Server), such as the masters of a Redis
// Cluster, each has its own breaker, so keys on healthy servers are not affected. If an open
// breaker receives no calls for a minute, it closes the next time that another server answers a
// call. The breaker of several servers also closes when each of them has answered a separate call.
//
// An open breaker makes no decisions, so a Limiter allows all requests by default (see
// weir.Options.OnError). To have a second store make the decisions instead, use Fallback.
//
// Breaker panics if next is nil, an option is negative, or Cooldown is below 1 ms but not 0. It
// logs a warning if next is or contains a FallbackStore or a HybridStore, because these belong
// around the Breaker. A store of package stack, for example, contains both.
func Breaker(next Store, o BreakerOptions) *BreakerStore {
	switch {
	case safe.Nil(next):
		panic("quota: Breaker: the store is nil")
	case o.Failures < 0:
		panic(fmt.Sprintf("quota: Breaker: Failures is %d; want at least 0", o.Failures))
	case o.Cooldown < 0:
		panic(fmt.Sprintf("quota: Breaker: Cooldown is %v; want at least 0", o.Cooldown))
	}
	if err := period.CheckUnit("quota: Breaker: Cooldown", o.Cooldown); err != nil {
		panic(err.Error())
	}
	switch next.(type) {
	case *FallbackStore:
		warnOrder(o.Logger, "Breaker is around Fallback, so it opens only if both stores fail")
	case *HybridStore:
		warnOrder(o.Logger, "Breaker is around Hybrid, so while it is open, refusals that Hybrid knows are errors")
	case watcher:
		warnOrder(o.Logger, "Breaker is around a store with Hybrid, such as that of package stack, which has a Breaker, so it opens only if all of its stores fail")
	}
	o.Failures = cmp.Or(o.Failures, 5)
	o.Cooldown = cmp.Or(o.Cooldown, time.Second)
	if o.OnChange == nil {
		o.OnChange = func(bool, error) {}
	}
	b := &BreakerStore{next: next, o: o}
	b.servers, _ = next.(server)
	b.whole.phase.Store(&phase{})
	return b
}

// A BreakerStore is a Store with a circuit breaker: see Breaker.
type BreakerStore struct {
	next    Store
	servers server // next as an optional.Server, or nil
	o       BreakerOptions
	whole   circuit  // for transactions whose server is not known
	parts   sync.Map // server → *circuit
	open    atomic.Int64
	refused atomic.Int64
	looked  atomic.Int64 // when closeUnused last checked the circuits, in ns since 1970

	circuits atomic.Int64 // the number of circuits in parts
}

// A circuit is the circuit breaker for one server.
type circuit struct {
	server   string
	phase    atomic.Pointer[phase]
	answered atomic.Int64 // when the server last answered while a circuit was open, in ns since 1970
}

// circuit returns the circuit for the server that evaluates t.
func (b *BreakerStore) circuit(t *Transaction) *circuit {
	if b.servers == nil {
		return &b.whole
	}
	name := b.servers.Server(t)
	if name == "" {
		return &b.whole
	}
	if c, ok := b.parts.Load(name); ok {
		return c.(*circuit)
	}
	return b.add(name)
}

const mostCircuits = 1000 // bounds memory, because servers may get new addresses again and again

// add adds a circuit for a server. If there are too many circuits, it first removes the closed
// ones. If all are open, a server without a circuit shares the circuit for unknown servers.
func (b *BreakerStore) add(name string) *circuit {
	if b.circuits.Load() >= mostCircuits {
		b.parts.Range(func(name, c any) bool {
			phases := &c.(*circuit).phase
			if p := phases.Load(); p.err == nil && !p.forgotten && phases.CompareAndSwap(p, &phase{forgotten: true}) {
				b.parts.CompareAndDelete(name, c)
				b.circuits.Add(-1)
			}
			return true
		})
		if b.circuits.Load() >= mostCircuits {
			return &b.whole
		}
	}
	n := &circuit{server: name}
	n.phase.Store(&phase{})
	c, known := b.parts.LoadOrStore(name, n)
	if !known {
		b.circuits.Add(1)
	}
	return c.(*circuit)
}

// A phase is the time from one change of the breaker to the next. A request's result counts for the
// phase in which the request began.
type phase struct {
	failures atomic.Int64 // consecutive failures that count; used while the breaker is closed
	last     atomic.Int64 // when the last of these failures was known, in ns since 1970

	forgotten bool // the circuit was removed, so it must not open

	err     error       // what an open breaker returns; nil if the breaker is closed
	began   time.Time   // when the outage began
	refused int64       // BreakerStore.refused at that time
	until   time.Time   // when the first probe may be sent
	probing atomic.Bool // a probe is in progress, or has ended the phase
}

// BreakerStats contains the statistics of a BreakerStore.
type BreakerStats struct {
	Open    bool  // the breaker, or the breaker of one server, is open
	Refused int64 // transactions that got ErrOpen
}

// Stats returns the statistics since b was created.
func (b *BreakerStore) Stats() BreakerStats {
	return BreakerStats{b.open.Load() > 0, b.refused.Load()}
}

// Take implements Store.
func (b *BreakerStore) Take(ctx context.Context, t *Transaction) error {
	c := b.circuit(t)
	p := c.phase.Load()
	if p.err != nil {
		return b.probe(ctx, t, c, p)
	}
	known := p.failures.Load()
	err := b.next.Take(ctx, t)
	switch {
	case err == nil:
		if p.failures.Load() != 0 { // an unconditional store would move the cache line between cores
			p.failures.Store(0)
		}
		if b.servers != nil && b.open.Load() > 0 {
			c.answered.Store(time.Now().UnixNano())
			b.closeUnused(ctx)
		}
	case isFailure(ctx, t, err) && p.failed(known) >= int64(b.o.Failures) && !p.forgotten:
		open := b.newOpenPhase(err)
		open.began, open.refused = time.Now(), b.refused.Load()
		if c.phase.CompareAndSwap(p, open) {
			b.logger(c).WarnContext(ctx, "quota: breaker opened",
				"err", err, "cause", Cause(err), "effect", "the store is called again after Cooldown")
			if b.open.Add(1) == 1 {
				b.o.OnChange(true, err)
			}
		}
	}
	return err
}

// logger returns a logger that names the server of c.
func (b *BreakerStore) logger(c *circuit) *slog.Logger {
	if c.server == "" {
		return loggerOr(b.o.Logger)
	}
	return loggerOr(b.o.Logger).With("addresses", c.server)
}

// failed counts a failure and returns the number of consecutive failures, or 0 if this failure does
// not count. The caller passes the number of consecutive failures when the request began.
func (p *phase) failed(known int64) int64 {
	now := time.Now().UnixNano()
	if known > 0 && now-p.last.Load() < int64(moment) || !p.failures.CompareAndSwap(known, known+1) {
		return 0
	}
	p.last.Store(now)
	return known + 1
}

// probe calls the store if Cooldown is over and no other request is the probe. Otherwise, it
// returns the error of the open breaker.
func (b *BreakerStore) probe(ctx context.Context, t *Transaction, c *circuit, p *phase) error {
	if time.Now().Before(p.until) || !p.probing.CompareAndSwap(false, true) {
		b.refused.Add(1)
		return p.err
	}
	next := p
	defer func() { // even if the store panics
		if next == p {
			p.probing.Store(false)
		}
	}()
	err := b.next.Take(ctx, t)
	switch {
	case err == nil:
		next = &phase{}
		b.closeCircuit(ctx, c, p, next)
	case isFailure(ctx, t, err):
		next = b.newOpenPhase(err)
		next.began, next.refused = p.began, p.refused
		c.phase.Store(next)
	}
	return err
}

// closeCircuit closes a circuit. Only the probe calls it.
func (b *BreakerStore) closeCircuit(ctx context.Context, c *circuit, p, next *phase) {
	c.phase.Store(next)
	b.logger(c).InfoContext(ctx, "quota: breaker closed",
		"after", period.Rounded(time.Since(p.began)), "refused", b.refused.Load()-p.refused)
	if b.open.Add(-1) == 0 {
		b.o.OnChange(false, nil)
	}
}

// An open circuit whose server receives no calls closes after its Cooldown and this additional
// time.
const unused = time.Minute

// closeUnused closes open circuits that no call has used for a while. The keys may have moved to
// another server, or the circuit for unknown servers may have opened although the servers are known
// by now. No probe would ever close such a circuit.
func (b *BreakerStore) closeUnused(ctx context.Context) {
	now := time.Now()
	if last := b.looked.Load(); now.UnixNano()-last < int64(b.o.Cooldown) || !b.looked.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	look := func(c *circuit) {
		p := c.phase.Load()
		if p.err != nil && (now.Sub(p.until) > unused || b.haveAnswered(c.server, p.until.Add(-b.o.Cooldown))) && p.probing.CompareAndSwap(false, true) {
			b.closeCircuit(ctx, c, p, &phase{})
		}
	}
	look(&b.whole)
	b.parts.Range(func(_, c any) bool { look(c.(*circuit)); return true })
}

// haveAnswered reports whether each of several servers has answered a separate call since their last
// common call failed, at the given time. Package stack divides the calls for several servers while a
// circuit is open, so they would get no probe.
func (b *BreakerStore) haveAnswered(servers string, since time.Time) bool {
	names := strings.Fields(servers)
	for _, name := range names {
		if c, ok := b.parts.Load(name); !ok || c.(*circuit).answered.Load() < since.UnixNano() {
			return false
		}
	}
	return len(names) > 1
}

// newOpenPhase creates the error that rejected calls return, so that these do not allocate.
func (b *BreakerStore) newOpenPhase(cause error) *phase {
	return &phase{err: fmt.Errorf("%w: %w", ErrOpen, cause), until: time.Now().Add(b.o.Cooldown)}
}

// isFailure reports whether err is a failure of the store.
func isFailure(ctx context.Context, t *Transaction, err error) bool {
	for _, ignored := range [...]error{ErrDuplicate, ErrBusy, errors.ErrUnsupported} {
		if errors.Is(err, ignored) {
			return false
		}
	}
	return callerError(ctx, t) == nil
}

// callerError returns the reason why no store could have evaluated t, or nil if there is none.
// Network code may report that a deadline has passed even before ctx is done.
func callerError(ctx context.Context, t *Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return t.Validate()
}
