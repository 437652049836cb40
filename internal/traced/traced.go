// Package traced lets stores add to a trace what only they know. Package weirotel records the
// trace, and puts a Call into the context of each traced caller. The context of any other caller
// has no Call.
package traced

import "context"

// A Call is a call of a store that is part of a trace. Stores may use a Call on any goroutine, even
// after the caller has given up.
type Call interface {
	// Joined records that the caller shares a call to the next store with other callers, and
	// that this call is in the trace of leader.
	Joined(leader context.Context)

	// FellBack records that a second store makes the decision because the first store has
	// failed. The cause is quota.Cause of the error.
	FellBack(cause string)
}

type key struct{}

// NewContext returns a copy of ctx in which FromContext finds c.
func NewContext(ctx context.Context, c Call) context.Context { return context.WithValue(ctx, key{}, c) }

// FromContext returns the Call of ctx, or nil if the caller is not traced.
func FromContext(ctx context.Context) Call {
	c, _ := ctx.Value(key{}).(Call)
	return c
}

// A Leader chooses the trace for a call that several callers share. Because a call has only one
// parent, this is the trace of the first traced caller. The zero Leader is ready to use.
type Leader struct{ ctx context.Context }

// Join adds a caller. If an earlier caller already leads, the new caller's trace records this fact
// (see Call.Joined).
func (l *Leader) Join(ctx context.Context) {
	switch c := FromContext(ctx); {
	case c == nil:
	case l.ctx == nil:
		l.ctx = ctx
	default:
		c.Joined(l.ctx)
	}
}

// Context returns the context of the shared call: the leader's context without its cancellation or,
// if no caller is traced, the given context.
func (l *Leader) Context(otherwise context.Context) context.Context {
	if l.ctx == nil {
		return otherwise
	}
	return context.WithoutCancel(l.ctx)
}
