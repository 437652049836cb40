// Package optional contains interfaces that a [quota.Algorithm] or a [quota.Store] may additionally
// implement. The package is for authors of algorithms and stores; users of these need only package
// quota. An algorithm or a store implements such an interface by having its methods. Nothing needs
// to be registered, and an implementation need not import this package.
//
//	an Algorithm     used by                     without it
//	Validator        Limit.Validate              every limit can be counted
//	Uncountable      weir.Limiter                a request fails if its limit cannot be counted
//	Stepper          Transaction.Decide          Take is called, which copies more
//	Queuer           Transaction.Decide          a charge waits until it fits, in no queue
//	Reserver         Transaction.Decide          Take decides for the later instant
//	Canceler         Transaction.Decide          the newest units are refunded
//	Forcer           Transaction.Decide          Take decides under a Quota of 2^50
//	Metered          memstore, redisstore        Take and Lua decide
//	Concurrent       Limit.InFlight              units are spent for good
//	Indivisible      Limit.Divide                each replica or region gets its share of the Quota
//	Comparer         Limit.Redundant             no limit counts as redundant
//
//	a Store          used by                     without it
//	Batcher          quota.Coalesce              every call is made alone
//	Server           quota.Breaker               one server is assumed
//	Tracker          quota.Hybrid                refusals are cached for at most 10 s
//	Watcher          weir.Limiter                bans are cached for at most 10 s
//	Instant          weir.Limiter, quota.Keep    every request takes the slower path
//	Payer            weir.Limiter                rules in shadow, strikes and bans use the same store
//	Announcer        weir.New                    processes whose limits differ do not notice it
//
// Further interfaces are in the packages that use them: lease.Leaser, credit.Unpayable, and, for
// algorithms that Redis evaluates, redisstore.Scripted.
package optional

import (
	"context"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A Validator is a quota.Algorithm that supports only some limits. For any other limit, Validate
// returns an error that names the number that is too large. Validate is called only for limits
// whose Quota and Period are positive and whose Burst is not negative.
type Validator interface {
	Validate(l *quota.Limit) error
}

// Uncountable is the error that Validate returns for a limit that cannot be counted exactly.
// Nearest returns the closest lower limit that can be counted exactly. If a function returns an
// uncountable limit for a request, a weir.Limiter logs the error and applies the result of Nearest.
// If a function returns a limit that is invalid for another reason, the request fails.
type Uncountable interface {
	error
	Nearest() quota.Limit
}

// A Stepper is a quota.Algorithm that can update a State in place. Step is like Take, but stores
// the new State in *s and the Decision in *d, so that no State is copied.
type Stepper interface {
	Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64)
}

// A Queuer is a quota.Algorithm, such as LeakyBucket, with a queue for callers that are willing to
// wait. Charges leave the queue one after the other.
type Queuer interface {
	// Queue adds a charge of cost > 0 units to the queue. The charge leaves the queue when its slot
	// begins, but never before a given time (at). Both now and at are in µs since 1970. Queue
	// returns the state that includes the charge, the time until the charge leaves the queue, and
	// true. If there is no room, Queue returns s, the time until there is room (or Never), and
	// false.
	Queue(s quota.State, l *quota.Limit, now, at, cost int64) (next quota.State, wait time.Duration, ok bool)
}

// A Reserver is a quota.Algorithm with a separate method for reservations, because Take would
// discard data that is needed to cancel a reservation. A reservation is made at one time (now) for
// the same or a later time (at). Reserve makes the decision that Take would make at the latter
// time, and keeps the data that a cancellation needs.
type Reserver interface {
	Reserve(s quota.State, l *quota.Limit, now, at, cost int64) (quota.State, quota.Decision)
}

// A Canceler is a quota.Algorithm that can refund the units of a particular reservation. Other
// algorithms refund the newest units, which may belong to a different caller.
type Canceler interface {
	// Cancel refunds n > 0 of the units that were spent at a given instant, or fewer if fewer of
	// these still count. This instant may be earlier or later than now; both are in µs since 1970.
	// Units that Cancel cannot identify stay spent.
	Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State
}

// A Forcer is a quota.Algorithm with its own implementation of ModeForce. For any other algorithm,
// ModeForce spends the units as if the Quota were 2^50. The limit then refuses charges until
// enough of the spent units have expired.
type Forcer interface {
	// Force spends cost > 0 units even if they do not fit. They are spent at a given instant, which
	// is in µs since 1970 and never earlier than s.At.
	Force(s quota.State, l *quota.Limit, at, cost int64) quota.State
}

