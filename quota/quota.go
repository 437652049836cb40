// Package quota limits the rate and concurrency of any kind of work. Package weir uses it to limit
// HTTP requests.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//		"time"
//
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//		"github.com/seed83679106/weir/quota"
//	)
//
//	func main() {
//		store := memstore.New(memstore.Options{})
//		mail := quota.Charge{Rule: "mail", Key: "ada@example.org", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}
//		d, err := quota.Allow(context.Background(), store, mail)
//		if err != nil {
//			log.Fatal(err)
//		}
//		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
//	}
//
// # Functions for callers
//
// [Allow] spends the units of a charge if they are available now, and [AllowAtMost] spends as many
// units as are available. [Wait] waits until the units are available, and [Reserve] reserves units
// without waiting. Use [Hold] for concurrency limits, and [NewStream] for work whose cost is not
// known in advance. [Peek] checks charges without spending anything. [Refund] and [Reset] refund
// units.
//
// # Decisions
//
// A store evaluates all charges of a transaction at the same time, and spends either all of them or
// none. Decisions are exact to the microsecond: unless other units are spent in the meantime, a
// refused charge is allowed as soon as its RetryAfter has passed, and not before. A refusal is
// reported in the Decision, not as an error. If a call fails, no decision is made, but units may
// have been spent.
//
// # Stores around stores
//
// [Hybrid] caches refusals in memory. [Breaker] is a circuit breaker: it returns an error
// immediately while a store is down. [Fallback] calls a second store if the first one fails.
// [Share] divides limits among replicas. [Coalesce] combines concurrent calls for the same key.
// Package stack combines these stores in the right order. Package optional contains further
// interfaces that an Algorithm or a Store may implement.
//
// # Vocabulary
//
//   - A unit is what a limit counts: a request, a byte, a token.
//   - A [Limit] allows a number of units per period.
//   - An [Algorithm] is the arithmetic of a limit.
//   - A [Charge] is a request to spend a number of units, its cost, for one key under one limit of
//     a rule.
//   - A [Transaction] is a list of charges that are spent together or not at all.
//   - A [State] is what an algorithm remembers about a key.
//   - A [Store] keeps the states and supplies the time.
package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
)

// An Algorithm decides whether units may be spent. It is pure arithmetic: it reads no clock, keeps
// no state and does no I/O.
type Algorithm interface {
	// Name returns the name of the algorithm, in printable ASCII. The name is part of stored keys
	// and must never change.
	Name() string

	// Take decides whether cost units may be spent at a given time (now), in microseconds since
	// 1970. It returns the new state, or s unchanged if the units may not be spent. A cost of 0 is
	// always allowed and spends nothing; its Decision describes s. If a cost is allowed, every
	// smaller cost is allowed too. A negative cost refunds the newest units, but never more than
	// were spent.
	//
	// If s.At is later than now, either units are reserved or the clock has stepped back. No charge
	// fits before s.At. A charge therefore cannot overtake a reservation, and a clock that steps
	// back does not make spent units available.
	//
	// The limit l is valid. Since s was written, its Quota and Burst may have changed. The caller
	// replaces s with the returned State. The Logs of these two States may share memory with each
	// other but not with other Logs, because the caller may move the entries of a Log within its
	// memory.
	Take(s State, l *Limit, now, cost int64) (State, Decision)
}

// A State is what an Algorithm remembers about a key. A new key has the zero State. Once the
// ResetAfter of the last Decision on a key has passed, the key's State leads to the same decisions
// as the zero State.
type State struct {
	At   int64      // the instant of the newest unit, in µs since 1970
	A, B int64      // numbers whose meaning depends on the algorithm
	C    int64      // a further number, which only a Forcer sets
	Log  []LogEntry // only for algorithms that remember each unit; oldest first
}

// A LogEntry records the units that were spent at one instant. Sum is a running total: it counts
// these units and those of all earlier entries.
type LogEntry struct {
	At  int64 // µs since 1970
	Sum int64
}

