package weir_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/memstore"
)

// TestRemade: New warns once if the handler of a server makes a Limiter for each request,
// and not if a test, a reload or a program that starts makes many.
func TestRemade(t *testing.T) {
	store := memstore.New(memstore.Options{})
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	limiter := func(rule string) *weir.Limiter {
		return must(t, store, weir.Options{Logger: logger, Rules: []weir.Rule{{Name: rule, Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}}}})
	}
	file, err := config.Open("config/testdata/good/published.yaml", store, config.Options{Limiter: weir.Options{Logger: logger}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	makes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limiter("api").Handler(served).ServeHTTP(w, r) })
	differs := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		limiter(fmt.Sprint("api ", n)).Handler(served).ServeHTTP(w, r)
	})
	reloads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := config.Check("config/testdata/good/published.yaml", config.Options{}); err != nil {
			t.Error(err)
		}
		file.Reload()
	})
	serve := func(h http.Handler) func() {
		return func() {
			server := httptest.NewServer(h)
			defer server.Close()
			for range 30 {
				res, err := http.Get(server.URL)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
			}
		}
	}
	for _, c := range []struct {
		name  string
		do    func()
		warns int
	}{
		{"a handler", serve(makes), 1},
		{"a handler behind others", serve(limiter("outer").Handler(limiter("inner").Handler(makes))), 1},
		{"a rule for each request", serve(differs), 0},
		{"a reload", serve(reloads), 0},
		{"one Limiter", serve(limiter("api").Handler(served)), 0},
		{"a test of a handler", func() {
			for range 30 {
				do(makes, ask("/", "192.0.2.1:4"))
			}
		}, 0},
		{"a start", func() {
			for range 30 {
				limiter("api")
			}
		}, 0},
	} {
		weir.ForgetRemade()
		log.Reset()
		c.do()
		c.do()
		if got := strings.Count(log.String(), "a handler makes Limiters"); got != c.warns {
			t.Errorf("%s: got %d warnings, want %d: %s", c.name, got, c.warns, &log)
		}
	}
	weir.ForgetRemade()
}

// TestRemadeCounts: a warning needs ten Limiters of one rule within a minute, and the names
// of rules have a bound.
func TestRemadeCounts(t *testing.T) {
	now := time.Unix(0, 0)
	for _, c := range []struct {
		every time.Duration
		rules int
		n     int
		want  int // the first that warns; 0: none
	}{
		{0, 1, 100, 10}, {time.Second, 1, 100, 10}, {6 * time.Second, 1, 100, 10}, {7 * time.Second, 1, 1000, 0},
		{time.Second, 2, 100, 19}, {0, 60, 1000, 541}, {0, 1000, 100_000, 0},
	} {
		var m weir.Remade
		got := 0
		for i := range c.n {
			now = now.Add(c.every)
			if m.Again(fmt.Sprint(i%c.rules), now) {
				if got > 0 {
					t.Errorf("%+v: it warns twice", c)
				}
				got = i + 1
			}
			if m.Len() > 64 {
				t.Fatalf("%+v: %d rules are kept", c, m.Len())
			}
		}
		if got != c.want {
			t.Errorf("%+v: got a warning at %d", c, got)
		}
	}
}
