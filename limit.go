package weir

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/seed83679106/weir/internal/period"
)

const (
	// Never is the RetryAfter of a charge for which no wait is known to help: its cost
	// exceeds the capacity of the limit, or the limit counts requests in flight. It is also
	// the RetryAfter of a request that a rule denies.
	Never time.Duration = math.MaxInt64

	// MaxTicks is the largest number that the arithmetic of a limit may reach. The sum of a
	// few such numbers is below 2^53, so the scripts of package redisstore, which compute
	// in float64, are exact.
	MaxTicks = 1 << 50
)

// A Limit allows Quota units per Period. It is plain data, without a count of its own: many
// keys and stores may use the same Limit. The functions of package algorithms return limits
// that are ready to use.
type Limit struct {
	// Name tells the limits of a rule apart, in stored keys and in header fields. A
	// limit without a name is named by its period: see StoredName. It is printable
	// ASCII.
	Name string

	// Algorithm counts the units; it must not be nil.
	Algorithm Algorithm

	// Quota is how many units are allowed per Period. It is at least 1.
	Quota int64

	// Period is at least a microsecond, in whole microseconds.
	Period time.Duration

	// Burst is the most units that can be spent at once; 0 means Quota. Windows and logs
	// ignore Burst and allow Quota units at once.
	Burst int64
}

// Named returns a copy of the limit with that name.
func (l Limit) Named(name string) Limit {
	l.Name = name
	return l
}

// WithBurst returns a copy of the limit that allows n units at once.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// Capacity returns the most units that can be spent at once. The limit must be valid.
func (l *Limit) Capacity() int64 {
	_, full := l.Algorithm.Take(State{}, l, 0, 0)
	return full.Remaining
}

// String says what the limit allows: "100 per 1m0s, 20 at once (gcra)".
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
	if err := l.fault(); err != nil {
		return fmt.Errorf("weir: limit %q: %w", l.Name, err)
	}
	return nil
}

func (l *Limit) fault() error {
	switch {
	case l.Algorithm == nil:
		return errors.New("it has no algorithm")
	case l.Quota < 1:
		return fmt.Errorf("quota %d is below 1", l.Quota)
	case l.Period < time.Microsecond:
		return fmt.Errorf("period %v is below a microsecond", l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("period %v is not in whole microseconds", l.Period)
	case l.Burst < 0:
		return fmt.Errorf("burst %d is below 0", l.Burst)
	}
	if !printable(l.Name) {
		return errNotPrintable
	}
	if name := l.Algorithm.Name(); name == "" || !printable(name) {
		return fmt.Errorf("its algorithm is named %q, which is empty or not printable ASCII", name)
	}
	if v, ok := l.Algorithm.(Validator); ok {
		return v.Validate(l)
	}
	return nil
}

// checkBurst returns an error if the algorithm ignores Burst. The limit must be valid.
func (l *Limit) checkBurst() error {
	one, two := l.WithBurst(1), l.WithBurst(2)
	if l.Burst == 0 || one.Capacity() != two.Capacity() {
		return nil
	}
	return fmt.Errorf("%s has no burst", l.Algorithm.Name())
}

// redundant reports whether the algorithm knows that l never refuses a unit that other, which
// is charged with it, admits.
func (l *Limit) redundant(other *Limit) bool {
	r, ok := l.Algorithm.(interface{ Redundant(l, other *Limit) bool })
	return ok && r.Redundant(l, other)
}

// StoredName returns the name under which stores keep the counts of the limit: Name or, if
// Name is empty, a short form of Period such as "1m" or "1500ms". A rule may therefore gain
// and lose limits, and the limits that stay keep their counts. If the period of a limit may
// change, give the limit a name, so that it keeps its counts.
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

// printable reports whether a String of a structured field can hold s (RFC 9651, 3.3.3).
//
// It checks eight bytes at a time, because it is called often: Validate checks the names of
// every charge that has no plan yet, and the charges of a new Transaction have no plans.
func printable(s string) bool {
	n := len(s)
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			if !printable8(eight(s[i:])) {
				return false
			}
		}
		return printable8(eight(s[n-8:]))
	case n >= 4:
		return printable8(uint64(four(s)) | uint64(four(s[n-4:]))<<32)
	case n > 0:
		const spaces = 0x2020202020000000
		return printable8(spaces | uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16)
	}
	return true
}

// printable8 reports whether all bytes of w are printable. It adds 1 to each byte of w, and
// subtracts 0x20 from each byte of w. If a byte is not printable, the lowest such byte has
// its highest bit set in w (the byte is above 0x7f), in the sum (it is 0x7f), or in the
// difference (it is below 0x20).
func printable8(w uint64) bool {
	const each = 0x0101010101010101
	return (w|(w+each)|(w-' '*each))&(0x80*each) == 0
}

func four(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

var errNotPrintable = errors.New("a header field can carry printable ASCII only")
