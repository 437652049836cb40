package docs_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

func refuse(w http.ResponseWriter, r *http.Request) {
	a := weir.FromContext(r.Context())
	a.RefuseJSON(w, r, map[string]string{"error": "rate_limited", "because": a.Refusal.Reason.String()})
}

var together = []weir.Rule{
	{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}, Private: true},
	{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}},
}

// TestAnswers: the blocks of docs/http.md for a quota of all clients beside that of each, for a
// hidden limit, for one's own error body, and for which limit refused, do what the page says.
func TestAnswers(t *testing.T) {
	page, source := read(t, "docs/http.md"), read(t, "docs/answers_test.go")
	for _, begin := range []string{"\nfunc refuse(", "\nvar together = "} {
		_, text, _ := strings.Cut(source, begin)
		text, _, _ = strings.Cut(text, "\n}\n")
		if !strings.Contains(page, "```go"+begin+text+"\n}\n") {
			t.Errorf("docs/http.md has another block than this test:\n%s%s\n}", begin, text)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var why weir.Refusal
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: together, OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			why = weir.FromContext(r.Context()).Refusal
			refuse(w, r)
		})})
		if err != nil {
			t.Fatal(err)
		}
		shared := int64(0)
		h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			shared = weir.FromContext(r.Context()).Decision("all").Remaining
		}))
		send := func(addr string) *httptest.ResponseRecorder {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.RemoteAddr = addr
			h.ServeHTTP(w, r)
			if limit := w.Header().Get("X-RateLimit-Limit"); limit != "100" {
				t.Errorf("%s: got X-RateLimit-Limit %q, want 100", addr, limit)
			}
			return w
		}
		var last *httptest.ResponseRecorder
		for range 500 {
			last = send("192.0.2.1:1")
		}
		header := last.Header()
		if got, want := strings.TrimSpace(last.Body.String()), `{"because":"limit","error":"rate_limited"}`; last.Code != 429 || got != want ||
			header.Get("Retry-After") != "1" || header.Get("Cache-Control") != "no-store" {
			t.Errorf("got %d %v %s, want 429, Retry-After 1, no-store and %s", last.Code, header, got, want)
		}
		if why.Rule != "client" || why.Limit != "1m" || why.Status != 429 {
			t.Errorf("got %+v, want rule client, limit 1m and 429", why)
		}
		if send("192.0.2.2:1"); shared != 1000-100-1 {
			t.Errorf("got %d units of all left, want 899: a refused request spends nothing", shared)
		}
	})
}
