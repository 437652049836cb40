// Package period returns short names of periods: 1m, 3s, 1d, 1500ms. Different periods in
// whole microseconds have different names. It also rounds durations for log
// lines, and waits for them.
package period

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Size is the maximum length of a name in bytes.
const Size = 24

var units = [...]struct {
	d    time.Duration
	name string
}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}}

// Append appends the name of d to b. Append drops fractions of a microsecond.
func Append(b []byte, d time.Duration) []byte {
	for i := range units {
		if u := &units[i]; d%u.d == 0 {
			return append(strconv.AppendInt(b, int64(d/u.d), 10), u.name...)
		}
	}
	return append(strconv.AppendInt(b, int64(d/time.Microsecond), 10), "us"...)
}

// Name returns the name of d.
func Name(d time.Duration) string { return string(Append(make([]byte, 0, Size), d)) }

// Seconds returns d in seconds, rounded up, so that a client that waits for this time has waited
// long enough.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Rounded returns the text of d with three significant digits or in whole seconds, whichever is more
// exact: 1.23s, 1m2.5s, 3h25m44s. Log lines contain this text instead of a time.Duration, because a
// JSON handler writes a Duration as a number of nanoseconds.
func Rounded(d time.Duration) string {
	unit := time.Duration(1)
	for unit < time.Second && (d/1000 >= unit || -d/1000 >= unit) {
		unit *= 10
	}
	return d.Round(unit).String()
}

// CheckUnit returns an error if an option is a duration below a millisecond, but not 0. No option
// makes sense below a millisecond, so such a value is probably a number without a unit, which Go
// reads as nanoseconds.
func CheckUnit(option string, d time.Duration) error {
	if d <= 0 || d >= time.Millisecond {
		return nil
	}
	return fmt.Errorf("%s is %v; want at least 1ms, such as %d*time.Millisecond", option, d, int64(d))
}

// Sleep returns nil after the duration d, or the context's error if the context ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
