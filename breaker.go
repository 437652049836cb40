package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// BreakerOptions are ready to use as they are.
type BreakerOptions struct {
	// Failures is how many in a row open the breaker; 0 means 5. Failures of one
	// moment count as one: the next that counts is of a request that began when the
	// one before was known, and comes 25 ms later at least. So 5 take 100 ms, however
	// many requests fail meanwhile, and a shorter blip costs no Cooldown without the
	// store.
	Failures int

	// Cooldown is how long an open breaker leaves the store alone before it
	// asks again; 0 means a second. Each costs one request a wait for nothing.
	Cooldown time.Duration

	// OnChange is called when the breaker has opened, with the error that
	// opened it, and when it has closed, with nil; nil calls nothing. A probe
	// that fails changes nothing. It runs under no lock, in the goroutine of the
	// request that made the change; calls longer than Cooldown may overlap.
	OnChange func(open bool, err error)

	// Logger gets a line when the breaker has opened, with the error that opened
	// it, and one when it has closed; nil means slog.Default().
	Logger *slog.Logger
}

const moment = 25 * time.Millisecond

// Breaker answers at once while next is down, so that requests need not wait for
// it. Closed it passes on. After o.Failures failures in a row it is open and
// answers ErrOpen. Once o.Cooldown is over it lets one request at a time through
// as a probe, and answers ErrOpen to all others, until a probe succeeds, which
// closes it, or fails, which begins another Cooldown. What began before a change
// and ends after it counts for nothing.
//
// Nor does an error that says nothing about the store, and the next request
// probes then: if the caller has hung up or its own deadline has passed, if the
// transaction is invalid, or if the error is errors.ErrUnsupported or ErrBusy. So callers
// with less time than next takes to fail never open the breaker. It sets no
// deadline itself: a probe that next never answers keeps it open.
//
// An open breaker decides nothing: under OnError, requests pass by default.
// Fallback gives them a store that counts meanwhile.
//
// Breaker panics if next is nil or an option negative.
func Breaker(next Store, o BreakerOptions) *BreakerStore {
	switch {
	case next == nil:
		panic("weir: Breaker: the store is nil")
	case o.Failures < 0:
		panic(fmt.Sprintf("weir: Breaker: Failures is %d", o.Failures))
	case o.Cooldown < 0:
		panic(fmt.Sprintf("weir: Breaker: Cooldown is %v", o.Cooldown))
	}
	o.Failures = cmp.Or(o.Failures, 5)
	o.Cooldown = cmp.Or(o.Cooldown, time.Second)
	if o.OnChange == nil {
		o.OnChange = func(bool, error) {}
	}
	b := &BreakerStore{next: next, o: o}
	b.phase.Store(&phase{})
	return b
}

// A BreakerStore is what Breaker returns.
type BreakerStore struct {
	next    Store
	o       BreakerOptions
	phase   atomic.Pointer[phase]
	refused atomic.Int64
}

// A phase lasts from one change to the next. A result counts for the phase in
// which its request began.
type phase struct {
	failures atomic.Int64 // moments of failure in a row, while closed
	last     atomic.Int64 // when the last of them was known, in ns since 1970

	err     error       // what an open breaker answers; nil if closed
	began   time.Time   // the outage
	refused int64       // before it began
	until   time.Time   // no probe before
	probing atomic.Bool // stays true once the probe has ended the phase
}

// Open reports whether the breaker is open: until a probe has succeeded.
func (b *BreakerStore) Open() bool { return b.phase.Load().err != nil }

// Refused returns how many transactions were answered ErrOpen.
func (b *BreakerStore) Refused() int64 { return b.refused.Load() }

// Take implements Store.
func (b *BreakerStore) Take(ctx context.Context, t *Transaction) error {
	p := b.phase.Load()
	if p.err != nil {
		return b.probe(ctx, t, p)
	}
	known := p.failures.Load()
	err := b.next.Take(ctx, t)
	switch {
	case err == nil:
		if p.failures.Load() != 0 { // storing every time would bounce the cache line between cores
			p.failures.Store(0)
		}
	case isFailure(ctx, t, err) && p.failed(known) >= int64(b.o.Failures):
		open := b.newOpenPhase(err)
		open.began, open.refused = time.Now(), b.refused.Load()
		if b.phase.CompareAndSwap(p, open) {
			loggerOr(b.o.Logger).WarnContext(ctx, "weir: the breaker has opened: the store is left alone", "err", err)
			b.o.OnChange(true, err)
		}
	}
	return err
}

// failed counts a failure of a request that knew of so many when it began, and
// returns how many there are; 0 if it is of a moment that has counted.
func (p *phase) failed(known int64) int64 {
	now := time.Now().UnixNano()
	if known > 0 && now-p.last.Load() < int64(moment) || !p.failures.CompareAndSwap(known, known+1) {
		return 0
	}
	p.last.Store(now)
	return known + 1
}

// probe asks the store if it is time and no other request does.
func (b *BreakerStore) probe(ctx context.Context, t *Transaction, p *phase) error {
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
		b.phase.Store(next)
		loggerOr(b.o.Logger).InfoContext(ctx, "weir: the breaker has closed: the store answers", "after", time.Since(p.began), "refused", b.refused.Load()-p.refused)
		b.o.OnChange(false, nil)
	case isFailure(ctx, t, err):
		next = b.newOpenPhase(err)
		next.began, next.refused = p.began, p.refused
		b.phase.Store(next)
	}
	return err
}

// newOpenPhase builds the error once, so that rejected calls do not allocate.
func (b *BreakerStore) newOpenPhase(cause error) *phase {
	return &phase{err: fmt.Errorf("%w: %w", ErrOpen, cause), until: time.Now().Add(b.o.Cooldown)}
}

// isFailure reports whether err says that the store is unwell.
func isFailure(ctx context.Context, t *Transaction, err error) bool {
	return !errors.Is(err, ErrDuplicate) && !errors.Is(err, ErrBusy) && !errors.Is(err, errors.ErrUnsupported) && callerError(ctx, t) == nil
}

// callerError returns why no store could have decided t, or nil. The network may
// notice a deadline before ctx does.
func callerError(ctx context.Context, t *Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return t.Validate()
}
