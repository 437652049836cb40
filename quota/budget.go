package quota

import (
	"context"
	"sync/atomic"
	"time"
)

// A Budget is the time that all store calls of one request may take together. A store that makes
// network calls subtracts the time that earlier calls took from the timeout of a call. Without a
// Budget in its context, each call gets the whole timeout.
type Budget struct{ used atomic.Int64 } // ns

type budgetKey struct{}

// WithBudget returns a copy of ctx with a new Budget, for the calls of one request. A weir.Limiter
// calls WithBudget for a request that may need several store calls.
func WithBudget(ctx context.Context) context.Context {
	return context.WithValue(ctx, budgetKey{}, new(Budget))
}

// BudgetOf returns the Budget of ctx, or nil.
func BudgetOf(ctx context.Context) *Budget {
	b, _ := ctx.Value(budgetKey{}).(*Budget)
	return b
}

// Left returns what is left of a store's timeout: 0 or less if the time is used up. It returns the
// timeout if b is nil.
func (b *Budget) Left(timeout time.Duration) time.Duration {
	if b == nil {
		return timeout
	}
	return timeout - time.Duration(b.used.Load())
}

// Spend records that a call has taken the time d. It does nothing if b is nil.
func (b *Budget) Spend(d time.Duration) {
	if b != nil {
		b.used.Add(int64(d))
	}
}
