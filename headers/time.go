package headers

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter returns how long the response asks the client to wait.
func (r *reader) retryAfter() (longest time.Duration) {
	lines := r.h[RetryAfter]
	for _, s := range lines[:min(len(lines), maxLines)] {
		longest = max(longest, r.wait(s))
	}
	if n, fraction, ok := number(r.h.Get(retryAfterMSField)); ok {
		if fine := delta(n, fraction, time.Millisecond); fine > max(0, longest-time.Second) {
			return fine
		}
	}
	return longest
}

// wait reads a time in any form, and returns the wait until that time.
func (r *reader) wait(s string) time.Duration {
	if n, fraction, ok := number(s); ok {
		return r.after(n, fraction)
	}
	if s = strings.TrimSpace(s); s == "" || len(s) > maxText {
		return 0
	}
	if d, err := time.ParseDuration(s); err == nil {
		return bounded(d)
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t, err = http.ParseTime(s)
	}
	if err != nil {
		return 0
	}
	return bounded(t.Sub(r.base))
}

// after returns the wait that a number represents. Depending on its magnitude, the number is in
// seconds from now, Unix seconds or Unix milliseconds.
func (r *reader) after(n int64, fraction time.Duration) time.Duration {
	var t time.Time
	switch {
	case n < 1e8: // three years
		return delta(n, fraction, time.Second)
	case n < 1e11: // the years 1973 to 5138
		t = time.Unix(n, int64(fraction))
	default:
		t = time.UnixMilli(n)
	}
	const year = 365 * 24 * time.Hour
	if wait := t.Sub(r.base); wait > -year {
		return bounded(wait)
	}
	return maxWait
}

func bounded(d time.Duration) time.Duration { return min(max(0, d), maxWait) }

// delta returns the duration of n units plus a fraction of a unit, which is in billionths.
func delta(n int64, fraction, unit time.Duration) time.Duration {
	if n >= int64(maxWait/unit) {
		return maxWait
	}
	return bounded(time.Duration(n)*unit + (fraction*unit+time.Second-1)/time.Second)
}

const digits = "0123456789"

// number parses digits with or without decimals. The fraction is in billionths, rounded up. If the
// number is too large for an int64, n is the largest int64.
func number(s string) (n int64, fraction time.Duration, ok bool) {
	whole, decimals, point := strings.Cut(strings.TrimSpace(s), ".")
	if whole == "" || strings.Trim(whole, digits) != "" || point && (decimals == "" || strings.Trim(decimals, digits) != "") {
		return 0, 0, false
	}
	n, _ = strconv.ParseInt(whole, 10, 64) // the only possible error is ErrRange
	for i, place := 0, time.Second/10; i < len(decimals); i, place = i+1, place/10 {
		if place == 0 && decimals[i] > '0' {
			return n, fraction + 1, true
		}
		fraction += time.Duration(decimals[i]-'0') * place
	}
	return n, fraction, true
}
