package weir_test

import (
	"bytes"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// TestPolicyNeverFailsOpen: by default, a mistake of Policy lets no request pass
// unlimited. A limit that cannot be counted exactly is charged as the nearest limit that can
// be counted. Any other mistake is an error: Transport returns it, and the default of
// OnError answers 503. A rule in shadow refuses no request. Each mistake is logged without
// the key.
func TestPolicyNeverFailsOpen(t *testing.T) {
	const gib = 1 << 30
	uncountable := algorithms.GCRA(gib, time.Hour)
	passes := func(*http.Request, error) error { return nil }
	for _, c := range []struct {
		limits  []weir.Limit
		shadow  float64
		onError func(*http.Request, error) error
		status  int
		shown   string // X-RateLimit-Limit
		sent    bool   // Transport sends the request
		logged  string
	}{
		{[]weir.Limit{algorithms.GCRA(5, time.Hour)}, 0, nil, 200, "5", true, ""},
		{[]weir.Limit{uncountable}, 0, nil, 200, "1073741250", true, "quota 1073741250 can"},
		{[]weir.Limit{uncountable}, 0, passes, 200, "1073741250", true, "quota 1073741250 can"},
		{[]weir.Limit{algorithms.GCRA(5, time.Minute), uncountable}, 0, nil, 200, "5", true, "quota 1073741250 can"},
		{[]weir.Limit{algorithms.FixedWindow(math.MaxInt64, time.Hour)}, 0, nil, 200, "1125899906842624", true, "quota 1125899906842624 can"},
		{[]weir.Limit{uncountable}, 1, nil, 200, "", true, "quota 1073741250 can"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 0, nil, 503, "", false, "quota is 0; want at least 1"},
		{[]weir.Limit{uncountable, algorithms.GCRA(0, time.Hour)}, 0, nil, 503, "", false, "quota is 0; want at least 1"},
		{nil, 0, nil, 503, "", false, "the policy is zero, and the rule has no Limits"},
		{nil, 0, passes, 200, "", false, "the policy is zero, and the rule has no Limits"},
		{nil, 1, nil, 200, "", true, "the policy is zero, and the rule has no Limits"},
		{[]weir.Limit{{}}, 0, nil, 503, "", false, "the Algorithm is nil"},
		{[]weir.Limit{algorithms.GCRA(1, math.MaxInt64/1000*1000)}, 0, nil, 503, "", false, "no common divisor"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 0, passes, 200, "", false, "quota is 0; want at least 1"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 1, nil, 200, "", true, "quota is 0; want at least 1"},
	} {
		given := append([]weir.Limit(nil), c.limits...)
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("User"), Enforce: weir.Percent(100 - 100*c.shadow), Policy: func(*http.Request) weir.Policy { return weir.Limited(given...) }}
		var log bytes.Buffer
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, OnError: c.onError, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		res := do(l.Handler(served), ask("/", "", "User", "ann@example.com"))
		if shown := res.Header.Get("X-RateLimit-Limit"); res.StatusCode != c.status || shown != c.shown {
			t.Errorf("%v in shadow %v: got %d, %q; want %d, %q", c.limits, c.shadow, res.StatusCode, shown, c.status, c.shown)
		}
		if !strings.Contains(log.String(), c.logged) || (log.Len() == 0) != (c.logged == "") || strings.Contains(log.String(), "ann@") {
			t.Errorf("%v in shadow %v: got the log %q, want %q and no key", c.limits, c.shadow, &log, c.logged)
		}
		out := transport(t, l, weir.TransportOptions{Base: &partner{}})
		if _, err := out.RoundTrip(ask("/", "", "User", "ann@example.com")); (err == nil) != c.sent {
			t.Errorf("%v in shadow %v: Transport returns %v, want it sent: %v", c.limits, c.shadow, err, c.sent)
		}
		if c.logged == "" { // 1,000,000 a day can be counted exactly, but not with a buffer of 7 µs
			given[0] = algorithms.GCRA(1_000_000, 24*time.Hour)
			buffered := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.DiscardHandler)})
			if _, err := transport(t, buffered, weir.TransportOptions{Base: &partner{}, Buffer: 7 * time.Microsecond}).RoundTrip(ask("/", "", "User", "ann")); err == nil || !strings.Contains(err.Error(), "buffer of 7µs") {
				t.Errorf("with a buffer: Transport returns %v", err)
			}
			rule.Enforce = weir.Percent(0)
			buffered = must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if _, err := transport(t, buffered, weir.TransportOptions{Base: &partner{}, Buffer: 7 * time.Microsecond}).RoundTrip(ask("/", "", "User", "ann")); err != nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "buffer of 7µs") {
				t.Errorf("with a buffer, in shadow: Transport returns %v, and logs %q", err, &log)
			}
			given[0] = c.limits[0]
		}
		if !slices.Equal(given, c.limits) {
			t.Errorf("%v: the Limiter has changed what Policy returned", c.limits)
		}
	}
}