// A Charge is a request to spend Cost units for a key under one limit.
type Charge struct {
	Rule  string // different rules count separately; printable ASCII
	Key   string // the key; stores use its StoredKey
	Limit Limit
	Cost  int64 // 0 spends nothing and reads the state; a negative cost refunds units

	// Spent identifies the units that a negative Cost refunds: they belong to an earlier charge
	// whose Decision.At was equal to Spent. If Spent is 0, or the Algorithm is not an
	// optional.Canceler, the newest units are refunded.
	Spent int64

	// FellBack reports whether the units to refund were spent in the second store of a Fallback.
	// Set it to the Decision.FellBack of the earlier charge. Stores other than a FallbackStore
	// ignore it.
	FellBack bool

	// Headroom is the number of units that the charge must leave to other charges of the key. The
	// charge is spent only if Cost + Headroom units fit, and then spends only Cost units. Charges
	// with different headrooms form classes. Charges with a headroom of h are refused while at most
	// h units are left. However much they spend, charges without headroom therefore get at least
	// what a separate limit would allow: a window or log of h units, or a meter with a burst of h
	// and the whole rate. Remaining, RetryAfter and NextAfter are computed for the class. Headroom
	// must be from 0 to MaxTicks. If it is at least the capacity of the limit, the charge is never
	// allowed. A charge with headroom cannot wait, because it would overtake other charges by a
	// reservation. Transaction.Within must therefore be 0. A charge with a Cost of 0 or less is
	// allowed whatever its Headroom, and ModeForce and ModeForget ignore Headroom.
	Headroom int64
}

// StoredKey returns the form of Key that stores, caches and logs use. If Key has at most 128 bytes,
// StoredKey returns Key itself. Otherwise, it returns "sha256:" followed by the SHA-256 hash of Key
// in URL-safe base64, 50 characters in all. Clients therefore cannot use up memory by sending very
// long keys. Among the functions of a weir.Rule, PartitionKey receives the StoredKey, and all
// others receive the whole key.
func (c *Charge) StoredKey() string { return storedkey.Of(c.Key) }

// A Decision is a store's answer to one Charge. Its durations are in whole microseconds and count
// from Result.At.
type Decision struct {
	// Allowed reports whether the charge fits. If the transaction was refused, Allowed may be true
	// for some charges, although none was spent.
	Allowed bool

	// FellBack reports whether the second store of a Fallback has made the decision. A charge that
	// refunds the units must have the same value: see Charge.FellBack.
	FellBack bool

	// Remaining is the number of units that could be spent now; -1 means unknown.
	Remaining int64

	// RetryAfter is the shortest wait, exact to the microsecond, after which this charge fits if
	// nothing else is spent. It is 0 if Allowed is true. It is Never if the cost exceeds the
	// limit's capacity, or if a concurrency limit refuses the charge. For a charge that would wait
	// in a queue (see optional.Queuer), it is the wait after which the queue admits the same charge
	// with the same Transaction.Within.
	RetryAfter time.Duration

	// NextAfter is the wait until at least one more unit is available. It is 0 if no unit is spent.
	// It is also 0 for a concurrency limit, because it is not known when a request will end.
	NextAfter time.Duration

	// ResetAfter is the wait until the state of the key is equivalent to the zero State. A store
	// must keep the state until then.
	ResetAfter time.Duration

	// At is the time at which the units of the charge are spent, in µs since 1970, by the clock of
	// the server that keeps the key's state. If the charge waits, At is the end of the wait. For a
	// lease.Store, At is the time at which the lease took the units.
	At int64
}

// A Mode determines what Take does with the charges of a Transaction.
type Mode uint8

