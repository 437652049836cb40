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

// A Validator is an Algorithm that cannot count every limit. The error of Validate says
// which number of the limit is too large. Validate is called only for limits whose Quota
// and Period are positive and whose Burst is not negative.
type Validator interface {
	Validate(l *Limit) error
}

// An Uncountable is an error of Validate that knows a limit to use instead: Nearest returns the
// limit with the highest lower numbers that can be counted. If a function chooses a limit for a
// request, a weir.Limiter logs the error and counts that limit. It fails the request if the
// error is not Uncountable.
type Uncountable interface {
	error
	Nearest() Limit
}

// A Stepper is an Algorithm that decides in place: Step stores in *s and *d what Take would
// return. This saves copies that take longer than the arithmetic.
type Stepper interface {
	Step(s *State, d *Decision, l *Limit, now, cost int64)
}

// A Queuer is an Algorithm whose charges form a queue and leave it one after the other, if
// the caller is willing to wait.
type Queuer interface {
	// Queue lets a charge of cost > 0 join the queue at the instant now. The charge leaves
	// the queue at its slot, or at the argument at if that is later. Both
	// instants are in µs since 1970. next is the state with the charge in it, and wait is
	// the time from now until then. If there is no room, ok is false, next is s, and
	// wait is the time until there is room, or Never.
	Queue(s State, l *Limit, now, at, cost int64) (next State, wait time.Duration, ok bool)
}

// A Reserver is an Algorithm whose Take at a future instant would drop what a cancellation
// needs. Reserve decides as Take does, but keeps what a cancellation needs. The argument at
// holds the future instant, and now the instant at which the charge was asked for.
type Reserver interface {
	Reserve(s State, l *Limit, now, at, cost int64) (State, Decision)
}

// A Canceler is an Algorithm that can refund the units of one reservation. Other
// algorithms refund their newest units, which may belong to another caller.
type Canceler interface {
	// Cancel refunds units that were spent at one instant: n > 0 of them, or fewer if
	// fewer still count. The argument at holds that instant, which may be before or after
	// now. Both are in µs since 1970. Units that Cancel cannot identify stay spent.
	Cancel(s State, l *Limit, now, at, n int64) State
}

// A Forcer is an Algorithm that has its own way to spend units that do not fit. Other
// algorithms count such units as they would under a larger Quota: the real Quota then refuses
// until enough of them no longer count, as it does after a Quota was lowered.
type Forcer interface {
	// Force spends cost > 0 units at the instant at, in µs since 1970, even if they do not
	// fit. The argument at is not before s.At.
	Force(s State, l *Limit, at, cost int64) State
}

// A Metered is an Algorithm whose debt drains at a constant rate: GCRA and the buckets. Meter
// returns three numbers in ticks: unit is what one unit adds to the debt, rate is how much of
// the debt drains in a microsecond, and full is the largest debt that fits. Stores do the
// arithmetic themselves: a state holds the debt at the instant At (A) and the unit (B).
// The Lua of a Metered gets the three numbers in place of quota, period and burst.
type Metered interface {
	Meter(l *Limit) (unit, rate, full int64)
}

// A Concurrent is an Algorithm whose units are released when the request has ended. The
// Period of its limits is a lease: a unit that is not released counts until its lease expires.
type Concurrent interface{ InFlight() }

// A Comparer is an Algorithm that knows when a limit is of no use. Redundant reports whether l
// never refuses a unit that other admits, if both are charged together under one key. It may
// return false for a limit of no use, but must not return true for any other limit. weir.New
// and package config refuse a redundant limit.
type Comparer interface {
	Redundant(l, other *Limit) bool
}

// An Unpayable is an Algorithm whose refusals stand, however many units a key was granted:
// package credit does not pay for them, as for those of a Concurrent. A ban is one.
type Unpayable interface {
	// Refusing returns c, which the limit did not refuse, as a charge that is refused if the
	// limit refuses the key by now. Credit makes that charge when it pays for other limits.
	Refusing(c Charge) Charge
}

// A Batcher is a Store that decides many transactions in one round trip.
type Batcher interface {
	// TakeEach decides the transactions as if Take were called for each of them in turn:
	// each transaction spends all of its charges or none. TakeEach returns nil, or one
	// error for each transaction. The error of a transaction that was decided is nil.
	TakeEach(ctx context.Context, ts []*Transaction) []error
}

// An Instant is a Store that decides in memory, without waiting, and asks its context only
// whether it has ended. It changes no charge and keeps none. Instant returns the store itself, so
// a store that only embeds an Instant is none.
type Instant interface{ Instant() Store }

// A Payer is a Store that pays for what limits refuse, such as that of package credit. Unpaid
// returns the store that does not: a weir.Limiter uses it for rules in shadow, strikes and bans.
type Payer interface{ Unpaid() Store }
