// Package weir limits rates: of incoming requests, as func(http.Handler) http.Handler
// middleware, and of outgoing requests and other work.
//
// A [Limit] is plain data. An [Algorithm] is its arithmetic, without clock or memory. A
// [Store] keeps the states and decides a [Transaction], all of its charges or none, at one
// instant of the store's clock. [Middleware] and [New] put them in front of a handler.
//
// Package algorithms has the limits, memstore and redisstore have stores, and keys has more
// key functions.
//
// Time is an integer: microseconds since 1970. Decisions are exact: a charge fits at the
// microsecond that RetryAfter names, and not one earlier.
package weir

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
)

// An Algorithm is arithmetic: no clock, no memory, no I/O.
type Algorithm interface {
	// Name is part of stored keys. It never changes, and is printable ASCII.
	Name() string

	// Take decides whether cost units may be spent at now, in microseconds since 1970,
	// and returns the state that follows. A refusal returns s as it was. A cost of 0
	// looks and is always allowed. A negative cost gives back the newest units, never
	// beyond full.
	//
	// If At of a state lies after now, the state has reservations, or the clock has
	// stepped back. Nothing fits before that At, so no charge overtakes a reservation
	// and nothing is admitted twice.
	//
	// The limit is valid. Its numbers may differ from those under which s was written.
	// The returned state supersedes s: their logs may share memory.
	Take(s State, l *Limit, now, cost int64) (State, Decision)
}

// A State is what an Algorithm remembers of a key. The zero State is a key never seen. After
// ResetAfter a state decides as the zero State does.
type State struct {
	At   int64      // when the newest unit is spent, in µs since 1970
	A, B int64      // the algorithm's own numbers
	Log  []LogEntry // only for algorithms that remember each unit; oldest first

	// Until is when the state equals the zero State under the limit that wrote it, in µs
	// since 1970; 0 if unknown. Take may set it, and a store may: from ResetAfter. A window
	// learns from it that the state was written under another period.
	Until int64
}

// A LogEntry says that the units of a log up to the Sum-th, from the entry before on,
// were spent at At.
type LogEntry struct {
	At  int64 // µs since 1970
	Sum int64
}

// A Charge asks one limit for Cost units.
type Charge struct {
	Rule  string // states of different rules never mix; printable ASCII
	Key   string // see StoredKey
	Limit Limit
	Cost  int64 // 0 looks, a negative cost gives back

	// Spent is for a negative cost: Decision.At of the charge whose units it gives back.
	// No other units are given back. 0 means the newest.
	Spent int64
}

// StoredKey is the key under which stores, caches, bans, lists of offenders and logs know
// Key. That is Key if it has at most 128 bytes, and otherwise "sha256:" and its SHA-256 in
// the URL alphabet of base64, 50 characters together. A client that sends keys of a megabyte
// therefore takes no more memory than one that sends 128 bytes. The functions of a Rule get
// the whole key. The StoredKey of a stored key is the same key.
func (c *Charge) StoredKey() string { return storedkey.Of(c.Key) }

// A Decision is the answer to one charge. Durations count from the transaction's At and are
// in whole microseconds.
type Decision struct {
	// Allowed says that the charge fits. In a refused transaction it may be true for
	// some charges, but nothing was spent under any.
	Allowed bool

	// Remaining is how many units could be spent at once now; -1 if unknown.
	Remaining int64

	// RetryAfter is the shortest wait after which this charge fits if nothing else is
	// spent: at that microsecond it fits, one earlier it does not. It is 0 if Allowed,
	// and Never if the cost exceeds the capacity, or if the limit counts requests in
	// flight. For a charge that would wait in a queue (see Queuer) it is the wait after
	// which the queue admits the same charge with the same Within.
	RetryAfter time.Duration

	// NextAfter is the wait until at least one more unit is free. It is 0 if nothing is
	// spent, and for a limit of requests in flight, because nobody knows when one ends.
	NextAfter time.Duration

	// ResetAfter is the wait until the state of the key equals the zero State: how long
	// it must be kept.
	ResetAfter time.Duration

	// At is when the units of the charge are spent, in µs since 1970, on the clock of
	// the server that keeps its state. If the charge waits, it is the end of the wait;
	// in a lease, it is when the lease took the units.
	At int64
}

// A Transaction is decided at one instant: all of Charges are spent, or none.
// It may be used again; Decisions and Undo are then overwritten.
type Transaction struct {
	// Charges are decided together. Two charges of the same rule, key, limit and
	// algorithm are an error.
	Charges []Charge

	// Within is the longest wait that the caller accepts; 0 means now or never. It is
	// capped at 2^50 µs, 35 years.
	Within time.Duration

	// Delay is the shortest wait: the charges are spent no sooner, and later charges go
	// after them. It must not exceed Within.
	Delay time.Duration

	// Forget makes the store forget the states of the charges instead: what is spent,
	// reserved and paused. It is always allowed. Costs and times are ignored, and
	// Decisions are those of keys never seen.
	Forget bool

	// AtMost > 0 spends the charges as often as all of them fit now, at most so often:
	// a charge of Cost 1 is up to AtMost units. Granted says how often. If they do not fit
	// once, the decisions are those of the charges as they are. Within and Delay must be
	// 0; no Cost may be negative, and not all may be 0.
	AtMost int64

	// Granted is filled by Take if AtMost > 0.
	Granted int64

	// Force spends the charges even if they do not fit, whatever they cost. Later charges
	// are decided as if the units had fitted: a key that owes more than its limits hold
	// is refused until they have drained, or their windows are over. Force is always
	// allowed. Within, Delay and AtMost must be 0, and no Cost may be negative. A debt of
	// a meter lasts 2^50 µs at most, 35 years; a window holds no more than 2^50 units.
	Force bool

	// Decisions is filled by Take, one for each charge. Its memory is reused if it is
	// large enough.
	Decisions []Decision

	// At is filled by Take: the store's clock when it decided.
	At time.Time

	// Wait is filled by Take: how long to wait before going ahead.
	Wait time.Duration

	// Undo is filled by Take if Wait > 0, one for each charge, and otherwise emptied. Copy
	// it into the transaction that gives the charges back (a negative Cost, and Spent),
	// in the order of its charges. If nothing else has changed a key since, the key is
	// then as it was before.
	Undo []undo

	// Refusal is filled by a Limiter that refuses the request, because of these charges
	// or of a ban or a deny, which may come without charges. Stores ignore it.
	Refusal Refusal

	next   []State
	first  plan   // of the first charge
	others []plan // of those after it
}

