package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
)

// A fetch is a single call to the wrapped store that spends the units for one caller and, as a
// lease, the units for later calls. Several callers may wait for the same fetch, so it does not
// stop if the caller that began it gives up.
type fetch struct {
	t    quota.Transaction
	more int64 // calls that the lease will serve
	done chan struct{}
	err  error
}

// begin starts a fetch of the units for one call and of a lease for k more calls. The caller holds
// l.mu.
func (l *Store) begin(ctx context.Context, e *lease, k int64) *fetch {
	f := &fetch{t: quota.Transaction{Charges: slices.Clone(e.charges)}, more: k, done: make(chan struct{})}
	for i := range f.t.Charges {
		f.t.Charges[i].Cost *= 1 + k
	}
	e.fetch = f
	old := e.end() // from now on, unused units of the previous lease cannot be used
	l.calls.Add(1)
	go func() {
		defer l.calls.Done()
		sent := l.now()
		_, f.err = safe.Call(storePanicked, func() error { return l.call(context.WithoutCancel(ctx), &f.t) })
		rest := l.install(e, f, sent)
		close(f.done)
		l.refund(context.Background(), old, rest)
	}()
	return f
}

// await waits for a fetch, and reports whether the fetch or its lease has made the decision on t.
// If the fetch was begun for t, own is true.
func (l *Store) await(ctx context.Context, e *lease, f *fetch, own bool, t *quota.Transaction) (decided bool, err error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if f.err != nil {
		return false, f.err
	}
	if own {
		if !f.t.Allowed() { // without a lease, t may still fit
			return false, nil
		}
		f.answer(t)
		return true, nil
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !e.serve(t, now) {
		return false, nil
	}
	l.hits++
	return true, nil
}

// install begins a lease with the units of a fetch. If the lease has already expired when the
// answer arrives, or if the Store is closed, install returns a transaction that refunds the units.
func (l *Store) install(e *lease, f *fetch, sent int64) (back *quota.Transaction) {
	answered := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e.fetch = nil
	if f.err != nil {
		e.last = e.last[:0] // no lease until the store has answered again
		return nil
	}
	e.note(&f.t, answered)
	if !f.t.Allowed() {
		return nil
	}
	e.held, e.unused = f.more, f.more
	e.at, e.sent, e.answered, e.until = f.t.At, sent, answered, sent+int64(l.o.TTL)
	e.decisions = append(e.decisions[:0], f.t.Decisions...)
	left := time.Duration(e.until - answered)
	switch {
	case l.closed || left <= 0:
		return e.end()
	case e.timer == nil:
		e.timer = time.AfterFunc(left, func() { l.expire(e) })
	default:
		e.timer.Reset(left)
	}
	return nil
}

// answer copies the decisions of the fetch to t, the transaction for which the fetch was begun, and
// adds the units of the new lease to Remaining.
func (f *fetch) answer(t *quota.Transaction) {
	t.SetResult(&f.t.Result)
	for i := range t.Decisions {
		if d := &t.Decisions[i]; d.Remaining >= 0 {
			d.Remaining += f.more * t.Charges[i].Cost
		}
	}
}

// expire ends a lease when its TTL is over.
func (l *Store) expire(e *lease) {
	l.mu.Lock()
	var back *quota.Transaction
	if l.now() >= e.until { // if not, the timer was for the previous lease
		back = e.end()
	}
	if back == nil {
		l.mu.Unlock()
		return
	}
	l.calls.Add(1)
	l.mu.Unlock()
	defer l.calls.Done()
	l.refund(context.Background(), back)
}

// refund refunds unused units. It tries only once, because the units may have been refunded despite
// an error. A second refund would then free units that other callers have spent.
func (l *Store) refund(ctx context.Context, backs ...*quota.Transaction) error {
	var errs []error
	for _, t := range backs {
		if t != nil {
			_, err := safe.Call(storePanicked, func() error { return l.next.Take(ctx, t) })
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const storePanicked = "lease: the store panicked"
