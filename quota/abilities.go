package quota

import (
	"context"
	"time"
)

// The interfaces of this file are abilities beyond Take. An algorithm or a store has an
// ability if it has the methods; nothing is registered. All abilities are optional:
//
//	an Algorithm     asked by                    without it
//	Validator        Limit.Validate              every limit can be counted
//	Stepper          Transaction.Decide          Take is called, which copies more
//	Queuer           Transaction.Decide          a charge waits until it fits, in no queue
//	Reserver         Transaction.Decide          Take decides for the later instant
//	Canceler         Transaction.Decide          the newest units are given back
//	Forcer           Transaction.Decide          Take decides under a Quota of 2^50
//	Metered          memstore, redisstore        Take and Lua decide
//	Concurrent       weir.Limiter                units are spent for good
//	Comparer         weir.New, config            no limit counts as redundant
//	Unpayable        credit                      granted units pay for refusals, unless it is Concurrent
//	lease.Leaser     lease                       every call goes to the next store
//
//	a Store          asked by                    without it
//	Batcher          Coalesce                    every call is made alone
//	Instant          weir.Limiter                every request takes the slower path
//	Payer            weir.Limiter                rules in shadow, strikes and bans use the same store
//
// An algorithm that Redis decides has further abilities in package redisstore: Scripted, and
// with it Edged, Additive and Logged.

// A Validator is an Algorithm that supports only some limits. Validate returns an error that says
// which of the limit's numbers is too large. It is called only for limits whose Quota and Period
// are positive and whose Burst is not negative.
type Validator interface {
	Validate(l *Limit) error
}

// Uncountable is the error that Validate returns for a limit that cannot be counted exactly.
// Nearest returns the closest lower limit that can be counted exactly. If a function returns an
// uncountable limit for a request, a weir.Limiter logs the error and applies the limit that Nearest
// returns instead. If a function returns a limit that is invalid for another reason, the request
// fails.
type Uncountable interface {
	error
	Nearest() Limit
}

// A Stepper is an Algorithm that can update a State in place. Step does the same as Take, but it
// stores the new State in *s and the Decision in *d, so that a State need not be copied.
type Stepper interface {
	Step(s *State, d *Decision, l *Limit, now, cost int64)
}

// A Queuer is an Algorithm, such as LeakyBucket, with a queue for callers that are willing to wait.
// Charges leave the queue one after the other.
type Queuer interface {
	// Queue adds a charge of cost > 0 units to the queue at the instant now. The charge leaves the
	// queue at its slot, but not before the instant in the at argument. Both instants are in µs
	// since 1970. Queue returns the state with the charge in it (next), and the time from now until
	// the charge leaves the queue (wait). If there is no room, ok is false, next is s, and wait is
	// the time until there is room, or Never.
	Queue(s State, l *Limit, now, at, cost int64) (next State, wait time.Duration, ok bool)
}

// A Reserver is an Algorithm with a separate method for reservations, because Take would discard
// data that is needed to cancel one. The now argument is the time at which the reservation is made,
// and the at argument is the later time for which it is made. Reserve makes the decision that Take
// would make at that later time, and keeps the data that a cancellation needs.
type Reserver interface {
	Reserve(s State, l *Limit, now, at, cost int64) (State, Decision)
}

// A Canceler is an Algorithm that can refund the units of a particular reservation. Other
// algorithms refund the newest units, which may belong to a different caller.
type Canceler interface {
	// Cancel refunds units that were spent at one instant, the at argument: n > 0 units, or fewer
	// if fewer of them still count. That instant may be before or after now; both are in µs since
	// 1970. Units that Cancel cannot identify stay spent.
	Cancel(s State, l *Limit, now, at, n int64) State
}

// A Forcer is an Algorithm with its own implementation of ModeForce. For any other algorithm,
// ModeForce spends the units as if the Quota were 2^50. The limit then refuses charges until
// enough of the spent units have expired.
type Forcer interface {
	// Force spends cost > 0 units even if they do not fit. It spends them at the instant in the at
	// argument, in µs since 1970, which is never before s.At.
	Force(s State, l *Limit, at, cost int64) State
}

// Metered is an Algorithm whose debt drains at a constant rate, such as GCRA or a bucket. A store
// can do the arithmetic of such an algorithm itself, with three numbers that Meter returns. All
// three are in ticks: the debt that one unit adds (unit), the debt that drains in a microsecond
// (rate), and the largest debt allowed (full). In a State, the A field is the debt at the time in
// the At field, and the B field is the value of unit. The Lua functions take these three numbers as
// parameters, in place of quota, period and burst.
type Metered interface {
	Meter(l *Limit) (unit, rate, full int64)
}

// Concurrent is an Algorithm whose units are released when the request ends. The Period of its
// limits is the lease duration: a unit that is not released counts until its lease expires.
type Concurrent interface{ InFlight() }

// A Comparer is an Algorithm that can detect redundant limits. Redundant reports whether l allows
// every unit that the other limit allows, so that l has no effect when it is charged together with
// the other limit for the same key. If Redundant cannot tell, it must return false. weir.New and
// package config reject redundant limits.
type Comparer interface {
	Redundant(l, other *Limit) bool
}

// Unpayable is an Algorithm whose refusals cannot be overridden with units granted by package
// credit, such as the algorithm for bans. Refusals by a Concurrent algorithm cannot be overridden
// either.
type Unpayable interface {
	// Refusing takes a charge c that the limit did not refuse, and returns a charge that is refused
	// if the limit has since begun to refuse the key. Package credit takes the returned charge when
	// it pays for other limits.
	Refusing(c Charge) Charge
}

// A Batcher is a Store that can evaluate many transactions in one round trip.
type Batcher interface {
	// TakeEach evaluates the transactions as if Take were called for each of them in order: each
	// transaction spends all of its charges or none. TakeEach returns either nil or a slice with
	// one error for each transaction. The error is nil if a decision was made.
	TakeEach(ctx context.Context, ts []*Transaction) []error
}

// Instant is a Store that makes decisions in memory without waiting. Its Take method may use ctx
// only to check whether ctx is done, and must not modify or retain charges. The Instant method must
// return its receiver. A store that merely embeds an Instant is therefore not treated as one.
type Instant interface{ Instant() Store }

// A Payer is a Store that pays for refused charges with granted units, such as a credit.Store.
// Unpaid returns the underlying store, which does not use granted units. A weir.Limiter calls the
// underlying store for strikes, bans and rules in shadow mode.
type Payer interface{ Unpaid() Store }
