package quota

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/storedkey"
)

const (
	// Never is the RetryAfter of a charge if waiting is not known to help, because the cost exceeds
	// the limit's capacity or the limit is a concurrency limit. It is also the RetryAfter of a
	// request that a rule denies.
	Never time.Duration = math.MaxInt64

	// MaxTicks is the largest value that the arithmetic of a limit may reach. The sum of a few such
	// values is below 2^53 and therefore exact even as a float64, as in the scripts of package
	// redisstore.
	MaxTicks = 1 << 50
)

// A Limit allows Quota units per Period. It is plain data and counts nothing itself, so many keys
// and stores may use the same Limit. The functions of package algorithms return limits that are
// ready to use.
type Limit struct {
	// Name distinguishes the limits of a rule in stored keys and in header fields. It must be
	// printable ASCII. A limit without a name is named after its period: see Label.
	Name string

	// Algorithm counts the units; it must not be nil.
	Algorithm Algorithm

	// Quota is the number of units that are allowed per Period. It must be at least 1.
	Quota int64

	// Period must be a whole number of microseconds, at least one.
	Period time.Duration

	// Burst is the maximum number of units that can be spent at once; 0 means Quota. Windows and
	// logs ignore Burst and allow Quota units at once.
	Burst int64
}

// Named returns a copy of the limit with the given name.
func (l Limit) Named(name string) Limit {
	l.Name = name
	return l
}

// WithBurst returns a copy of the limit that allows n units at once.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// Divide divides the Quota and Burst of the limit by n, which must be at least 1. The results are
// rounded down, but are never below 1. If the limit could not be counted exactly, they are lowered
// further. Divide does nothing if the Algorithm is an optional.Indivisible.
func (l *Limit) Divide(n int) {
	if _, ok := l.Algorithm.(indivisible); ok {
		return
	}
	l.Quota = max(1, l.Quota/int64(n))
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/int64(n))
	}
	if e, ok := l.Fault().(interface{ Nearest() Limit }); ok {
		*l = e.Nearest()
	}
}

// Capacity returns the maximum number of units that can be spent at once. The limit must be valid.
func (l *Limit) Capacity() int64 {
	_, full := l.Algorithm.Take(State{}, l, 0, 0)
	return full.Remaining
}

// Headroom returns a percentage of the Capacity, rounded up to whole units, for use as the Headroom
// of a Charge. The limit must be valid.
func (l *Limit) Headroom(percent int) int64 {
	if percent == 0 {
		return 0
	}
	return (min(l.Capacity(), MaxTicks)*int64(percent) + 99) / 100
}

// FullAfter returns how long after the decision d the whole quota is available, if nothing else is
// spent. The wait is usually d.ResetAfter. It is shorter if the limit is a GCRA or a bucket and the
// key was charged under a larger limit with the same name, because the store then keeps the key's
// debt for longer than this limit counts the debt. The limit must be valid.
func (l *Limit) FullAfter(d *Decision) time.Duration {
	size := cmp.Or(l.Burst, l.Quota)
	if _, ok := l.Algorithm.(metered); !ok || d.Remaining < 0 || d.Remaining >= size {
		return d.ResetAfter
	}
	// Once NextAfter has passed, one more unit is available, and the others follow at the rate of
	// the limit.
	micros := float64(size-d.Remaining-1) * float64(l.Period/time.Microsecond) / float64(l.Quota)
	if micros >= MaxTicks {
		return d.ResetAfter
	}
	return min(d.ResetAfter, d.NextAfter+time.Duration(micros+2)*time.Microsecond)
}

// Redundant reports whether l allows every unit that the other limit allows. If so, l has no effect
// when both limits are charged for the same key. Both limits must be valid. If the algorithm of l
// is not an optional.Comparer, Redundant returns false.
func (l *Limit) Redundant(other *Limit) bool {
	c, ok := l.Algorithm.(comparer)
	return ok && c.Redundant(l, other)
}

// String returns a description such as "100 per 1m0s, 20 at once (gcra)".
func (l Limit) String() string {
	s := fmt.Sprintf("%d per %v", l.Quota, l.Period)
	if l.Burst != 0 {
		s += fmt.Sprintf(", %d at once", l.Burst)
	}
	if l.Algorithm != nil {
		s += " (" + l.Algorithm.Name() + ")"
	}
	if l.Name != "" {
		s = l.Name + ": " + s
	}
	return s
}

// Validate returns an error if the limit has no Algorithm, if its name is not printable ASCII, or
// if one of its numbers is out of range or cannot be counted exactly.
func (l Limit) Validate() error {
	if err := l.Fault(); err != nil {
		return fmt.Errorf("quota: limit %q: %w", l.Name, err)
	}
	return nil
}

// Fault is like Validate, but its error does not name the limit. Fault is for callers that add the
// name themselves.
func (l *Limit) Fault() error {
	switch {
	case l.Algorithm == nil:
		return errors.New("the Algorithm is nil")
	case l.Quota < 1:
		return fmt.Errorf("quota is %d; want at least 1", l.Quota)
	case l.Period < time.Microsecond:
		return fmt.Errorf("period is %v; want at least 1µs", l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("period is %v; want whole microseconds", l.Period)
	case l.Burst < 0:
		return fmt.Errorf("burst is %d; want at least 0", l.Burst)
	}
	if !storedkey.IsName(l.Name) {
		return storedkey.ErrName
	}
	if name := l.Algorithm.Name(); name == "" || !storedkey.IsName(name) {
		return fmt.Errorf("the name of Algorithm is %q; want printable ASCII", name)
	}
	if v, ok := l.Algorithm.(validator); ok {
		return v.Validate(l)
	}
	return nil
}

// Label returns the limit's Name or, if it has none, a short form of the Period, such as "1m" or
// "1500ms".
func (l *Limit) Label() string {
	if l.Name != "" {
		return l.Name
	}
	return period.Name(l.Period)
}

// StoredName returns the name under which stores keep the limit's counts: the Label and the Period,
// such as "burst/1s", or only the Period if the Label is the same. A limit therefore keeps its
// counts when its Quota or Burst changes, and when other limits are added to its rule or removed
// from it. If its Period changes, its counts start at 0.
func (l *Limit) StoredName() string { return string(l.appendStoredName(make([]byte, 0, 64))) }

// appendStoredName appends the StoredName of the limit to b.
func (l *Limit) appendStoredName(b []byte) []byte {
	var here [period.Size]byte
	p := period.Append(here[:0], l.Period)
	if l.Name != "" && l.Name != string(p) {
		b = append(append(b, l.Name...), '/')
	}
	return append(b, p...)
}
