package config

import (
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestAnswer: the fields status and retry-jitter set the status and the Retry-After of
// refusals. A reload that changes them reports the changes and loses no counts.
func TestAnswer(t *testing.T) {
	const before = "limits: [{name: a, config: [{limit: 1, period: 1h}]}]"
	p := newPage(t, before, Options{})
	h := p.Handler("a")(ok)
	get(h)
	if got := get(h); got != 429 {
		t.Errorf("got %d, want 429", got)
	}
	changes := p.mustWrite(t, "limits: [{name: a, status: 503, retry-jitter: 1w, config: [{limit: 1, period: 1h}]}]")
	if got, want := changes.String(), "a: status: 429 → 503\na: retry-jitter: added: 7d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	waits := map[int]bool{}
	for range 20 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
		if waits[after] = true; w.Code != 503 || after < 3500 {
			t.Errorf("got %d, Retry-After %d; want 503 after an hour or more", w.Code, after)
		}
	}
	if len(waits) < 10 {
		t.Errorf("got %d different waits of 20", len(waits))
	}
}

// TestKeyJSON: the key json:NAME is keys.ByJSON and reads bodies up to 64 KiB.
func TestKeyJSON(t *testing.T) {
	for path, body := range map[string]string{"params.name": `{"params":{"name":"ann"}}`, `a\.b.c`: `{"a.b":{"c":"ann"}}`} {
		h := newPage(t, "limits: [{name: a, key: 'json:"+path+"', deny: [ann], config: [{limit: 1, period: 1h}]}]", Options{}).Handler("a")(ok)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body))); w.Code != 429 {
			t.Errorf("%s: got %d, want 429", path, w.Code)
		}
	}
	p := newPage(t, "limits: [{name: a, key: 'json:email', deny: [mallory], config: [{limit: 1, period: 1h}]}]", Options{})
	h := p.Handler("a")(ok)
	for _, c := range []struct {
		body string
		want int
	}{
		{`{"email":"ann"}`, 200}, {`{"email":"ANN"}`, 429}, {`{"email":"mallory"}`, 429}, {`{}`, 200}, {`{}`, 200},
		{`{"email":"ben","x":"` + strings.Repeat("x", 65_000) + `"}`, 200},
		{`{"email":"eve","x":"` + strings.Repeat("x", 66_000) + `"}`, 200}, {`{"email":"eve","x":"` + strings.Repeat("x", 66_000) + `"}`, 429},
	} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(c.body))); w.Code != c.want {
			t.Errorf("%.30s: got %d, want %d", c.body, w.Code, c.want)
		}
	}
}
