// Package period returns short names of periods: 1m, 3s, 1d, 1500ms. Different periods in
// whole microseconds have different names. It also rounds durations for log
// lines, and waits for them.
package period

import (
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