const (
	// ModeSpend spends all charges if all of them fit, now or within Transaction.Within,
	// and otherwise none.
	ModeSpend Mode = iota

	// ModePeek spends nothing. In each Decision, Allowed and RetryAfter report whether and when the
	// charge fits; a Cost of 0 or less is always allowed. The other fields of the Decision describe
	// the current state of the key.
	ModePeek

	// ModeAtMost spends the charges repeatedly, as often as all of them fit now, up to
	// Transaction.Most times. A charge with Cost 1 thus spends up to Most units. The Result's
	// Granted is how many times the charges were spent. If they do not fit even once, they are
	// refused as in ModeSpend. No Cost may be negative, and at least one Cost must be above 0.
	ModeAtMost

	// ModeForce spends the charges even if they do not fit, and is always allowed. A key that has
	// spent more than a limit allows is then refused until enough of the units have drained, or
	// until the window is over. If the limit changes, the debt drains at the rate of the new limit.
	// Refunded units reduce the debt. No Cost may be negative. ModeForce does not spend units
	// beyond these bounds: a window or a log holds at most 2^50 units, and one charge spends at
	// most 2^49 of them. The debt of a GCRA or a bucket is at most 2^50 units, and at most what
	// drains in 2^50 µs (35 years).
	ModeForce

	// ModeForget spends nothing and deletes the states of the charges, including all spent and
	// reserved units. It is always allowed. Costs are ignored, and the Decisions describe new
	// keys.
	ModeForget
)

// A Transaction is a list of charges that a Store spends together or not at all. Store.Take fills
// in the embedded Result. A Transaction can be reused: the next call to Take overwrites the Result.
// Because a copy of a Transaction shares memory with the original, use only one of the two.
type Transaction struct {
	// Charges are spent together or not at all. It is an error if two charges have the same rule,
	// key, algorithm and Limit.StoredName.
	Charges []Charge

	// Mode determines what to do with the charges; the zero Mode is ModeSpend.
	Mode Mode

	// Within is the longest wait that the caller accepts; 0 means that the charges must fit now. It
	// is capped at 2^50 µs (35 years). In modes other than ModeSpend it must be 0.
	Within time.Duration

	// Most is the maximum number of times that ModeAtMost spends the charges, at least 1. In other
	// modes it must be 0.
	Most int64

	// Cancels is nil, or a copy of the Undo of an earlier transaction whose units the Charges
	// refund. The Charges must then have a negative Cost and have Spent set, and Cancels[i] belongs
	// to Charges[i]. If no other charge has changed a key since the earlier transaction, the key
	// gets back its state from before that transaction. See Refund.
	Cancels []Undo

	// Result is the answer, which Take fills in.
	Result

	next     []State
	first    plan   // the plan of the first charge
	others   []plan // the plans of the later charges
	distinct int    // number of plans, counted from the first, that are known to have different names
}

// A Result is a Store's answer to a Transaction.
type Result struct {
	// Decisions has one Decision for each charge. Take reuses its memory if it is large enough.
	Decisions []Decision

	// At is the time of the decision by the store's clock.
	At time.Time

	// Wait is the time for which the caller must wait before it proceeds.
	Wait time.Duration

	// Granted is the number of times that ModeAtMost has spent the charges.
	Granted int64

	// Undo has one element for each charge if Wait > 0, and is otherwise empty. See
	// Transaction.Cancels.
	Undo []Undo

	// Replicas is the number of replicas among which Share has divided the limits, or 0 if some of
	// the limits were not divided.
	Replicas int
}

// SetQuestion copies *from to *t, except for the Result, and reuses t's memory. Stores call
// SetQuestion if they need to modify the charges, or to keep them after Take has returned.
func (t *Transaction) SetQuestion(from *Transaction) {
	t.Charges, t.Cancels = append(t.Charges[:0], from.Charges...), append(t.Cancels[:0], from.Cancels...)
	t.Mode, t.Within, t.Most = from.Mode, from.Within, from.Most
}

// refunds returns the charge that refunds the units of charge i, which was allowed.
func (t *Transaction) refunds(i int) Charge {
	c := t.Charges[i]
	c.Cost, c.Spent, c.FellBack = -c.Cost, t.Decisions[i].At, t.Decisions[i].FellBack
	return c
}

// Refunds reports whether t only refunds units of particular charges, that is, whether each of its
// charges has a negative Cost and has Spent set. Only the store that has spent the units can refund
// them.
func (t *Transaction) Refunds() bool {
	return len(t.Charges) > 0 && t.Mode == ModeSpend && !slices.ContainsFunc(t.Charges, func(c Charge) bool { return c.Cost >= 0 || c.Spent == 0 })
}

