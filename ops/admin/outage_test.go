package admin_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

// TestChangeInOutage: while a Fallback decides, a change reaches only the memory of this process. It is
// answered with 503 and what to do, logged as a failure, and not listed as made. So is an undo.
func TestChangeInOutage(t *testing.T) {
	primary := &sick{Store: memstore.New(memstore.Options{})}
	quiet := slog.New(slog.DiscardHandler)
	store := quota.Fallback(primary, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: quiet})
	rule := hourly("api", 2)
	rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(5, time.Hour), Duration: time.Minute}
	l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var log weirtest.Log
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: watch.NewRecorder(10, 1), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	made := send(h, "POST", "/ban?rule=api&key=eve", `{"seconds": 600}`)
	if made.Code != 200 {
		t.Fatal(made.Body)
	}
	before := send(h, "GET", "/changes", "").Body.String()
	down := errors.New("connection refused")
	primary.err.Store(&down)
	send(h, "POST", "/ban?rule=api&key=mallory", `{"seconds": 600}`)
	if got := send(h, "GET", "/bans", "").Body.String(); !strings.Contains(got, `"key":"mallory"`) {
		t.Errorf("got the bans %s, want that of this process", got)
	}
	for path, body := range map[string]string{
		"/ban?rule=api&key=alice": `{"seconds": 600}`, "/unban?rule=api&key=alice": "", "/reset?rule=api&key=alice": "",
		"/grant?rule=api&key=alice": `{"units": 5}`, "/undo?change=" + made.Header().Get("Weir-Change"): "",
	} {
		w := send(h, "POST", path, body)
		if got := w.Body.String(); w.Code != 503 || !strings.Contains(got, "only until the store works again: repeat it then") || w.Header().Get("Weir-Change") != "" {
			t.Errorf("%s: got %d %s, want 503 and what to do", path, w.Code, got)
		}
	}
	if got := send(h, "GET", "/changes", "").Body.String(); got != before {
		t.Errorf("changes that were not made are listed:\n%s", got)
	}
	if n := strings.Count(log.String(), "admin: change failed"); n != 6 {
		t.Errorf("got %d lines for failed changes, want 6:\n%s", n, &log)
	}
	primary.err.Store(nil)
	if w := send(h, "POST", "/ban?rule=api&key=alice", `{"seconds": 600}`); w.Code != 200 {
		t.Errorf("afterwards: got %d %s", w.Code, w.Body)
	}
}
