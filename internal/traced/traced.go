// Package traced lets stores add to a trace what only they know. Package weirotel makes the trace
// itself, and puts a Call into the context of each caller that is traced. For any other caller, a
// store only looks for a Call in the context.
package traced

import "context"

// A Call is a call of a store that is part of a trace. Stores may use it on any goroutine, also
// after the caller has given up.
type Call interface {
	// Joined notes that the caller shares a call of the next store with others, and that this
	// call is in the trace of leader.
	Joined(leader context.Context)

	// FellBack notes that a second store decides, because the first has failed. The cause is
	// quota.Cause of the error.
	FellBack(cause string)
}

type key struct{}

// With returns a copy of ctx in which Of finds c.
func With(ctx context.Context, c Call) context.Context { return context.WithValue(ctx, key{}, c) }

// Of returns the Call of ctx, or nil if the caller is not traced.
func Of(ctx context.Context) Call {
	c, _ := ctx.Value(key{}).(Call)
	return c
}

// A Leader chooses the trace for a call that several callers share. A call has only one parent, so
// this is the trace of the first caller that is traced. The zero Leader is ready to use.
type Leader struct{ ctx context.Context }

// Join adds a caller. If an earlier caller already leads, the new caller's trace records that (see
// Call.Joined).
func (l *Leader) Join(ctx context.Context) {
	switch c := Of(ctx); {
	case c == nil:
	case l.ctx == nil:
		l.ctx = ctx
	default:
		c.Joined(l.ctx)
	}
}

// Context returns the context of the shared call: the context of the caller that leads, without its
// cancellation, or the argument otherwise if no caller is traced.
func (l *Leader) Context(otherwise context.Context) context.Context {
	if l.ctx == nil {
		return otherwise
	}
	return context.WithoutCancel(l.ctx)
}
