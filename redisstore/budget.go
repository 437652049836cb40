package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// A budget is the context of a Take. It says how much of its time Redis and the network
// have left. Time in which the process is late does not count, so the budget itself never
// ends: queues and await keep to it.
type budget struct {
	context.Context
	ns atomic.Int64
}

func newBudget(ctx context.Context, d time.Duration) *budget {
	b := &budget{Context: ctx}
	b.ns.Store(int64(d))
	return b
}

// leftOf returns what is left of the budget ctx.
func leftOf(ctx context.Context) time.Duration { return time.Duration(ctx.(*budget).ns.Load()) }

// spend notes that so much was left of ctx after a round trip. If round trips are made at the
// same time, the longest counts.
func spend(ctx context.Context, left time.Duration) {
	b := ctx.(*budget)
	for old := b.ns.Load(); int64(left) < old && !b.ns.CompareAndSwap(old, int64(left)); old = b.ns.Load() {
	}
}
