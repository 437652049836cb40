package period

import "time"

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