// Metered is a quota.Algorithm whose debt drains at a constant rate, such as GCRA or a bucket. A
// store can compute the decisions without calling Take. A State holds the debt at the time At: A is
// the number of whole units, and B is the number of further parts. If the Period is p µs and the
// Quota is q units, a unit has p parts, and q parts drain in each µs.
type Metered interface{ Metered() }

// Concurrent is a quota.Algorithm whose units are released when the request ends. The Period of its
// limits is the lease duration: a unit that is not released counts until its lease expires.
type Concurrent interface{ InFlight() }

// Indivisible is a quota.Algorithm whose Quota replicas or regions cannot share, because it is not
// a number of units but, for example, a duration.
type Indivisible interface{ Indivisible() }

// A Comparer is a quota.Algorithm that can detect redundant limits. Redundant reports whether l
// allows every unit that the other limit allows, so that l has no effect when it is charged
// together with the other limit for the same key. If Redundant cannot tell, it must return false.
// weir.New and package config reject redundant limits.
type Comparer interface {
	Redundant(l, other *quota.Limit) bool
}

// A Batcher is a quota.Store that can evaluate many transactions in one round trip.
type Batcher interface {
	// TakeEach evaluates the transactions as if Take were called for each of them in order: each
	// transaction spends all of its charges or none. TakeEach returns either nil or a slice with
	// one error for each transaction. A transaction's error is nil if a decision was made.
	TakeEach(ctx context.Context, ts []*quota.Transaction) []error
}

// A Server is a quota.Store whose keys are spread over servers that can fail separately. The method
// Server returns the name of the server that evaluates a transaction, or the names of several
// servers with spaces between them. If the server is not known, the method returns "". It does not
// call the server.
type Server interface {
	Server(t *quota.Transaction) string
}

// A Tracker is a quota.Store, such as a redisstore.Store, that can report when another process
// changes a state.
type Tracker interface {
	// Track returns a function that evaluates transactions of one charge in ModePeek. If the
	// function returns no error for a transaction, it also tracks the state. As soon as a tracked
	// state changes, the store calls changed once, with the key, or with all set to true if any key
	// may have changed. The store may also call changed if nothing has changed. For each state,
	// answers and reports arrive in order: an answer arrives after the reports of all earlier
	// changes, and before the reports of later ones.
	//
	// While the store tracks states, it calls current at least every 2 s, with a time before which
	// all changes have been reported. When it stops tracking the states that it has evaluated so
	// far, it calls current with the zero Time. Neither function may block.
	//
	// Only one goroutine at a time calls takeEach. An error that wraps quota.ErrBusy concerns only
	// one transaction. errors.ErrUnsupported means that the server cannot track states. After any
	// other error, the caller waits a second. Track returns nil if tracking is turned off.
	Track(changed func(key string, all bool), current func(at time.Time)) (takeEach func(ts []*quota.Transaction) []error)
}

// A Watcher is a quota.Store, such as a quota.HybridStore, that can detect that another process
// has made a decision out of date.
type Watcher interface {
	// Watch evaluates a charge in ModePeek, in the background. Then it calls done with the
	// decision, and with a function that reports whether the decision is still up to date. If the
	// store fails, done is not called. Watch returns false and does nothing if the store does not
	// track changes, or if the key keeps changing.
	Watch(c quota.Charge, done func(d quota.Decision, current func() bool)) bool
}

// Instant is a quota.Store that makes decisions in memory without waiting. Its Take method may use
// ctx only to check whether ctx is done, and must not modify or retain charges. The method Instant
// must return its receiver. A store that merely embeds an Instant returns the embedded store
// instead, and is therefore not treated as an Instant.
type Instant interface{ Instant() quota.Store }

// A Payer is a quota.Store that pays for refused charges with granted units, such as a
// credit.Store. Unpaid returns the underlying store, which does not use granted units. A
// weir.Limiter calls the underlying store for strikes, bans and rules in shadow mode.
type Payer interface{ Unpaid() quota.Store }

// An Announcer is a quota.Store that compares the limits of its users, such as a stack.Store.
// Announce is called with the limits of a rule. These replace the limits from an earlier call for
// the same rule.
type Announcer interface {
	Announce(rule string, limits []quota.Limit)
}
