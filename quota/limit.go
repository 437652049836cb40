package quota

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/printable"
)

const (
	// Never is the RetryAfter of a charge for which no wait is known to be long enough, because
	// its cost exceeds the limit's capacity or because the limit counts requests in flight. It is
	// also the RetryAfter of a request that a rule denies.
	Never time.Duration = math.MaxInt64

	// MaxTicks is the largest value that the arithmetic of a limit may reach. The sum of a few
	// such values is below 2^53, so the scripts of package redisstore, which compute in float64,
	// are exact.
	MaxTicks = 1 << 50
)

// A Limit allows Quota units per Period. It is plain data and keeps no count, so many keys and
// stores may use the same Limit. The functions of package algorithms return limits that are ready
// to use.
type Limit struct {
	// Name distinguishes the limits of a rule in stored keys and in header fields. It is printable
	// ASCII. A limit without a name is named after its period: see StoredName.
	Name string

	// Algorithm counts the units; it must not be nil.
	Algorithm Algorithm

	// Quota is how many units are allowed per Period. It is at least 1.
	Quota int64

	// Period is a whole number of microseconds, at least one.
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

// Divide divides Quota and Burst by n, rounding down, but to no less than 1. If the new Quota
// cannot be counted exactly, Divide rounds it down further, to a multiple of 10, of 100 and so on.
// The argument n must be at least 1. Divide changes the limit in place, because a copy would have
// to be allocated.
func (l *Limit) Divide(n int) {
	l.Quota = max(1, l.Quota/int64(n))
	if l.Burst > 0 {
		l.Burst = max(1, l.Burst/int64(n))
	}
	for d := int64(10); 0 < d && d <= l.Quota && l.Fault() != nil; d *= 10 {
		l.Quota -= l.Quota % d
	}
}

// Capacity returns the maximum number of units that can be spent at once. The limit must be valid.
func (l *Limit) Capacity() int64 {
	_, full := l.Algorithm.Take(State{}, l, 0, 0)
	return full.Remaining
}

// InFlight reports whether the limit is a concurrency limit: see Concurrent.
func (l *Limit) InFlight() bool {
	_, ok := l.Algorithm.(Concurrent)
	return ok
}

// Redundant reports whether l never refuses a unit that other admits when both limits are charged
// together: see Comparer. Both limits must be valid.
func (l *Limit) Redundant(other *Limit) bool {
	c, ok := l.Algorithm.(Comparer)
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

// Validate returns an error if the limit has no Algorithm, a name that is not printable
// ASCII, or numbers that are out of range or cannot be counted exactly. The error says what
// is wrong.
func (l Limit) Validate() error {
	if err := l.Fault(); err != nil {
		return fmt.Errorf("quota: limit %q: %w", l.Name, err)
	}
	return nil
}

// Fault is like Validate, but its error does not name the limit. It is for callers that add the
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
	if !printable.Is(l.Name) {
		return printable.Err
	}
	if name := l.Algorithm.Name(); name == "" || !printable.Is(name) {
		return fmt.Errorf("the name of Algorithm is %q; want printable ASCII", name)
	}
	if v, ok := l.Algorithm.(Validator); ok {
		return v.Validate(l)
	}
	return nil
}

// StoredName returns the name under which stores keep the counts of the limit: Name or, if Name is
// empty, a short form of Period such as "1m" or "1500ms". When limits are added to a rule or
// removed from it, the other limits therefore keep their counts. If the period of a limit may
// change, give the limit a name so that it keeps its counts.
func (l *Limit) StoredName() string {
	if l.Name != "" {
		return l.Name
	}
	return period.Name(l.Period)
}

// sameName reports whether two limits have the same stored name.
func (l *Limit) sameName(m *Limit) bool {
	switch {
	case l.Name != "" && m.Name != "":
		return l.Name == m.Name
	case l.Name == m.Name:
		return l.Period == m.Period
	case l.Name != "":
		l, m = m, l
	}
	var b [period.Size]byte
	return string(period.Append(b[:0], l.Period)) == m.Name
}
