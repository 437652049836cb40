package admin

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/period"
)

// rate returns the rate of n requests in over seconds, as a text.
func rate(n int64, over float64) string {
	r := float64(n) / max(1, over)
	switch {
	case n == 0:
		return "0/s"
	case r < 1:
		return fmt.Sprintf("%.1f/min", 60*r)
	case r < 10:
		return fmt.Sprintf("%.1f/s", r)
	}
	return number(int64(r+.5)) + "/s"
}

// share returns n of all in percent.
func share(n, all int64) string {
	switch p := 100 * float64(n) / float64(max(1, all)); {
	case n == 0:
		return "0 %"
	case p < 1:
		return "below 1 %"
	case n < all && p > 99:
		return "over 99 %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// number formats n with commas: 12,345.
func number(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ago describes how long ago the time t was.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < 2*time.Second:
		return "1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// durationText formats a number of seconds for people: 1h30m, 12.5s.
func durationText(seconds float64) string {
	text := period.Rounded(time.Duration(seconds * 1e9))
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
