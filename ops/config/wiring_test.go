package config

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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

// TestHeadroom: a file says which classes leave how much to others, and a change of that is a change
// of the rule.
func TestHeadroom(t *testing.T) {
	const config = "config: [{limit: 10, period: 1000h}]}]"
	p := newPage(t, "limits: [{name: a, key: global, "+config, Options{})
	for _, step := range []struct{ file, field, changes, reads, want string }{
		{"class: header:X-Class, headroom: {batch: 30%}, ", "X-Class: batch", "a: class: added: header:X-Class\na: headroom: added: batch: 30%",
			"[global header:X-Class]", "200 6, 200 5, 200 4, 200 3, 200 2, 200 1, 200 0, 429 0"},
		{"class: urgency, headroom: {7: 20%}, ", "Priority: u=7", "a: class: header:X-Class → header:Priority\na: headroom: batch: 30% → 7: 20%",
			"[global header:Priority]", "200 0, 429 0"},
		{"", "Priority: u=7", "a: class: removed: header:Priority\na: headroom: removed: 7: 20%", "[global]", "200 1, 200 0, 429 0"},
	} {
		changes := p.mustWrite(t, "limits: [{name: a, key: global, "+step.file+config)
		if got := changes.String(); got != step.changes {
			t.Errorf("%s: got the changes %q, want %q", step.file, got, step.changes)
		}
		if got := fmt.Sprint(p.Reads("a")); got != step.reads {
			t.Errorf("%s: reads %s, want %s", step.file, got, step.reads)
		}
		h := p.Handler("a")(ok)
		name, value, _ := strings.Cut(step.field, ": ")
		for _, want := range strings.Split(step.want, ", ") {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set(name, value)
			h.ServeHTTP(w, r)
			if got := fmt.Sprint(w.Code, " ", w.Header().Get("X-RateLimit-Remaining")); got != want {
				t.Errorf("%s: got %s, want %s", step.file, got, want)
			}
		}
	}
}

// TestSettleFailed: a rule can count failed requests only, such as wrong passwords. Requests in flight
// reserve their cost, and a change of settle is a change of the rule.
func TestSettleFailed(t *testing.T) {
	for settle, want := range map[string]string{
		"failed": "200 302 200 401 503 429", "[401, 403]": "200 302 200 401 503 401 429", "[302]": "200 302 200 401 503 401 302 429",
	} {
		p := newPage(t, "limits: [{name: login, key: global, config: [{limit: 2, period: 1000h}]}]", Options{})
		if c := p.mustWrite(t, "limits: [{name: login, key: global, settle: "+settle+", config: [{limit: 2, period: 1000h}]}]"); len(c) != 1 || c[0].What != "settle" {
			t.Errorf("%s: got changes %v", settle, c)
		}
		if got := p.Reads("login"); !slices.Equal(got, []string{"global", "status"}) {
			t.Errorf("%s: reads %q", settle, got)
		}
		var got []string
		for _, status := range strings.Fields("200 302 200 401 503 401 302 200") {
			code, _ := strconv.Atoi(status)
			w := httptest.NewRecorder()
			p.Handler("login")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })).ServeHTTP(w, httptest.NewRequest("POST", "/login", nil))
			if got = append(got, strconv.Itoa(w.Code)); w.Code == 429 {
				break
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("settle %s: got %s, want %s", settle, strings.Join(got, " "), want)
		}
	}
	for settle, want := range map[string]string{
		"[]": "settle is an empty list", "[99]": "want a status from 200 to 599", "[401, x]": "want a whole number", "fail": "did you mean failed?",
	} {
		if _, err := open("limits: [{name: a, settle: "+settle+", config: [{limit: 1, period: 1h}]}]", Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("settle %s: got %v, want %s", settle, err, want)
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
