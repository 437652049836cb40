package scene

import (
	"fmt"
	"strconv"
	"time"
)

// An Advice names the algorithm that suits the answers of a Trial.
type Advice struct {
	Algorithm string `json:"algorithm"`
	Burst     int64  `json:"burst"` // 0 means the burst of the trial
	Why       string `json:"why"`
	Go        string `json:"go"` // a program, a file of rules, and a test
	YAML      string `json:"yaml"`
	Test      string `json:"test"`
}

// exactUpTo is the largest quota for which a sliding log is advised: its entries take up to
// 32 bytes each.
const exactUpTo = 1000

// advise chooses an algorithm as docs/guide.md does.
func advise(t *Trial, set *settings) Advice {
	q, b := set.Quota, set.burst()
	exact := ""
	if t.Exact {
		exact = fmt.Sprintf(" That more than %d “must never happen” cannot hold with it: for that, let the quota come back bit by bit.", q)
	}
	switch {
	case t.Late == "wait":
		longest := time.Duration(float64(b) / float64(q) * float64(set.Period) * float64(time.Second))
		return Advice{Algorithm: "leaky-bucket", Why: fmt.Sprintf("Requests wait in a queue of at most %d and leave it at even intervals; the last of a full queue waits %v.", b, short(longest))}
	case t.Back == "daily":
		return Advice{Algorithm: "calendar", Why: fmt.Sprintf("A contract says days, so the window is a day of a time zone. Around midnight, up to %d can pass.", 2*q) + exact}
	case t.Back == "hourly":
		return Advice{Algorithm: "fixed-window", Why: fmt.Sprintf("The whole quota is back on the clock, which clients understand. Around the edge of a window, up to %d can pass.", 2*q) + exact}
	case t.Exact && q <= exactUpTo:
		return Advice{Algorithm: "sliding-log", Why: fmt.Sprintf("Up to %d may come at once, and whatever clients send, no period holds more than %d. It keeps a time for each request: up to %d bytes for each client.", q, q, 32*q)}
	case t.Exact:
		return Advice{Algorithm: "gcra", Burst: 1, Why: fmt.Sprintf("A log of %d times is too large for each key. GCRA with a burst of 1 never admits more than %d in any period either, and keeps one number.", q, q)}
	}
	every := time.Duration(float64(set.Period) / float64(q) * float64(time.Second))
	most := fmt.Sprintf("A period can hold up to %d, more than %d, since a burst is added to the rate: allow fewer at once if that is too many.", b+q-1, q)
	if b == 1 {
		most = fmt.Sprintf("No period holds more than %d.", q)
	}
	return Advice{Algorithm: "gcra", Why: fmt.Sprintf("It allows %d at once, then one every %v, like a token bucket, and keeps one number. ", b, short(every)) + most}
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
	}{{"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if d >= u.d {
			return strconv.FormatFloat(float64(d)/float64(u.d), 'g', 3, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(float64(d)/float64(time.Microsecond), 'g', 3, 64) + " µs"
}
