package config

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/weirtest"
)

// TestPreflights: a file charges preflights, unless it has free-preflights.
func TestPreflights(t *testing.T) {
	const limits = "limits: [{name: a, config: [{limit: 20, period: 1h}]}]"
	for text, want := range map[string]int{
		limits:                              20,
		"free-preflights: false\n" + limits: 20,
		"free-preflights: true\n" + limits:  1000,
	} {
		f, err := open(text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		served := 0
		h := f.Handler("a")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		for range 1000 {
			r := weirtest.Ask("/", "192.0.2.1:4", "Origin", "made up", "Access-Control-Request-Method", "POST")
			r.Method = "OPTIONS"
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		if served != want {
			t.Errorf("%s: got %d preflights served, want %d", strings.Split(text, "\n")[0], served, want)
		}
	}
}

// TestSettleOfFiles: settle says what a request is charged in the end.
func TestSettleOfFiles(t *testing.T) {
	for settle, want := range map[string]string{"": "200 200 429", "settle: reserved, ": "200 200 429", "settle: used, ": "200 200 200"} {
		f, err := open("limits: [{name: a, key: global, cost: 4, unit: tokens, "+settle+"config: [{limit: 10, period: 1000h}]}]", Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := f.Handler("a")(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "tokens", 3) }))
		var got []string
		for range 3 {
			got = append(got, fmt.Sprint(weirtest.Do(h, weirtest.Ask("/", "192.0.2.1:4")).StatusCode))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %s, want %s", settle, got, want)
		}
	}
	if _, err := open("limits: [{name: a, settle: usd, config: [{limit: 10, period: 1h}]}]", Options{}); err == nil || !strings.Contains(err.Error(), `settle`) || !strings.Contains(err.Error(), "used") {
		t.Errorf("an unknown settle: got error %v", err)
	}
	if _, err := open("limits: [{name: a, settle: used, config: [{limit: 10, period: 1h, algorithm: in-flight}]}]", Options{}); err == nil {
		t.Error("a settle of requests in flight: got no error")
	}
}

// TestNoKeyOfFiles: no-key says what happens to requests without a key.
func TestNoKeyOfFiles(t *testing.T) {
	for noKey, want := range map[string]string{"": "200 200 200", "no-key: skip, ": "200 200 200", "no-key: share, ": "200 429 429", "no-key: refuse, ": "400 400 400"} {
		f, err := open("limits: [{name: a, key: header:Key, "+noKey+"config: [{limit: 1, period: 1h}]}]", Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range 3 {
			got = append(got, fmt.Sprint(weirtest.Do(f.Handler("a")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), weirtest.Ask("/", "192.0.2.1:4")).StatusCode))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %s, want %s", noKey, got, want)
		}
	}
}
