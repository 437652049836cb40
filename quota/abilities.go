package quota

import (
	"context"
	"time"
)

// These interfaces are copies of those interfaces in package optional that this package uses.
// Package optional documents them, and TestOptional compares the copies with the originals.
type (
	validator interface{ Validate(l *Limit) error }
	stepper   interface {
		Step(s *State, d *Decision, l *Limit, now, cost int64)
	}
	queuer interface {
		Queue(s State, l *Limit, now, at, cost int64) (next State, wait time.Duration, ok bool)
	}
	reserver interface {
		Reserve(s State, l *Limit, now, at, cost int64) (State, Decision)
	}
	canceler interface {
		Cancel(s State, l *Limit, now, at, n int64) State
	}
	forcer interface {
		Force(s State, l *Limit, at, cost int64) State
	}
	metered     interface{ Metered() }
	concurrent  interface{ InFlight() }
	indivisible interface{ Indivisible() }
	comparer    interface{ Redundant(l, other *Limit) bool }
	batcher     interface {
		TakeEach(ctx context.Context, ts []*Transaction) []error
	}
	tracker interface {
		Track(changed func(key string, all bool), current func(at time.Time)) (takeEach func(ts []*Transaction) []error)
	}
	watcher interface { // a HybridStore, or a store that contains one
		Watch(c Charge, done func(d Decision, current func() bool)) bool
	}
	payer   interface{ Unpaid() Store }
	instant interface{ Instant() Store }
	server  interface{ Server(t *Transaction) string }
)
