package weir_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// An instantFailure fails in memory, so that a Limiter serves its requests by serveSingle.
type instantFailure struct{ failing }

func (f *instantFailure) Instant() weir.Store { return f }

// TestPassed: the event and the log line of a request that could not be decided say whether
// the request passes. There is one event, and it comes before the request goes on.
func TestPassed(t *testing.T) {
	passes := func(*http.Request, error) error { return nil }
	refuses := func(*http.Request, error) error { return errDown }
	panics := func(*http.Request, error) error { panic(http.ErrAbortHandler) }
	limits := []weir.Limit{algorithms.GCRA(1, time.Hour)}
	uncountable := func(*http.Request) weir.Policy { return weir.Limited(algorithms.GCRA(0, time.Hour)) }
	for _, c := range []struct {
		name    string
		err     error
		rule    weir.Rule
		onError func(*http.Request, error) error
		want    string // what happens, in order
		log     string
	}{
		{"open by default", errDown, weir.Rule{}, nil, "error passed=true, next", "level=WARN, cause=error passed=true"},
		{"busy", quota.ErrBusy, weir.Rule{}, nil, "error passed=false", "level=WARN, cause=busy passed=false"},
		{"unusable", quota.ErrUnusable, weir.Rule{}, nil, "error passed=false", "level=ERROR, cause=unusable passed=false"},
		{"unusable, and open", quota.ErrUnusable, weir.Rule{}, passes, "error passed=true, next", "level=ERROR, cause=unusable passed=true"},
		{"FailClosed", errDown, weir.Rule{}, weir.FailClosed, "error passed=false", "level=WARN, cause=error passed=false"},
		{"refused", errDown, weir.Rule{}, refuses, "error passed=false", "level=WARN, cause=error passed=false"},
		{"a panic", errDown, weir.Rule{}, panics, "error passed=false", "level=WARN, cause=error passed=false"},
		{"Policy", nil, weir.Rule{Policy: uncountable}, nil, "error passed=false", "level=WARN, cause=limit passed=false"},
		{"shadow", errDown, weir.Rule{Enforce: weir.Percent(0)}, nil, "error in shadow passed=false, next", "level=WARN, cause=error shadow=true"},
	} {
		for _, store := range []weir.Store{failing{c.err}, &instantFailure{failing{c.err}}} {
			var log bytes.Buffer
			var got []string
			if c.rule.Name, c.rule.Key = "api", weir.Global(); c.rule.Policy == nil {
				c.rule.Limits = limits
			}
			h := must(t, store, weir.Options{OnError: c.onError, Rules: []weir.Rule{c.rule}, Logger: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(e weir.Event) {
				shadow := map[bool]string{true: " in shadow"}[e.Shadow]
				got = append(got, fmt.Sprintf("error%s passed=%v", shadow, e.Passed))
			}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got = append(got, "next") }))
			func() {
				defer func() { recover() }()
				do(h, ask("/", ""))
			}()
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("%s, %T: got %q, want %q", c.name, store, got, c.want)
			}
			for _, want := range strings.Split(c.log, ", ") {
				if !strings.Contains(strings.ReplaceAll(log.String(), "\n", " "), want+" ") {
					t.Errorf("%s, %T: the log lacks %s: %s", c.name, store, want, log.String())
				}
			}
		}
	}
}

// TestPassedOut: an event says whether Transport sends a request that could not be decided.
func TestPassedOut(t *testing.T) {
	gone, hangUp := context.WithCancel(t.Context())
	for _, c := range []struct {
		name  string
		ctx   context.Context
		fails func()
		rule  weir.Rule
		want  string
	}{
		{"sent", t.Context(), func() {}, weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}, "[true]"},
		{"hung up meanwhile", gone, hangUp, weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}, "[false]"},
		{"an invalid limit", t.Context(), func() {}, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Limited(weir.Limit{}) }}, "[false]"},
	} {
		var got []bool
		c.rule.Name, c.rule.Key = "api", weir.Global()
		store := storeFunc(func(context.Context, *quota.Transaction) error { c.fails(); return errDown })
		l := must(t, store, weir.Options{Rules: []weir.Rule{c.rule}, Logger: slog.New(slog.DiscardHandler), Observe: func(e weir.Event) { got = append(got, e.Passed) }})
		r, _ := http.NewRequestWithContext(c.ctx, "GET", "http://example.com/", nil)
		transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response { return response(200) }}}).RoundTrip(r)
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: observed %v, want %s", c.name, got, c.want)
		}
	}
}
