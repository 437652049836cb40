package quota

import (
	"context"
	"sync/atomic"
	"time"
)

// A Budget is the time that all store calls of one request may take together. A store that makes
// network calls subtracts the time of the request's earlier calls from the timeout of a call. If
// the context has no Budget, each call gets the whole timeout.
type Budget struct{ used atomic.Int64 } // ns

type budgetKey struct{}

// WithBudget returns a copy of ctx with a new Budget, for the calls of one request. A weir.Limiter
// calls WithBudget for a request that may need several store calls.
func WithBudget(ctx context.Context) context.Context {
	return context.WithValue(ctx, budgetKey{}, new(Budget))
}

// BudgetOf returns the Budget in ctx, or nil if there is none.
func BudgetOf(ctx context.Context) *Budget {
	b, _ := ctx.Value(budgetKey{}).(*Budget)
	return b
}

// Left returns how much of a store's timeout is left. The result is 0 or less if the time is used
// up. If b is nil, Left returns the timeout.
func (b *Budget) Left(timeout time.Duration) time.Duration {
	if b == nil {
		return timeout
	}
	return timeout - time.Duration(b.used.Load())
}

// Spend records that a call has taken the time d. If b is nil, it does nothing.
func (b *Budget) Spend(d time.Duration) {
	if b != nil {
		b.used.Add(int64(d))
	}
}
