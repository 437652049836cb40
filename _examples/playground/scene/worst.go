package scene

import (
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/quota"
)

// worst returns the most requests that a limit lets through within a period, wherever it begins and
// whenever requests come. In a leaky bucket, requests wait. The reasons are in docs/guide.md.
func (k *kind) worst(l quota.Limit) int64 {
	p := l.Period.Microseconds()
	switch {
	case k.extra: // a day of UTC always has 24 hours
		return 2 * l.Quota
	case k.name == "fixed-window":
		return 2 * l.Quota // at the last instant of a window, and at the first of the next
	case k.name == "anchored-window":
		return 2*l.Quota - 1 // the first request of a window lies a period before its end
	case k.name == "sliding-window":
		return l.Quota + l.Quota*(p-2)/p // the window before counts less with each instant
	case k.name == "sliding-log" || k.queue:
		return l.Quota
	default:
		burst := l.Burst
		if burst == 0 {
			burst = l.Quota
		}
		return burst + (l.Quota*p-1)/p // those that become free within the period
	}
}

// bytes returns what the state of a client takes in a memstore at most, as docs/redis.md measures it.
func (k *kind) bytes(l quota.Limit) int64 {
	if k.name == "sliding-log" {
		return 120 + 32*l.Quota
	}
	return 48
}

// long returns a number of seconds as text, in the largest unit of which it is a multiple.
func long(seconds int64) string {
	for _, u := range []struct {
		seconds int64
		name    string
	}{{24 * 60 * 60, "day"}, {60 * 60, "hour"}, {60, "min"}, {1, "s"}} {
		n := seconds / u.seconds
		if seconds%u.seconds != 0 {
			continue
		}
		if n > 1 && len(u.name) > 3 || n > 1 && u.name == "day" {
			return commas(n) + " " + u.name + "s"
		}
		return commas(n) + " " + u.name
	}
	return ""
}

// commas returns a number as text, with a comma before each three digits.
func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short rounds a time to three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d {
		unit *= 10
	}
	d = d.Round(unit)
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"hours", time.Hour}, {"min", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if d >= u.d {
			return strconv.FormatFloat(float64(d)/float64(u.d), 'g', 3, 64) + " " + u.name
		}
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(d)/float64(time.Microsecond), 'g', 3, 64), ".0") + " µs"
}