// SetResult copies *from to *r. It reuses r's memory.
func (r *Result) SetResult(from *Result) {
	r.Decisions, r.Undo = append(r.Decisions[:0], from.Decisions...), append(r.Undo[:0], from.Undo...)
	r.At, r.Wait, r.Granted, r.Replicas = from.At, from.Wait, from.Granted, from.Replicas
}

// Allowed reports whether every charge was allowed. In ModeSpend, true means that the charges were
// spent.
func (r *Result) Allowed() bool {
	for i := range r.Decisions {
		if !r.Decisions[i].Allowed {
			return false
		}
	}
	return true
}

// FellBack reports whether the second store of a Fallback has made any of the decisions.
func (r *Result) FellBack() bool {
	return slices.ContainsFunc(r.Decisions, func(d Decision) bool { return d.FellBack })
}

// RetryAfter returns the longest RetryAfter of all decisions. It may be Never.
func (r *Result) RetryAfter() time.Duration {
	longest := time.Duration(0)
	for i := range r.Decisions {
		longest = max(longest, r.Decisions[i].RetryAfter)
	}
	return longest
}

// A Store keeps the state of each key, evaluates transactions, and supplies the time. A Store must
// be safe for concurrent use, and must pass the tests of package storetest.
type Store interface {
	// Take evaluates t and fills in its Result. A refusal is not an error and changes nothing.
	// After an error, units may have been spent. If t is invalid, or if ctx is done before Take
	// begins, Take spends nothing and returns the error from t.Validate or ctx.Err().
	//
	// The ctx from a Limiter is never done, because a Limiter also charges requests whose clients
	// have hung up. A store that may block, for example on a network, must limit how long Take
	// runs.
	Take(ctx context.Context, t *Transaction) error
}

// Validate returns an error if the transaction has an invalid limit, a name that is not printable,
// two charges for the same limit and key, an unknown Mode, or a Mode that conflicts with the other
// fields. Stores call Validate before they evaluate a transaction.
func (t *Transaction) Validate() error {
	if len(t.Charges) == 1 && t.Mode == ModeSpend && t.Most <= 0 && t.first.matches(&t.Charges[0]) {
		return nil // most transactions return here, without a call to validate
	}
	return t.validate()
}

func (t *Transaction) validate() error {
	if err := t.makePlans(); err != nil {
		return err
	}
	if err := t.validateMode(); err != nil {
		return err
	}
	if t.distinct < len(t.Charges) {
		return t.checkNames()
	}
	return nil
}

// validateMode returns an error if the Mode is unknown or conflicts with the other fields.
func (t *Transaction) validateMode() error {
	switch {
	case t.Mode > ModeForget:
		return fmt.Errorf("quota: Mode is %d; want one of the constants", t.Mode)
	case t.Mode != ModeSpend && t.Within > 0:
		return fmt.Errorf("quota: Within is %v; want 0, because only ModeSpend waits", t.Within)
	case (t.Mode == ModeAtMost) != (t.Most > 0):
		return fmt.Errorf("quota: Most is %d; want at least 1 in ModeAtMost, 0 in other modes", t.Most)
	case t.Mode != ModeAtMost && t.Mode != ModeForce:
		return nil
	}
	spends := t.Mode == ModeForce
	for i := range t.Charges {
		cost := t.Charges[i].Cost
		if cost < 0 {
			return fmt.Errorf("quota: rule %q: Cost is %d; want at least 0, "+
				"because ModeAtMost and ModeForce cannot refund units", t.Charges[i].Rule, cost)
		}
		spends = spends || cost > 0
	}
	if !spends {
		return errors.New("quota: no charge has a Cost above 0; want one in ModeAtMost")
	}
	return nil
}

// checkHeadroom returns an error if c has an invalid headroom.
func (t *Transaction) checkHeadroom(c *Charge) error {
	if c.Headroom < 0 || c.Headroom > MaxTicks {
		return fmt.Errorf("quota: rule %q: Headroom is %d; want 0 to 2^50", c.Rule, c.Headroom)
	}
	if c.Headroom > 0 && t.Within > 0 {
		return fmt.Errorf("quota: rule %q: Within is %v; want 0, because a charge with Headroom cannot wait", c.Rule, t.Within)
	}
	return nil
}