// Allowed reports whether every charge was allowed, and therefore spent, and there is no
// Refusal.
func (t *Transaction) Allowed() bool {
	if t.Refusal.Reason != 0 {
		return false
	}
	for i := range t.Decisions {
		if !t.Decisions[i].Allowed {
			return false
		}
	}
	return true
}

// RetryAfter is the wait until all charges fit, if nothing else is spent: the longest
// RetryAfter of the decisions and of the Refusal. It may be Never.
func (t *Transaction) RetryAfter() time.Duration {
	longest := t.Refusal.RetryAfter
	for i := range t.Decisions {
		longest = max(longest, t.Decisions[i].RetryAfter)
	}
	return longest
}

// A Store keeps the states of keys and decides transactions on its own clock.
// It is safe for concurrent use. Package storetest has the tests it must pass.
type Store interface {
	// Take decides t and fills its Decisions, At and Wait. A denial is not an error and
	// changes nothing; after an error anything may have been spent. If ctx has ended
	// before Take begins, Take returns the error of ctx and spends nothing.
	//
	// A Limiter charges requests whose clients hang up, so its ctx never ends: a store
	// that may wait, for a network for instance, bounds the time of Take itself.
	Take(ctx context.Context, t *Transaction) error
}

// Validate returns an error if no store can decide the transaction: an invalid limit, a name
// that is not printable, the same limit of the same key twice, a Delay beyond Within.
// Stores call it first.
func (t *Transaction) Validate() error {
	if len(t.Charges) == 1 && t.Delay <= 0 && t.AtMost <= 0 && !t.Force && t.first.of(&t.Charges[0]) {
		return nil // most transactions, without a call
	}
	return t.validate()
}

func (t *Transaction) validate() error {
	if t.Delay > max(0, t.Within) {
		return fmt.Errorf("weir: a delay of %v is not within %v", t.Delay, t.Within)
	}
	if err := t.makePlans(); err != nil {
		return err
	}
	if t.AtMost > 0 || t.Force {
		if err := t.validateMode(); err != nil {
			return err
		}
	}
	var seen uint64 // a bit for each 64th part of all names: mostly, names differ in it
	for i := range t.Charges {
		bit := uint64(1) << (t.plan(i).Names >> 58)
		if seen&bit != 0 {
			if err := t.duplicate(i); err != nil {
				return err
			}
		}
		seen |= bit
	}
	return nil
}

// validateMode checks a transaction that spends at most so often, or by force.
func (t *Transaction) validateMode() error {
	if t.Within > 0 || t.Forget || t.Force && t.AtMost > 0 {
		return errors.New("weir: a transaction has at most one of Within, Forget, AtMost and Force")
	}
	spends := t.Force
	for i := range t.Charges {
		cost := t.Charges[i].Cost
		if cost < 0 {
			return fmt.Errorf("weir: rule %q: a charge of cost %d can neither be forced nor have AtMost", t.Charges[i].Rule, cost)
		}
		spends = spends || cost > 0
	}
	if !spends {
		return errors.New("weir: AtMost of charges that spend nothing")
	}
	return nil
}

// duplicate returns an error if a charge before the i-th asks the same limit of the
// same key.
func (t *Transaction) duplicate(i int) error {
	c, names := &t.Charges[i], t.plan(i).Names
	for j := range i {
		d := &t.Charges[j]
		if t.plan(j).Names == names && c.Limit.sameName(&d.Limit) && c.Rule == d.Rule &&
			c.Limit.Algorithm.Name() == d.Limit.Algorithm.Name() && storedkey.Equal(c.Key, d.Key) {
			return fmt.Errorf("%w: rule %q charges its limit %q (%s) twice in one transaction",
				ErrDuplicate, c.Rule, c.Limit.StoredName(), c.Limit.Algorithm.Name())
		}
	}
	return nil
}

// Errors that stores return.
var (
	// ErrDuplicate is for a transaction that charges the same limit of the same rule
	// and key twice.
	ErrDuplicate = errors.New("weir: duplicate charge")

	// ErrBusy is for a transaction that the store cannot decide in time, because it is
	// asked for too much. The transaction was not decided, and nothing was spent.
	ErrBusy = errors.New("weir: the store is busy")

	// ErrOpen is what a Breaker returns while it is open, with the error that opened
	// it. The store was not asked, and nothing was spent.
	ErrOpen = errors.New("weir: the breaker is open")
)
