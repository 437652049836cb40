package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/safe"
)

// A budget is a context that holds how much time is left for Redis and the network. Time during
// which the process is late does not count. The context is therefore not done when the budget is
// used up; Do and Await enforce the budget instead.
type budget struct {
	context.Context
	ns atomic.Int64
}

// WithBudget returns a context for calls to Do and Await, which together may take the time d. The
// context has the values and the deadline of ctx, and is done when ctx is done.
func WithBudget(ctx context.Context, d time.Duration) context.Context {
	b := &budget{Context: ctx}
	b.ns.Store(int64(d))
	return b
}

// LeftOf returns the time that is left of the budget ctx.
func LeftOf(ctx context.Context) time.Duration { return time.Duration(ctx.(*budget).ns.Load()) }

// spend records how much of the budget ctx was left after a round trip. If several round trips were
// concurrent, only the longest counts.
func spendBudget(ctx context.Context, left time.Duration) {
	b := ctx.(*budget)
	for old := b.ns.Load(); int64(left) < old && !b.ns.CompareAndSwap(old, int64(left)); old = b.ns.Load() {
	}
}

// Await runs f, and returns when f returns or the budget ctx is used up. In the latter case, f
// continues in a goroutine until the client's own timeouts end it. Await converts a panic of the
// client to an error, because a panic in that goroutine would end the process.
func Await(ctx context.Context, f func(ctx context.Context) error) error {
	begin, left := time.Now(), LeftOf(ctx)
	defer func(b context.Context) { spendBudget(b, left-time.Since(begin)) }(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := safe.Call("redisstore: the client panicked", func() error { return f(context.WithoutCancel(ctx)) })
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
