package watch_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
)

// TestWarnings: what package weir and its key functions report as a probable misconfiguration is remembered once, as sentences, and still logged. Other lines are only logged.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		recorder := watch.NewRecorder(1, 1)
		logger := slog.New(recorder.LogHandler(slog.NewTextHandler(&log, nil)))
		old := slog.Default()
		slog.SetDefault(logger)
		defer slog.SetDefault(old)

		empty := func(*http.Request) (string, bool) { return "", true }
		rules := []weir.Rule{rule("tenant", empty, 1000), rule("ip", weir.ByIP(netip.MustParsePrefix("10.0.0.0/8")), 1000)}
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: rules, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "192.168.0.1:4711"
			r.Header.Set("X-Forwarded-For", "203.0.113.9")
			l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		}
		logger.Warn("weir: not a misconfiguration", "effect", "none")
		logger.With("rule", "late").Error("config: of another package", "fix", "nothing")

		var got []string
		for _, w := range recorder.Warnings(time.Minute) {
			got = append(got, w.Rule+": "+w.Text)
		}
		for _, want := range []string{
			"tenant: key empty; all requests with an empty key share one quota; likely: the function returns",
			": forwarded requests from a peer in no trusted prefix (function weir: ByIP, field X-Forwarded-For, network private); if the peer",
			"late: of another package; to fix it, nothing",
		} {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
				t.Errorf("got %q, want one that begins with %q", got, want)
			}
		}
		if len(got) != 3 || !strings.HasPrefix(got[0], "late") {
			t.Errorf("got %d warnings: %q; want 3, the newest first", len(got), got)
		}
		if n := strings.Count(log.String(), "\n"); n != 4 {
			t.Errorf("got %d log lines, want 4:\n%s", n, &log)
		}
		time.Sleep(2 * time.Minute)
		if got := recorder.Warnings(time.Minute); len(got) > 0 {
			t.Errorf("two minutes later: got %v", got)
		}
	})
}

// TestWarningsRepeated: lines about one problem that clients cause again and again, from any address,
// are one warning, and displace no other.
func TestWarningsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := watch.NewRecorder(1, 1)
		logger := slog.New(recorder.LogHandler(slog.DiscardHandler))
		logger.Warn("weir: first", "fix", "nothing")
		often := sparse.Logger(logger)
		for i := range 1000 {
			often.Warn("weir: again", "field", "X-User", "addr", fmt.Sprintf("192.0.2.%d:%d", i%250, i), "bytes", i, "fix", "that")
			time.Sleep(100 * time.Millisecond) // so every tenth is logged
		}
		logger.Warn("weir: again", "field", "X-Other", "fix", "that")
		var got []string
		for _, w := range recorder.Warnings(time.Hour) {
			got = append(got, w.Text)
		}
		want := []string{"again (field X-Other); to fix it, that", "again (field X-User, addr 192.0.2.240:990, bytes 990); to fix it, that", "first; to fix it, nothing"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