// checkNames returns an error if two charges are for the same limit of the same key. If all charges
// are for different limits, whatever their keys, checkNames sets distinct to the number of charges.
// The next transaction with the same rules and limits need not be checked then.
func (t *Transaction) checkNames() error {
	distinct := len(t.Charges)
	for i := range t.Charges {
		for j := range i {
			if t.plan(j).names != t.plan(i).names {
				continue
			}
			if c := &t.Charges[i]; storedkey.Equal(c.Key, t.Charges[j].Key) {
				return fmt.Errorf("%w: rule %q charges its limit %q (%s) twice in one transaction",
					ErrDuplicate, c.Rule, c.Limit.Label(), c.Limit.Algorithm.Name())
			}
			distinct = 0
		}
	}
	t.distinct = distinct
	return nil
}

// MemoryStats contains the statistics of a store that keeps a bounded number of states in memory.
type MemoryStats struct {
	// Evicted counts the states with spent units that the store has dropped because it was full.
	// The keys of these states have their full quota again.
	Evicted int64
}

// LossStats contains the statistics of a store that notices when its server loses counts, such as a
// stack.Store.
type LossStats struct {
	// Lost counts how often the server has lost counts. It may have lost all counts, for example
	// after FLUSHALL or a restart without persistence, or only the newest counts, for example after
	// a restart from an older copy.
	Lost int64

	// Evicted counts the keys that the server has evicted, including keys of other programs.
	Evicted int64
}

// Errors that stores return.
var (
	// ErrDuplicate is returned for a transaction that charges the same limit of the same rule and
	// key twice.
	ErrDuplicate = errors.New("quota: duplicate charge")

	// ErrBusy is returned by a store that has no capacity for a transaction, because it receives
	// more transactions than it can handle in time or because its memory is full. Nothing was
	// spent, unless the error is also a timeout such as redisstore.ErrTimeout. Clients can cause
	// ErrBusy, so a Limiter does not treat it as an outage: by default it refuses the request (see
	// weir.Options.OnError).
	ErrBusy = errors.New("quota: the store is busy")

	// ErrFull is an ErrBusy. It is returned by a store that keeps its states in process memory and
	// has no room for another state. Unlike other kinds of ErrBusy, it means that the store should
	// be given more memory: see MaxKeys in memstore.Options.
	ErrFull = fmt.Errorf("%w: full of keys that are being limited", ErrBusy)

	// ErrUsedUp is an ErrBusy that a store returns if earlier calls of the same request have
	// used up the request's Budget. It does not mean that the store is busy.
	ErrUsedUp = fmt.Errorf("%w: earlier calls of the request have used the time up", ErrBusy)

	// ErrSlow is returned by a store that works, but answers so slowly that many calls time out. It
	// counts as a timeout. A longer timeout would help.
	ErrSlow = errors.New("quota: the store is too slow for its timeout")

	// ErrFellBack is returned by functions that change the counts of a key for an operator, such as
	// Reset, if the change was made in the second store of a Fallback. The change is then in force
	// at most in this process, and only until the first store works again. Repeat the change after
	// that.
	ErrFellBack = errors.New("quota: the first store failed, so the change is in force only in this process, and only until that store works again")

	// ErrUnusable is returned by a store that cannot work until its setup is fixed, for example
	// because the password is wrong, a permission is missing, or the server cannot run the scripts.
	// Waiting does not help, so a Limiter does not treat it as an outage: by default it refuses the
	// request (see weir.Options.OnError).
	ErrUnusable = errors.New("quota: the store cannot work as it is set up")

	// ErrLimit is wrapped by the error for a limit that a function returned for a request and that
	// is invalid. No constructor could detect such a limit. The store has not failed.
	ErrLimit = errors.New("a Policy or ForKey returned an invalid limit")

	// ErrOpen is returned by a Breaker while it is open, joined with the last failure of the
	// store. The store was not called, and nothing was spent.
	ErrOpen = errors.New("quota: the breaker is open")
)
