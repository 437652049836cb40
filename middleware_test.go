package weir_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/jsonrpc"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestMiddleware is how a limit is tested. In the bubble of testing/synctest time is fake, so
// time.Sleep takes no time, and each number is exact: two clients under a fixed window of three
// requests a minute.
func TestMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		limit := weir.Middleware(store, "api", weir.ByIP(), algorithms.FixedWindow(3, time.Minute))
		handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served") }))
		start := time.Now()
		for _, step := range []struct {
			at        time.Duration
			remote    string
			status    int
			remaining string
			retry     string // Retry-After, in seconds
		}{
			{0, "192.0.2.1:4", 200, "2", ""},
			{1 * time.Second, "192.0.2.1:5", 200, "1", ""},
			{2 * time.Second, "192.0.2.2:4", 200, "2", ""},
			{10 * time.Second, "192.0.2.1:6", 200, "0", ""},
			{20 * time.Second, "192.0.2.1:7", 429, "0", "40"},
			{59*time.Second + 1, "192.0.2.1:7", 429, "0", "1"},
			{59*time.Second + 2, "192.0.2.2:4", 200, "1", ""},
			{60 * time.Second, "192.0.2.1:7", 200, "2", ""},
		} {
			time.Sleep(step.at - time.Since(start))
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = step.remote
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != step.status {
				t.Errorf("%v %s: got %d, want %d", step.at, step.remote, w.Code, step.status)
			}
			if got := w.Header().Get("X-RateLimit-Remaining"); got != step.remaining {
				t.Errorf("%v %s: X-RateLimit-Remaining: got %q, want %q", step.at, step.remote, got, step.remaining)
			}
			if got := w.Header().Get("Retry-After"); got != step.retry {
				t.Errorf("%v %s: Retry-After: got %q, want %q", step.at, step.remote, got, step.retry)
			}
		}
	})
}

var served = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served") })

// Helpers that tests of several packages share. do sends a request to a handler, ask makes one of an
// address and fields, must makes a Limiter, and memory makes a store.
var (
	errDown    = weirtest.ErrDown
	memory     = weirtest.Memory
	take       = weirtest.Take
	together   = weirtest.Together
	failsWith  = weirtest.FailsWith
	redisAt    = weirtest.Redis
	ask        = weirtest.Ask
	do         = weirtest.Do
	must       = weirtest.New
	reserve    = weirtest.Reserve
	cancelSlot = weirtest.Cancel
	isOpen     = weirtest.IsOpen
	peek       = weirtest.Peek
)

type (
	storeFunc = weirtest.StoreFunc
	distant   = weirtest.Distant
)

const race = weirtest.Race

// TestSeveralRules: two rules are charged together, so a request that one rule refuses
// spends nothing under the other.
func TestSeveralRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
			{Name: "user", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute)}},
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(3, time.Minute)}},
		}})
		var last *weir.Admission
		h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { last = weir.FromContext(r.Context()) }))
		for i := range 3 {
			if res := do(h, ask("/", "", "User", "ann")); res.StatusCode != 200 {
				t.Fatalf("request %d: got %d, want 200", i, res.StatusCode)
			}
		}
		for range 20 {
			if res := do(h, ask("/", "", "User", "ann")); res.StatusCode != 429 {
				t.Fatalf("got %d, want 429", res.StatusCode)
			}
		}
		time.Sleep(time.Minute)
		do(h, ask("/", "", "User", "ann"))
		if got := last.Decisions[0].Remaining; got != 9 {
			t.Errorf("after 3 served and 20 refused, a minute later: ann has %d left, want 9", got)
		}

		// A rule that does not apply charges nothing, and the other rule still charges.
		do(h, ask("/", ""))
		if len(last.Charges) != 1 || last.Charges[0].Rule != "all" || last.Decisions[0].Remaining != 1 {
			t.Errorf("without a user: charged %+v, %+v; want only rule all, with 1 left", last.Charges, last.Decisions)
		}
	})
}

// TestLogin: under 20 requests per minute and 5 per 3 seconds of one key, the header fields
// name the limit that refuses.
func TestLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(t, memstore.New(memstore.Options{}), weir.Options{
			Headers: headers.IETF,
			Rules: []weir.Rule{{Name: "login", Key: weir.ByIP(),
				Limits: []weir.Limit{algorithms.SlidingLog(20, time.Minute), algorithms.SlidingLog(5, 3*time.Second)}}},
		})
		h := l.Handler(served)
		for range 5 {
			if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 200 {
				t.Fatalf("got %d, want 200", res.StatusCode)
			}
		}
		res := do(h, ask("/", "192.0.2.1:4"))
		body, _ := io.ReadAll(res.Body)
		for _, c := range []struct{ what, got, want string }{
			{"status", res.Status, "429 Too Many Requests"},
			{"RateLimit-Policy", res.Header.Get("RateLimit-Policy"), `"login/1m";q=20;w=60, "login/3s";q=5;w=3`},
			{"RateLimit", res.Header.Get("RateLimit"), `"login/3s";r=0;t=3`},
			{"Retry-After", res.Header.Get("Retry-After"), "3"},
			{"Content-Type", res.Header.Get("Content-Type"), "application/problem+json"},
			{"Cache-Control", res.Header.Get("Cache-Control"), "no-store"},
			{"body", string(body), `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["login/3s"]}` + "\n"},
		} {
			if c.got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
			}
		}
		time.Sleep(3 * time.Second)
		if got, want := do(h, ask("/", "192.0.2.1:4")).Header.Get("RateLimit"), `"login/1m";r=14;t=57, "login/3s";r=4;t=3`; got != want {
			t.Errorf("after three seconds: RateLimit: got %s, want %s", got, want)
		}
	})
}

// TestCost: a request spends its Cost, and a request whose cost never fits or is negative
// is refused without Retry-After.
func TestCost(t *testing.T) {
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "bytes", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(100, time.Hour)},
		Cost: func(r *http.Request) int64 { return r.ContentLength },
	}}})
	h := l.Handler(served)
	for _, c := range []struct {
		length    int64
		status    int
		remaining string
	}{
		{60, 200, "40"},
		{41, 429, "40"},
		{0, 200, "40"},
		{101, 429, "40"}, // never fits: no Retry-After
		{-1, 429, "40"},  // an unknown ContentLength gives no units back
		{40, 200, "0"},
		{0, 200, "0"},
	} {
		r := ask("/", "")
		r.ContentLength = c.length
		res := do(h, r)
		if got := res.Header.Get("X-RateLimit-Remaining"); res.StatusCode != c.status || got != c.remaining {
			t.Errorf("cost %d: got %d with %s left, want %d with %s", c.length, res.StatusCode, got, c.status, c.remaining)
		}
		if retry := res.Header.Get("Retry-After"); (retry != "") != (c.length == 41) {
			t.Errorf("cost %d: Retry-After: %q", c.length, retry)
		}
	}
}

// TestPolicy: Policy chooses the limits of a request. The zero Policy is an error of the request
// if the rule has no Limits, and otherwise means Limits.
func TestPolicy(t *testing.T) {
	policy := func(r *http.Request) weir.Policy {
		switch r.Header.Get("Tier") {
		case "free":
			return weir.Limited(algorithms.GCRA(1, time.Hour).Named("free"))
		case "pro":
			return weir.Limited(algorithms.GCRA(10, time.Hour).Named("pro"), algorithms.GCRA(5, time.Minute))
		case "staff":
			return weir.Unlimited()
		case "former":
			return weir.Denied()
		case "broken":
			return weir.Limited(algorithms.GCRA(0, time.Hour))
		}
		return weir.Limited()
	}
	for _, limits := range [][]weir.Limit{nil, {algorithms.GCRA(3, time.Hour)}} {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{
			{Name: "api", Key: weir.ByHeader("User"), Limits: limits, Policy: policy},
		}}).Handler(served)
		other, left := 503, ""
		if limits != nil {
			other, left = 200, "2"
		}
		for _, c := range []struct {
			tier      string
			status    int
			remaining string
		}{
			{"free", 200, "0"}, {"free", 429, "0"}, {"pro", 200, "4"}, {"staff", 200, ""}, {"former", 429, ""}, {"broken", 503, ""}, {"glod", other, left},
		} {
			res := do(h, ask("/", "", "User", "ann", "Tier", c.tier))
			if got := res.Header.Get("X-RateLimit-Remaining"); res.StatusCode != c.status || got != c.remaining {
				t.Errorf("%s next to %v: got %d with %q left, want %d with %q", c.tier, limits, res.StatusCode, got, c.status, c.remaining)
			}
		}
	}
}

// TestRefusal: a refusal is JSON, text or HTML as Accept asks. It keeps header fields that
// an outer middleware set, except those that describe another body.
func TestRefusal(t *testing.T) {
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Headers: headers.Exposed, Rules: []weir.Rule{
		{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}})
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Access-Control-Expose-Headers", "Link")
			next.ServeHTTP(w, r)
		})
	}
	h := outer(l.Handler(served))
	do(h, ask("/", ""))
	for _, c := range []struct{ accept, contentType, body string }{
		{"", "application/problem+json", `"violated-policies":["api"]`},
		{"*/*", "application/problem+json", `"status":429`},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8", "<h1>Quota Exceeded</h1>"},
		{"text/plain", "text/plain; charset=utf-8", "Too many requests. Try again in 3600 seconds.\n"},
		{"application/json", "application/problem+json", "{"},
		{"text/html;q=0.1, text/plain;q=0.2", "text/plain; charset=utf-8", "Too"},
		{"text/*;q=0.5, text/html;q=0", "text/plain; charset=utf-8", "Too"},
		{"image/png", "text/plain; charset=utf-8", "Too"},
		{"application/json;q=-1", "application/problem+json", "{"},
		{"text/html;q=nonsense", "text/html; charset=utf-8", "<"},
		{strings.Repeat("text/html;q=0.1,", 1<<16), "text/html; charset=utf-8", "<"},
	} {
		r := ask("/", "")
		if c.accept != "" {
			r.Header.Set("Accept", c.accept)
		}
		res := do(h, r)
		body, _ := io.ReadAll(res.Body)
		if got := res.Header.Get("Content-Type"); got != c.contentType || !strings.Contains(string(body), c.body) {
			t.Errorf("Accept %.60q: got %q %q, want %q with %q", c.accept, got, body, c.contentType, c.body)
		}
		if got := res.Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("Access-Control-Allow-Origin: got %q, want it kept", got)
		}
		if got, want := strings.Join(res.Header.Values("Access-Control-Expose-Headers"), ", "), "Link, Retry-After, X-Ratelimit-Limit, X-Ratelimit-Remaining, X-Ratelimit-Reset"; got != want {
			t.Errorf("Access-Control-Expose-Headers: got %q, want %q", got, want)
		}
	}
}

// TestOnLimited: OnLimited can serve something else in place of a refusal, and gets the
// decision from FromContext.
func TestOnLimited(t *testing.T) {
	l := must(t, memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d := weir.FromContext(r.Context()).Decisions[0]
			fmt.Fprintf(w, "cached; allowed %v, retry within an hour %v", d.Allowed, d.RetryAfter <= time.Hour)
		}),
	})
	h := l.Handler(served)
	do(h, ask("/", ""))
	body, _ := io.ReadAll(do(h, ask("/", "")).Body)
	if want := "cached; allowed false, retry within an hour true"; string(body) != want {
		t.Errorf("got %q, want %q", body, want)
	}
	if weir.FromContext(context.Background()) != nil {
		t.Error("FromContext of a context that no limiter has seen is not nil")
	}
}

// TestOnLimitedStatus: a handler that sets no status does not answer 200 to a refused request: the
// status is that of the refusal. A 200 that the handler sets is sent, and logged once.
func TestOnLimitedStatus(t *testing.T) {
	const warning = "weir: refused request answered like a served one"
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		status int
		logged int
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, 503, 0},
		{"a body", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "slow down") }, 503, 0},
		{"a copied body", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(w, struct{ io.Reader }{strings.NewReader("slow down")})
		}, 503, 0},
		{"a flush", func(w http.ResponseWriter, r *http.Request) { http.NewResponseController(w).Flush() }, 503, 0},
		{"early hints", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusEarlyHints) }, 503, 0},
		{"another status", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "teapot", http.StatusTeapot) }, 418, 0},
		{"Refuse", weir.Refuse, 503, 0},
		{"200", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }, 200, 1},
		{"204", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }, 204, 1},
	} {
		var log weirtest.Log
		server := httptest.NewServer(must(t, memory(), weir.Options{
			Rules:     []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}, Status: 503}},
			OnLimited: http.HandlerFunc(c.answer), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}).Handler(served))
		for i := range 3 {
			res, err := http.Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if i > 0 && res.StatusCode != c.status {
				t.Errorf("%s: got %d, want %d", c.name, res.StatusCode, c.status)
			}
		}
		server.Close()
		if got := strings.Count(log.String(), warning); got != c.logged {
			t.Errorf("%s: got %d warnings, want %d:\n%s", c.name, got, c.logged, log.String())
		}
	}
}

// TestRefuseJSON: RefuseJSON sends the body of a program with all the rest of a refusal, for every
// reason, in OnLimited and after Admit.
func TestRefuseJSON(t *testing.T) {
	type body struct{ Reason, Rule, Limit string }
	busy := failing{fmt.Errorf("%w: queue", quota.ErrBusy)}
	rule := func(r weir.Rule) []weir.Rule {
		r.Name, r.Limits = "api", []weir.Limit{algorithms.GCRA(9, time.Hour), algorithms.GCRA(1, time.Minute).Named("minute")}
		if r.Key == nil {
			r.Key = weir.Global()
		}
		return []weir.Rule{r}
	}
	deny := func(*http.Request) weir.Policy { return weir.Denied() }
	strikes := &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Hour}
	for _, c := range []struct {
		name   string
		store  weir.Store
		o      weir.Options
		status int
		retry  string
		body   body
	}{
		{"a limit", memory(), weir.Options{Rules: rule(weir.Rule{})}, 429, "60", body{"limit", "api", "minute"}},
		{"a limit with a status", memory(), weir.Options{Rules: rule(weir.Rule{Status: 503})}, 503, "60", body{"limit", "api", "minute"}},
		{"a ban", memory(), weir.Options{Rules: rule(weir.Rule{Status: 403, Penalty: strikes})}, 403, "3600", body{"ban", "api", ""}},
		{"a deny", memory(), weir.Options{Rules: rule(weir.Rule{Policy: deny})}, 429, "", body{"deny", "api", ""}},
		{"no key", memory(), weir.Options{Rules: rule(weir.Rule{Key: weir.ByHeader("X-User"), NoKey: weir.NoKeyRefuse, Status: 503})}, 400, "", body{"no-key", "api", ""}},
		{"an outage", failing{errDown}, weir.Options{Rules: rule(weir.Rule{Status: 429}), OnError: weir.FailClosed}, 503, "", body{"error", "api", ""}},
		{"a busy store", busy, weir.Options{Rules: rule(weir.Rule{Status: 429})}, 503, "1", body{"error", "api", ""}},
	} {
		refuse := func(a *weir.Admission, w http.ResponseWriter, r *http.Request) {
			a.RefuseJSON(w, r, body{a.Refusal.Reason.String(), a.Refusal.Rule, a.Refusal.Limit})
		}
		c.o.Logger = slog.New(slog.DiscardHandler)
		c.o.OnLimited = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { refuse(weir.FromContext(r.Context()), w, r) })
		l := must(t, c.store, c.o)
		byHand := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := l.Admit(r); err != nil {
				refuse(err.(*weir.RefusedError).Admission, w, r)
			}
		})
		l.Handler(served).ServeHTTP(httptest.NewRecorder(), ask("/", ""))
		for i, h := range []http.Handler{l.Handler(served), byHand} {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Encoding", "gzip") // as middleware that compresses the body does: see TestCompressed
			h.ServeHTTP(w, ask("/", ""))
			var got body
			err := json.Unmarshal(w.Body.Bytes(), &got)
			head := w.Result().Header
			if err != nil || got != c.body || w.Code != c.status || head.Get("Retry-After") != c.retry || head.Get("Cache-Control") != "no-store" ||
				head.Get("Content-Type") != "application/json" || head.Get("Content-Encoding") != "gzip" {
				t.Errorf("%s, %d: got %d, %+v, %v; want %d, %+v, Retry-After %q", c.name, i, w.Code, got, head, c.status, c.body, c.retry)
			}
		}
	}

	// What cannot be sent as JSON is a refusal all the same.
	h := must(t, memory(), weir.Options{Rules: rule(weir.Rule{}), OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		weir.FromContext(r.Context()).RefuseJSON(w, r, func() {})
	})}).Handler(served)
	do(h, ask("/", ""))
	if res := do(h, ask("/", "")); res.StatusCode != 429 || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %d with %v, want problem details", res.StatusCode, res.Header)
	}
	call := httptest.NewRequest("POST", "/", strings.NewReader("\x00\x00\x00\x00\x00"))
	call.ProtoMajor = 2
	call.Header.Set("Content-Type", "application/grpc")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, call); w.Code != 200 || w.Header().Get("Grpc-Status") != "8" {
		t.Errorf("got %d with %v, want grpc-status 8", w.Code, w.Header())
	}
	w = httptest.NewRecorder()
	(*weir.Admission)(nil).RefuseJSON(w, ask("/", ""), 1)
	if w.Code != 429 || w.Body.String() != "1\n" {
		t.Errorf("outside of a limiter: got %d %q, want 429", w.Code, w.Body)
	}
}

// TestCompressed: a client can read a refusal behind middleware that sets Content-Encoding first and
// compresses whatever the handlers in it write, as that of gorilla/handlers does. See
// https://go.dev/issue/66343.
func TestCompressed(t *testing.T) {
	rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}
	for name, o := range map[string]weir.Options{
		"Refuse": {Rules: []weir.Rule{rule}},
		"RefuseJSON": {Rules: []weir.Rule{rule}, OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			weir.FromContext(r.Context()).RefuseJSON(w, r, map[string]int{"status": 429})
		})},
		"JSON-RPC": {Rules: []weir.Rule{rule}, OnLimited: jsonrpc.OnLimited(100, jsonrpc.CodeLimited)},
	} {
		limited := must(t, memory(), o).Handler(served)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			gz := gzip.NewWriter(w)
			defer gz.Close()
			limited.ServeHTTP(compressed{w, gz}, r)
		})
		server := httptest.NewServer(h)
		for i := range 2 {
			res, err := http.Post(server.URL, "application/json", strings.NewReader(`{"id":1,"method":"a"}`)) // net/http asks for gzip, and decodes it
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			if !res.Uncompressed || i == 1 && !json.Valid(body) {
				t.Errorf("%s: got status %d, and a body %.40q that is not decoded: %v", name, res.StatusCode, body, res.Header)
			}
		}
		server.Close()
	}
}

// TestNotStored: no cache stores the answer to a request that is not served, even if middleware has
// set fields that CDNs prefer to Cache-Control (RFC 9213). Otherwise one client could have its refusal
// sent to all others.
func TestNotStored(t *testing.T) {
	rules := []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}
	for name, o := range map[string]weir.Options{
		"Refuse": {Rules: rules},
		"RefuseJSON": {Rules: rules, OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			weir.FromContext(r.Context()).RefuseJSON(w, r, 1)
		})},
		"JSON-RPC": {Rules: rules, OnLimited: jsonrpc.OnLimited(100, jsonrpc.CodeLimited)},
		"hung up":  {Rules: rules, MaxWait: 2 * time.Hour},
	} {
		h := must(t, memory(), o).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, stored := range []bool{true, false} {
			w := httptest.NewRecorder()
			fields := []string{"Cdn-Cache-Control", "Example-Cache-Control", "Surrogate-Control", "X-Accel-Expires", "Edge-Control", "Cache-Control"}
			for _, f := range fields {
				w.Header().Set(f, "max-age=60")
			}
			ctx, hangUp := context.WithCancel(context.Background())
			hangUp()
			h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(`{"id":1,"method":"a"}`)).WithContext(ctx))
			for _, f := range fields {
				want := map[bool]string{true: "max-age=60"}[stored]
				if f == "Cache-Control" && !stored {
					want = "no-store"
				}
				if got := w.Header().Get(f); got != want {
					t.Errorf("%s, served %v: got %s: %q, want %q", name, stored, f, got, want)
				}
			}
		}
	}
}

type compressed struct {
	http.ResponseWriter
	body io.Writer
}

func (c compressed) Write(b []byte) (int, error) { return c.body.Write(b) }

type failing struct{ err error }

func (f failing) Take(context.Context, *quota.Transaction) error { return f.err }

// TestOnError: by default an outage lets requests pass. A store that has no capacity or can
// never work refuses them, also behind a Breaker and a Fallback. No answer has the text of
// the error, or fields of a decision.
func TestOnError(t *testing.T) {
	secret := errors.New("dial tcp 10.0.0.7:6379: password hunter2")
	busy, unusable := fmt.Errorf("%w: %w", quota.ErrBusy, secret), fmt.Errorf("%w: %w", quota.ErrUnusable, secret)
	var events []weir.Event
	for _, c := range []struct {
		name    string
		err     error
		onError func(*http.Request, error) error
		status  int
		body    string
		retry   string
	}{
		{"open by default", secret, nil, 200, "served", ""},
		{"FailClosed", secret, weir.FailClosed, 503, "temporary-reduced-capacity", ""},
		{"busy", busy, nil, 503, "temporary-reduced-capacity", "1"},
		{"busy, FailClosed", busy, weir.FailClosed, 503, "temporary-reduced-capacity", "1"},
		{"full", quota.ErrFull, nil, 503, "temporary-reduced-capacity", "1"},
		{"busy, and then an outage", errors.Join(busy, errDown), nil, 503, "temporary-reduced-capacity", "1"},
		{"an outage, and then full", errors.Join(errDown, quota.ErrFull), nil, 503, "temporary-reduced-capacity", "1"},
		{"unusable", unusable, nil, 503, "temporary-reduced-capacity", ""},
		{"open, because unusable", fmt.Errorf("%w: %w", quota.ErrOpen, unusable), nil, 503, "temporary-reduced-capacity", ""},
	} {
		events = nil
		h := must(t, failing{c.err}, weir.Options{OnError: c.onError, Observe: func(e weir.Event) { events = append(events, copied(e)) },
			Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}}).Handler(served)
		res := do(h, ask("/", ""))
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != c.status || !strings.Contains(string(body), c.body) || strings.Contains(string(body), "hunter2") {
			t.Errorf("%s: got %d %q, want %d with %q and not the error", c.name, res.StatusCode, body, c.status, c.body)
		}
		if got := res.Header.Get("Retry-After"); got != c.retry {
			t.Errorf("%s: got Retry-After %q, want %q", c.name, got, c.retry)
		}
		if res.Header.Get("X-RateLimit-Remaining") != "" {
			t.Errorf("%s: fields of a decision that was not made: %v", c.name, res.Header)
		}
		if len(events) != 1 || !errors.Is(events[0].Err, c.err) || events[0].Transaction.Charges[0].Rule != "api" {
			t.Errorf("%s: observed %+v, want the error", c.name, events)
		}
	}
}

// TestNested: if a router has limiters for all routes, a group and a route, the header
// fields show the tightest limit of all limiters, and a refusal names the limit that
// refuses.
func TestNested(t *testing.T) {
	store := memstore.New(memstore.Options{})
	limiter := func(rule string, units int64) func(http.Handler) http.Handler {
		return must(t, store, weir.Options{Headers: headers.XRateLimit | headers.IETF, Rules: []weir.Rule{
			{Name: rule, Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(units, 24*365*time.Hour)}}}}).Handler
	}
	all, group, route := limiter("all", 4), limiter("group", 100), limiter("route", 2)
	mux := http.NewServeMux()
	mux.Handle("/narrow", group(route(served)))
	mux.Handle("/wide", group(served))
	r := all(mux)
	for _, c := range []struct {
		path          string
		status        int
		limit, remain string
		violated      string
		policies      int
	}{
		{"/wide", 200, "4", "3", "", 2},
		{"/narrow", 200, "2", "1", "", 3},
		{"/narrow", 200, "2", "0", "", 3},
		{"/narrow", 429, "2", "0", `"route";r=0`, 3}, // the outer limiters have charged already
		{"/wide", 429, "4", "0", `"all";r=0`, 1},
	} {
		res := do(r, ask(c.path, "192.0.2.1:4"))
		if got := res.Header.Get("X-RateLimit-Limit") + " " + res.Header.Get("X-RateLimit-Remaining"); res.StatusCode != c.status || got != c.limit+" "+c.remain {
			t.Errorf("%s: got %d, %s; want %d, %s %s", c.path, res.StatusCode, got, c.status, c.limit, c.remain)
		}
		if got := res.Header.Get("RateLimit"); c.violated != "" && (!strings.HasPrefix(got, c.violated) || strings.Contains(got, ",")) {
			t.Errorf("%s: RateLimit of a refusal: got %s, want %s alone", c.path, got, c.violated)
		}
		if got := strings.Count(res.Header.Get("RateLimit-Policy"), ";q="); got != c.policies || len(res.Header.Values("RateLimit-Policy")) != 1 {
			t.Errorf("%s: RateLimit-Policy: got %q, want %d policies in one line", c.path, res.Header.Values("RateLimit-Policy"), c.policies)
		}
	}
}

// TestPreflight: with FreePreflights a CORS preflight is free, but a deny refuses it, and so
// does a ban that this or another process began. Each request comes when the limit is used up.
func TestPreflight(t *testing.T) {
	type fields = map[string]string
	for _, c := range []struct {
		name    string
		charged bool
		method  string
		body    io.Reader
		fields  fields
		key     string
		want    int
	}{
		{"a preflight", false, "OPTIONS", nil, nil, "ann", 200},
		{"a preflight that is charged", true, "OPTIONS", nil, nil, "ann", 429},
		{"no Origin", false, "OPTIONS", nil, fields{"Origin": ""}, "ann", 429},
		{"no Access-Control-Request-Method", false, "OPTIONS", nil, fields{"Access-Control-Request-Method": ""}, "ann", 429},
		{"another method", false, "GET", nil, nil, "ann", 429},
		{"a body", false, "OPTIONS", strings.NewReader("x"), nil, "ann", 429},
		{"a body of unknown length", false, "OPTIONS", io.MultiReader(strings.NewReader("x")), nil, "ann", 429},
		{"Authorization", false, "OPTIONS", nil, fields{"Authorization": "Bearer x"}, "ann", 429},
		{"an empty Authorization", false, "OPTIONS", nil, fields{"Authorization": " "}, "ann", 429},
		{"Proxy-Authorization", false, "OPTIONS", nil, fields{"Proxy-Authorization": "Basic x"}, "ann", 429},
		{"Cookie", false, "OPTIONS", nil, fields{"Cookie": "session=1"}, "ann", 429},
		{"Expect", false, "OPTIONS", nil, fields{"Expect": "100-continue"}, "ann", 429},
		{"Upgrade", false, "OPTIONS", nil, fields{"Upgrade": "websocket"}, "ann", 429},
		{"denied", false, "OPTIONS", nil, nil, "mallory", 429},
		{"banned", false, "OPTIONS", nil, nil, "banned here", 429},
		{"banned by another process", false, "OPTIONS", nil, nil, "banned there", 429},
	} {
		store := memstore.New(memstore.Options{})
		limiter := func() *weir.Limiter {
			return must(t, store, weir.Options{Rules: []weir.Rule{
				{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}, FreePreflights: !c.charged,
					ForKey:  weir.When(func(key string) bool { return key == "mallory" }, weir.Denied()),
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Hour), Duration: time.Hour}}}})
		}
		here, there := limiter(), limiter()
		for _, err := range []error{here.Ban(t.Context(), "api", "banned here", time.Hour), there.Ban(t.Context(), "api", "banned there", time.Hour)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		h := here.Handler(served)
		do(h, ask("/", "", "Key", c.key))
		r := httptest.NewRequest(c.method, "/", c.body)
		r.Header.Set("Key", c.key)
		r.Header.Set("Origin", "https://example.com")
		r.Header.Set("Access-Control-Request-Method", "POST")
		for name, value := range c.fields {
			r.Header.Set(name, value)
		}
		if got := do(h, r).StatusCode; got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// TestPreflightsAreCharged: by default a client cannot get more requests by disguising them
// as preflights, whatever its handler does with their method. With FreePreflights it can, and
// their answers show what is left.
func TestPreflightsAreCharged(t *testing.T) {
	for _, free := range []bool{false, true} {
		for _, rule := range []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}},
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}, ForKey: noPolicy},
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}, Cost: func(*http.Request) int64 { return 1 }},
		} {
			guesses, remaining := 0, ""
			rule.FreePreflights = free
			h := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}}).
				Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { guesses++ }))
			for range 1000 {
				r := ask("/login?password=guess", "192.0.2.1:4", "Origin", "made up", "Access-Control-Request-Method", "POST")
				r.Method = "OPTIONS"
				remaining = do(h, r).Header.Get("X-RateLimit-Remaining")
			}
			if want, left := map[bool]int{false: 20, true: 1000}[free], map[bool]string{false: "0", true: "20"}[free]; guesses != want || remaining != left {
				t.Errorf("FreePreflights %v: got %d guesses and %q left, want %d and %q", free, guesses, remaining, want, left)
			}
		}
	}
}

// TestNoFromContext: with NoFromContext the header fields are the same, and FromContext
// returns nil, unless an outer Limiter or a Settle needs the context.
func TestNoFromContext(t *testing.T) {
	rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(3, time.Hour)}}
	settled := rule
	settled.Settle = func(o weir.Outcome) int64 { return o.Used }
	outer := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}}}})
	for _, tt := range []struct {
		name  string
		o     weir.Options
		outer *weir.Limiter
		found bool
		limit string // the X-RateLimit-Limit of the tightest limit
	}{
		{"without", weir.Options{Rules: []weir.Rule{rule}}, nil, true, "3"},
		{"with", weir.Options{Rules: []weir.Rule{rule}, NoFromContext: true}, nil, false, "3"},
		{"inside of another", weir.Options{Rules: []weir.Rule{rule}, NoFromContext: true}, outer, true, "2"},
		{"with Settle", weir.Options{Rules: []weir.Rule{settled}, NoFromContext: true}, nil, true, "3"},
	} {
		found := false
		h := must(t, memory(), tt.o).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx := weir.FromContext(r.Context())
			found = tx != nil && tx.Charges[0].Rule == "api"
		}))
		if tt.outer != nil {
			h = tt.outer.Handler(h)
		}
		w := do(h, ask("/", "192.0.2.1:1"))
		if got := w.Header.Get("X-RateLimit-Limit"); found != tt.found || got != tt.limit || w.Header.Get("X-RateLimit-Remaining") == "" {
			t.Errorf("%s: decision found %v, limit %q in %v; want %v, %q", tt.name, found, got, w.Header, tt.found, tt.limit)
		}
	}
}

// TestFieldsStay: the header fields of a response do not change when later requests reuse
// the memory of its decision.
func TestFieldsStay(t *testing.T) {
	for _, o := range []weir.Options{{}, {NoFromContext: true}, {Headers: headers.IETF | headers.GitHub | headers.OpenAI, NoFromContext: true}} {
		o.Rules = []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(5000, time.Hour), algorithms.FixedWindow(4000, 24*time.Hour)}}}
		h := must(t, memory(), o).Handler(served)
		var said []http.Header
		var copies []string
		for range 4100 {
			fields := do(h, ask("/", "192.0.2.1:1")).Header
			said, copies = append(said, fields), append(copies, fmt.Sprintf("%q", fields))
		}
		for i, fields := range said {
			if got := fmt.Sprintf("%q", fields); got != copies[i] {
				t.Fatalf("%v: response %d has %s now, and had %s", o.Headers, i, got, copies[i])
			}
		}
	}
}

// TestResponseWriter: behind a Limiter, the ResponseWriter of the server can still flush,
// be hijacked and read from a file.
func TestResponseWriter(t *testing.T) {
	h := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), algorithms.GCRA(100, time.Second))
	mux := http.NewServeMux()
	mux.Handle("/stream", h(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no io.ReaderFrom")
		}
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})))
	mux.Handle("/upgrade", h(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\nraw")
		conn.Close()
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	ctx, hangUp := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/stream", nil)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); line != "data: 1\n" {
		t.Errorf("stream: got %q, %v before its end, want the first event", line, err)
	}
	hangUp()

	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
	if got, _ := io.ReadAll(conn); !strings.HasSuffix(string(got), "\r\n\r\nraw") {
		t.Errorf("hijacked: got %q", got)
	}
}

// TestProblemIsJSON: problem details are valid JSON, and RateLimit-Policy is a valid field,
// even if a name has quotes and backslashes.
func TestProblemIsJSON(t *testing.T) {
	name := `a"b\c<d>/~`
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Headers: headers.IETF, Rules: []weir.Rule{
		{Name: name, Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}}).Handler(served)
	do(h, ask("/", ""))
	res := do(h, ask("/", ""))
	var p struct {
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil || p.Status != 429 || !slices.Equal(p.Violated, []string{name}) {
		t.Errorf("got %+v, %v; want 429 and %q", p, err, name)
	}
	if got, want := res.Header.Get("RateLimit-Policy"), `"a\"b\\c<d>/~";q=1;w=3600`; got != want {
		t.Errorf("RateLimit-Policy: got %s, want %s", got, want)
	}
}

// TestNewRefuses: New returns an error that names the mistake in its arguments, and
// Middleware panics with that error.
func TestNewRefuses(t *testing.T) {
	key, limit := weir.Global(), algorithms.GCRA(1, time.Second)
	store := memstore.New(memstore.Options{})
	rule := func(limits ...weir.Limit) []weir.Rule { return []weir.Rule{{Name: "api", Key: key, Limits: limits}} }
	for _, c := range []struct {
		want  string
		store weir.Store
		o     weir.Options
	}{
		{"store is nil", nil, weir.Options{Rules: rule(limit)}},
		{"store is nil", (*memstore.Store)(nil), weir.Options{Rules: rule(limit)}}, // a variable that was never set
		{"Rules is empty", store, weir.Options{}},
		{`rule "": the Name is empty`, store, weir.Options{Rules: []weir.Rule{{Key: key, Limits: []weir.Limit{limit}}}}},
		{`rule "a\nb": want a name in printable ASCII`, store, weir.Options{Rules: []weir.Rule{{Name: "a\nb", Key: key, Limits: []weir.Limit{limit}}}}},
		{`rule "api": the Key is nil`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{limit}}}}},
		{`rule "api": the list of Limits is empty`, store, weir.Options{Rules: rule()}},
		{`the unit is "Tokens"; want`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Unit: "Tokens"}}}},
		{`rule "api": the status is 200; want 400 to 599`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Status: 200}}}},
		{`rule "api": the Buffer is -1s; want whole microseconds`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Buffer: -time.Second}}}},
		{`rule "api": the Buffer is 1ns; want whole microseconds`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Buffer: 1}}}},
		{`with a buffer of 7µs: period is `, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{algorithms.GCRA(1, 1<<50*time.Microsecond)}, Buffer: 7 * time.Microsecond}}}},
		{`rule "api": the RetryJitter is -1ns; want 0`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, RetryJitter: -1}}}},
		{`rule "api": the RetryJitter is 30ns; want at least 1ms, such as 30*time.Millisecond`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, RetryJitter: 30}}}},
		{`MaxWait is 5ns; want at least 1ms, such as 5*time.Millisecond`, store, weir.Options{MaxWait: 5, Rules: rule(limit)}},
		{`rule "api": the Enforce is -1%; want 0% to 100%`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Enforce: weir.Percent(-1)}}}},
		{`rule "api": the Enforce is 101%; want`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Enforce: weir.Percent(101)}}}},
		{`rule "api": the Enforce is NaN%; want`, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{limit}, Enforce: weir.Percent(math.NaN())}}}},
		{`two rules are named "api"`, store, weir.Options{Rules: append(rule(limit), rule(limit)...)}},
		{`two limits are named "1s"; name one of them, in Go with .Named`, store, weir.Options{Rules: rule(limit, algorithms.FixedWindow(9, time.Second))}},
		{`two limits are named "x"`, store, weir.Options{Rules: rule(limit.Named("x"), algorithms.GCRA(9, time.Minute).Named("x"))}},
		{`limit "é": want a name in printable ASCII`, store, weir.Options{Rules: rule(limit.Named("é"))}},
		{"the Algorithm is nil", store, weir.Options{Rules: rule(weir.Limit{Quota: 1, Period: time.Second})}},
		{"quota is 0; want at least 1", store, weir.Options{Rules: rule(algorithms.GCRA(0, time.Second))}},
		{"quota is -1; want at least 1", store, weir.Options{Rules: rule(algorithms.SlidingLog(-1, time.Second))}},
		{"period is 0s; want at least", store, weir.Options{Rules: rule(algorithms.GCRA(1, 0))}},
		{"whole microseconds", store, weir.Options{Rules: rule(algorithms.GCRA(1, time.Second/3))}},
		{"burst is -1; want at least 0", store, weir.Options{Rules: rule(limit.WithBurst(-1))}},
		{"quota 1125899906842625 exceeds 2^50", store, weir.Options{Rules: rule(algorithms.GCRA(1<<50+1, time.Second))}},
		{"burst 1125899906842625 exceeds", store, weir.Options{Rules: rule(limit.WithBurst(1<<50 + 1))}},
		{"choose one", store, weir.Options{Headers: headers.IETF | headers.Draft06, Rules: rule(limit)}},
		{"none cannot be combined", store, weir.Options{Headers: headers.IETF | headers.None, Rules: rule(limit)}},
		{"dialect is 0x8000; want one of the constants", store, weir.Options{Headers: 1 << 15, Rules: rule(limit)}},
		{`both are named "a/b"`, store, weir.Options{Rules: []weir.Rule{
			{Name: "a/b", Key: key, Limits: []weir.Limit{limit}}, {Name: "a", Key: key, Limits: []weir.Limit{limit.Named("b")}}}}},
	} {
		if _, err := weir.New(c.store, c.o); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "weir: ") {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
	defer func() {
		if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), `rule "api": the list of Limits is empty`) {
			t.Errorf("Middleware panics with %v, want what New says", err)
		}
	}()
	weir.Middleware(store, "api", key)
}

// TestRules: charges that are made by hand from Limiter.Rules count together with the
// charges of the Limiter.
func TestRules(t *testing.T) {
	store := memstore.New(memstore.Options{})
	l := must(t, store, weir.Options{Rules: []weir.Rule{
		{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(9, 1000*time.Hour), algorithms.FixedWindow(5, 100*time.Hour).Named("few")}},
		{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(7, 1000*time.Hour)}},
	}})
	do(l.Handler(served), ask("/", "192.0.2.1:4"))
	var got []string
	for _, r := range l.Rules() {
		for _, limit := range r.Limits {
			look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: r.Name, Key: map[string]string{"api": "192.0.2.1"}[r.Name], Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s/%s %d", r.Name, limit.Name, look.Decisions[0].Remaining))
		}
	}
	if want := "[api/1000h 8 api/few 4 all/1000h 6]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// A nullWriter is a ResponseWriter that does nothing, so that only the middleware is
// measured.
type nullWriter struct{ h http.Header }

func (w *nullWriter) Header() http.Header         { return w.h }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(int)             {}

// TestHandlerAllocates: an admitted request makes one allocation, for its context and a copy of the
// request, and one more if its rule has more than three limits. With one limit, the allocation has 512
// bytes. A refusal makes no allocation, a request with NoFromContext makes none either, and an observer
// adds none. The time stands still, because of a thousand seconds of a reset, a few take the place of
// another number among the remembered ones.
func TestHandlerAllocates(t *testing.T) { synctest.Test(t, testHandlerAllocates) }

func testHandlerAllocates(t *testing.T) {
	several := func(units int64) []weir.Limit {
		return []weir.Limit{algorithms.FixedWindow(units, 1000*time.Hour), algorithms.GCRA(2*units, time.Minute), algorithms.SlidingWindow(2*units, 24*time.Hour), algorithms.AnchoredWindow(units/2, time.Hour)}
	}
	observed := weir.Options{Observe: func(weir.Event) {}}
	type row struct {
		name   string
		o      weir.Options
		limits []weir.Limit
		want   float64
	}
	rows := []row{
		{"allowed", weir.Options{}, several(1 << 20)[:1], 1},
		{"allowed by three", weir.Options{}, several(1 << 20)[:3], 1},
		{"allowed by four", weir.Options{}, several(1 << 20), 2}, // the decisions do not fit into the context
		{"allowed, observed", observed, several(1 << 20)[:1], 1},
		{"allowed, without a context", weir.Options{NoFromContext: true}, several(1 << 20)[:1], 0},
		{"allowed, exposed", weir.Options{Headers: headers.Exposed}, several(1 << 20)[:1], 1},
		{"denied", weir.Options{}, several(1)[:1], 0},
		{"denied, observed", observed, several(1)[:1], 0},
	}
	for _, tt := range rows {
		tt.o.Rules = []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: tt.limits}}
		h := must(t, memstore.New(memstore.Options{}), tt.o).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := &nullWriter{http.Header{}}, ask("/", "192.0.2.1:4")
		for range 1001 { // so that the numbers in header fields are remembered
			h.ServeHTTP(w, ask("/", "192.0.2.2:4"))
		}
		if got := testing.AllocsPerRun(1000, func() { clear(w.h); h.ServeHTTP(w, r) }); got > tt.want && !race {
			t.Errorf("%s: got %v allocations, want %v", tt.name, got, tt.want)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 1000 {
			clear(w.h)
			h.ServeHTTP(w, r)
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / 1000; got > 550 && len(tt.limits) == 1 && !race {
			t.Errorf("%s: got %d bytes, want at most 512 and a few for new numbers", tt.name, got)
		}
	}
}

var quotas = []struct {
	name  string
	limit weir.Limit
}{
	{"allowed", algorithms.GCRA(1<<30, time.Second)},
	{"denied", algorithms.GCRA(1, 1000*time.Hour)},
}

// BenchmarkHandler measures a request through a Limiter. Its baseline does the least that a
// limiter must do: set three fields and copy the request.
func BenchmarkHandler(b *testing.B) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	b.Run("baseline", func(b *testing.B) {
		w, r := &nullWriter{http.Header{}}, ask("/", "192.0.2.1:4")
		b.ReportAllocs()
		for b.Loop() {
			w.h["X-Ratelimit-Limit"] = []string{"1"}
			w.h["X-Ratelimit-Remaining"] = []string{"1"}
			w.h["X-Ratelimit-Reset"] = []string{"1"}
			nothing.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), quotaKey{}, w)))
		}
	})
	for _, q := range quotas {
		b.Run(q.name, func(b *testing.B) {
			h := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), q.limit)(nothing)
			w, r := &nullWriter{http.Header{}}, ask("/", "192.0.2.1:4")
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

type quotaKey struct{}

// TestUploads: net/http removes the files of an upload, whoever has parsed it.
func TestUploads(t *testing.T) {
	parse := func(r *http.Request) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			t.Error(err)
		}
	}
	parses := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { parse(r) })
	panics := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { parse(r); panic("x") })
	rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}
	settled, denied, byForm := rule, rule, rule
	settled.Settle = weir.RefundErrors
	denied.Policy = func(*http.Request) weir.Policy { return weir.Denied() }
	byForm.Policy = func(r *http.Request) weir.Policy { parse(r); return weir.Policy{} }
	for name, c := range map[string]struct {
		o    weir.Options
		next http.Handler
	}{
		"Handler":         {weir.Options{Rules: []weir.Rule{rule}}, parses},
		"NoFromContext":   {weir.Options{Rules: []weir.Rule{rule}, NoFromContext: true}, parses},
		"Settle":          {weir.Options{Rules: []weir.Rule{settled}}, parses},
		"OnLimited":       {weir.Options{Rules: []weir.Rule{denied}, OnLimited: parses}, http.NotFoundHandler()},
		"Policy":          {weir.Options{Rules: []weir.Rule{byForm}}, http.NotFoundHandler()},
		"panic":           {weir.Options{Rules: []weir.Rule{rule}}, panics},
		"Settle, panic":   {weir.Options{Rules: []weir.Rule{settled}}, panics},
		"OnLimited panic": {weir.Options{Rules: []weir.Rule{denied}, OnLimited: panics}, http.NotFoundHandler()},
		"two":             {weir.Options{Rules: []weir.Rule{rule}}, must(t, memory(), weir.Options{Rules: []weir.Rule{settled}}).Handler(parses)},
	} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		h := must(t, memory(), c.o).Handler(c.next)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { _ = recover() }()
			h.ServeHTTP(w, r)
		}))
		body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" + strings.Repeat("x", 3<<20) + "\r\n--b--\r\n"
		for range 3 {
			res, err := http.Post(server.URL, "multipart/form-data; boundary=b", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
		server.Close() // waits for the handlers
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("%s: %d files stay, %v", name, len(files), err)
		}
	}
}

// TestSmuggling: if a rule reads the beginning of a body that the handler closes early, the rest of
// the body is not served as further requests. The client may be a proxy that other clients share.
func TestSmuggling(t *testing.T) {
	rule := weir.Rule{Name: "api", Key: weir.ByJSON("user", 100), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}
	own, settled, policy, denied, unread := rule, rule, rule, rule, rule
	unread.Key = weir.Global()
	own.Key = func(r *http.Request) (string, bool) { // as programs often do it
		head, _ := io.ReadAll(io.LimitReader(r.Body, 100))
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(strings.NewReader(string(head)), r.Body), r.Body}
		return string(head), true
	}
	settled.Settle = weir.RefundErrors
	policy.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	denied.Policy = func(*http.Request) weir.Policy { return weir.Denied() }
	closes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if head, err := io.ReadAll(io.LimitReader(r.Body, 200)); err != nil || string(head) != strings.Repeat("a", 200) {
			t.Errorf("got a body of %q, %v", head, err)
		}
		r.Body.Close() // as httputil.ReverseProxy does
	})
	duplex := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.NewResponseController(w).EnableFullDuplex() })
	bounds := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 300) // which cannot close the connection if w is a wrapper
		closes(w, r)
		io.Copy(io.Discard, r.Body)
	})
	for name, c := range map[string]struct {
		o    weir.Options
		next http.HandlerFunc
	}{
		"ByJSON":        {weir.Options{Rules: []weir.Rule{rule}}, closes},
		"full duplex":   {weir.Options{Rules: []weir.Rule{rule}}, duplex},
		"own key":       {weir.Options{Rules: []weir.Rule{own}}, closes},
		"Settle":        {weir.Options{Rules: []weir.Rule{settled}}, closes},
		"bounded":       {weir.Options{Rules: []weir.Rule{settled}}, bounds},
		"two bounds":    {weir.Options{Rules: []weir.Rule{rule}}, bounds},
		"Policy":        {weir.Options{Rules: []weir.Rule{policy}}, closes},
		"NoFromContext": {weir.Options{Rules: []weir.Rule{rule}, NoFromContext: true}, closes},
		"OnLimited":     {weir.Options{Rules: []weir.Rule{denied}, OnLimited: closes}, nil},
		"KeepHeaders":   {weir.Options{Rules: []weir.Rule{unread}, NoFromContext: true}, weir.KeepHeaders(bounds).ServeHTTP},
	} {
		server := httptest.NewServer(must(t, memory(), c.o).Handler(c.next))
		conn := dial(t, server.Listener.Addr().String())
		body := strings.Repeat("a", 100+256<<10) + strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 100)
		go fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		answers, _ := io.ReadAll(conn) // until the server closes the connection
		if n := strings.Count(string(answers), "HTTP/1.1 "); n != 1 {
			t.Errorf("%s: got %d answers to a request", name, n)
		}
		conn.Close()
		server.Close()
	}
}

type outsideKey struct{}

// TestCarriedBack: what a handler writes into its request is seen by the handlers around the Limiter,
// whose context has no decision then, and by Settle. If the handler writes nothing, nothing is written.
func TestCarriedBack(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /users/{id}", func(w http.ResponseWriter, r *http.Request) { r.FormValue("name") })
	moved := &url.URL{Path: "/moved"}
	writes := func(f func(r *http.Request)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f(r) })
	}
	for _, c := range []struct {
		name string
		next http.Handler
		want func(r *http.Request) bool
	}{
		{"mux", mux, func(r *http.Request) bool {
			return r.Pattern == "POST /users/{id}" && r.PathValue("id") == "ann" && r.Form.Get("name") == "x" && r.PostForm.Get("name") == "x"
		}},
		{"form", writes(func(r *http.Request) { r.ParseForm() }), func(r *http.Request) bool { return r.PostForm.Get("name") == "x" }},
		{"method, with what has no trigger of its own", writes(func(r *http.Request) {
			r.Method, r.Header = "PUT", http.Header{"A": {"b"}}
			r.SetPathValue("id", "ben")
		}), func(r *http.Request) bool {
			return r.Method == "PUT" && r.Header.Get("A") == "b" && r.PathValue("id") == "ben"
		}},
		{"URL", writes(func(r *http.Request) { r.URL = moved }), func(r *http.Request) bool { return r.URL == moved }},
		{"host", writes(func(r *http.Request) { r.Host = "other" }), func(r *http.Request) bool { return r.Host == "other" }},
		{"address", writes(func(r *http.Request) { r.RemoteAddr = "other" }), func(r *http.Request) bool { return r.RemoteAddr == "other" }},
		{"body, which stays that of net/http", writes(func(r *http.Request) { r.Pattern, r.Body = "/", http.NoBody }), func(r *http.Request) bool {
			b, _ := io.ReadAll(r.Body)
			return string(b) == "name=x"
		}},
		{"context", writes(func(r *http.Request) {
			ctx, cancel := context.WithCancel(context.WithValue(r.Context(), outsideKey{}, 1))
			defer cancel()
			*r = *r.WithContext(ctx)
		}), func(r *http.Request) bool { return r.Context().Value(outsideKey{}) == 1 }},
		{"trailer", writes(func(r *http.Request) { r.Pattern = "/" }), func(r *http.Request) bool { return r.Trailer != nil }},
		{"trailer of a server that replaces the map, as quic-go does", writes(func(r *http.Request) { r.Pattern = "/" }), func(r *http.Request) bool { return r.Trailer.Get("A") == "1" }},
		{"nothing", writes(func(r *http.Request) { r.Header = nil }), func(r *http.Request) bool { return r.Header != nil }},
	} {
		for i := range 8 {
			settles, reads, keeps := i&1 != 0, i&2 != 0, i&4 != 0
			var settled *http.Request
			var seen http.Request // as Settle has seen it
			rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}
			if reads {
				rule.Key = func(r *http.Request) (string, bool) {
					r.Body = struct{ io.ReadCloser }{r.Body} // as if it had read the beginning
					return "k", true
				}
			}
			if settles {
				rule.Settle = func(o weir.Outcome) int64 {
					if settled, seen = o.Request, *o.Request; o.HungUp {
						t.Errorf("%s: HungUp", c.name)
					}
					return 1
				}
			}
			r, declared := httptest.NewRequest("POST", "/users/ann", strings.NewReader("name=x")), strings.HasPrefix(c.name, "trailer of")
			if declared {
				r.Trailer = http.Header{"A": nil}
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			ctx, body := r.Context(), r.Body
			var next http.Handler = http.HandlerFunc(func(w http.ResponseWriter, inner *http.Request) {
				switch { // at the end of the body
				case c.name == "trailer":
					r.Trailer = http.Header{"A": nil} // as net/http does
				case declared:
					r.Trailer = http.Header{"A": {"1"}}
				}
				c.next.ServeHTTP(w, inner)
			})
			if keeps {
				next = weir.KeepHeaders(next)
			}
			must(t, memory(), weir.Options{Rules: []weir.Rule{rule}}).Handler(next).ServeHTTP(httptest.NewRecorder(), r)
			if !c.want(r) || settles && !reads && settled != r {
				t.Errorf("%s, settles %v, reads %v, keeps %v: got %+v", c.name, settles, reads, keeps, r)
			}
			if settles && (seen.Pattern != r.Pattern || seen.URL != r.URL || seen.Method != r.Method || len(seen.Form) != len(r.Form) || seen.Context().Value(outsideKey{}) != r.Context().Value(outsideKey{})) {
				t.Errorf("%s, reads %v, keeps %v: Settle has seen %+v, want %+v", c.name, reads, keeps, &seen, r)
			}
			if c.name != "context" && (r.Context() != ctx || weir.FromContext(r.Context()) != nil) || r.Body != body {
				t.Errorf("%s, settles %v, reads %v, keeps %v: the context or the body is that of the copy", c.name, settles, reads, keeps)
			}
		}
	}
}

type announcing struct {
	weir.Store
	text string
}

func (a *announcing) Announce(rule string, limits []weir.Limit) { a.text += fmt.Sprint(rule, limits) }

// TestAnnounce: New announces the limits of each rule to a store that compares them.
func TestAnnounce(t *testing.T) {
	store := &announcing{Store: memstore.New(memstore.Options{})}
	_, err := weir.New(store, weir.Options{Rules: []weir.Rule{
		{Name: "a", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Minute)}},
		{Name: "b", Key: weir.ByIP(), Policy: func(*http.Request) weir.Policy { return weir.Unlimited() }},
	}})
	if want := "a[1 per 1m0s (gcra)]b[]"; store.text != want || err != nil {
		t.Errorf("got %q and error %v, want %q", store.text, err, want)
	}
}

// answering are handlers, by path, that use what a server of net/http offers. Each returns what it
// has seen.
var answering = map[string]func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any{
	"/nothing": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any { return nil },
	"/no-content": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.WriteHeader(204)
		_, err := io.WriteString(w, "body")
		return err
	},
	"/not-modified": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(304)
		return nil
	},
	"/twice": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.WriteHeader(201)
		w.WriteHeader(202)
		return nil
	},
	"/interim": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(103)
		w.Header().Del("Link")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/trailers": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		w.Header().Set("Trailer", "A")
		io.WriteString(w, "body")
		err := rc.Flush()
		w.Header().Set("A", "1")
		w.Header().Set(http.TrailerPrefix+"B", "2")
		return err
	},
	"/flush-first": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.Flush()
		w.WriteHeader(500)
		return err
	},
	"/empty-write": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		_, err := w.Write(nil)
		w.WriteHeader(500)
		return err
	},
	"/too-much": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "3")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/too-little": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "30")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/copy": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		n, err := io.Copy(w, io.MultiReader(strings.NewReader(strings.Repeat("x", 50)), errorReader{}))
		return fmt.Sprint(n, err)
	},
	"/file": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		http.ServeFile(w, r, "go.mod")
		return nil
	},
	"/abort": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		io.WriteString(w, "body")
		rc.Flush()
		panic(http.ErrAbortHandler)
	},
	"/read": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		b, err := io.ReadAll(r.Body)
		return fmt.Sprintf("%.20q %d %v %v", b, len(b), err, r.Trailer)
	},
	"/close": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any { return r.Body.Close() },
	"/full-duplex": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.EnableFullDuplex()
		io.WriteString(w, "first")
		rc.Flush()
		b, _ := io.ReadAll(r.Body)
		return fmt.Sprint(err, len(b))
	},
	"/late": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.SetReadDeadline(time.Now().Add(-time.Second))
		_, read := io.ReadAll(r.Body)
		return fmt.Sprint(err, read != nil)
	},
	"/timeout": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			time.Millisecond, "slow").ServeHTTP(w, r)
		return nil
	},
	"/hijack": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		conn, _, err := rc.Hijack()
		if err == nil {
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nraw")
			_, err = io.WriteString(w, "late")
		}
		return err
	},
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("source") }

// TestTransparent: apart from the fields about limits, a client and the handlers around a Limiter
// see the same as without it, and so does the handler.
func TestTransparent(t *testing.T) {
	plain := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1e6, 10_000*time.Hour)}}
	settled, held, read := plain, plain, plain
	settled.Settle = weir.RefundErrors
	held.Limits = []weir.Limit{algorithms.InFlight(9, time.Hour)}
	read.Key, read.Settle = weir.ByJSON("user", 1000), weir.RefundErrors
	var running sync.WaitGroup
	var mu sync.Mutex
	var seen []string
	serve := func(limit func(http.Handler) http.Handler) *httptest.Server {
		inner := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Pattern = fmt.Sprint(answering[r.URL.Path](w, r, http.NewResponseController(w)))
		}))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprint(r.Method, r.URL, r.Header, r.Pattern))
			}()
			inner.ServeHTTP(w, r)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Start()
		return server
	}
	exchange := func(server *httptest.Server, request string) string {
		conn := dial(t, server.Listener.Addr().String())
		defer conn.Close()
		go io.WriteString(conn, request+"HEAD /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		answers, err := io.ReadAll(conn)
		running.Wait()
		text := ofTheServer.ReplaceAllString(fmt.Sprintf("%s%q %v", answers, seen, err != nil), "")
		seen = nil
		return text
	}
	without := serve(func(h http.Handler) http.Handler { return h })
	defer without.Close()
	for name, o := range map[string]weir.Options{
		"plain":         {Rules: []weir.Rule{plain}, Headers: headers.IETF},
		"NoFromContext": {Rules: []weir.Rule{plain}, NoFromContext: true},
		"Settle":        {Rules: []weir.Rule{settled}},
		"InFlight":      {Rules: []weir.Rule{held}, MaxWait: time.Second},
		"ByJSON":        {Rules: []weir.Rule{read}},
		"KeepHeaders":   {Rules: []weir.Rule{plain}},
	} {
		limit := must(t, memory(), o).Handler
		if name == "KeepHeaders" {
			limit = func(h http.Handler) http.Handler { return must(t, memory(), o).Handler(weir.KeepHeaders(h)) }
		}
		with := serve(limit)
		for path := range answering {
			for _, request := range []string{
				"GET %s HTTP/1.1\r\nHost: x\r\n\r\n",
				"HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n",
				"GET %s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
				"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"user\":1",
				"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2\r\n{}\r\n0\r\nA: 1\r\n\r\n",
				"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("a", 300_000),
				"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n" + strings.Repeat("a", 300_000) + "\r\n0\r\n\r\n",
			} {
				if len(request) > 1000 && path != "/close" && path != "/read" && path != "/nothing" {
					continue // the rest of the body may reset the connection before the answer arrives
				}
				request := fmt.Sprintf(request, path)
				if got, want := exchange(with, request), exchange(without, request); got != want {
					t.Errorf("%s, %.60q: got %q, want %q", name, request, got, want)
				}
			}
		}
		with.Close()
	}
}

// TestTransparentOverHTTP2: the same over HTTP/2.
func TestTransparentOverHTTP2(t *testing.T) {
	plain := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(9, time.Hour)}}
	settled := plain
	settled.Limits, settled.Settle = []weir.Limit{algorithms.FixedWindow(1e6, 10_000*time.Hour)}, weir.RefundErrors
	held, refunded := must(t, memory(), weir.Options{Rules: []weir.Rule{plain}, MaxWait: time.Second}), must(t, memory(), weir.Options{Rules: []weir.Rule{settled}})
	exchange := func(limit func(http.Handler) http.Handler, method, path, body string) string {
		inner := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Pattern = fmt.Sprint(answering[r.URL.Path](w, r, http.NewResponseController(w)))
		}))
		seen := make(chan string, 1)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { seen <- fmt.Sprintln(r.Proto, r.Method, r.URL, r.ContentLength, r.Pattern, r.Trailer) }()
			inner.ServeHTTP(w, r)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.EnableHTTP2 = true
		server.StartTLS()
		interim := ""
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			interim += fmt.Sprint(code, h["Link"])
			return nil
		}})
		r, _ := http.NewRequestWithContext(ctx, method, server.URL+path, nil)
		if body != "" {
			r.Body, r.Trailer = io.NopCloser(strings.NewReader(body)), http.Header{"A": {"1"}}
		}
		got := ""
		if res, err := server.Client().Do(r); err != nil {
			got = "no answer"
		} else {
			b, err := io.ReadAll(res.Body)
			got = fmt.Sprintf("%d %q %v %v", res.StatusCode, b, err != nil, res.Trailer)
			for _, f := range []string{"Content-Length", "Content-Type", "Trailer", "Accept-Ranges"} {
				got += fmt.Sprintf(" %s: %q", f, res.Header[f])
			}
			res.Body.Close()
		}
		defer server.Close()
		return interim + got + "\n" + <-seen
	}
	for path := range answering {
		if path == "/late" { // the deadline may pass before or after the read
			continue
		}
		for _, c := range []struct{ method, body string }{{"GET", ""}, {"POST", "{\"user\":1"}, {"POST", strings.Repeat("a", 300_000)}} {
			want := exchange(func(h http.Handler) http.Handler { return h }, c.method, path, c.body)
			for name, limit := range map[string]func(http.Handler) http.Handler{
				"InFlight": held.Handler, "Settle": refunded.Handler,
				"KeepHeaders": func(h http.Handler) http.Handler { return held.Handler(weir.KeepHeaders(h)) },
			} {
				if got := exchange(limit, c.method, path, c.body); got != want {
					t.Errorf("%s, %s %s with %d bytes: got\n%s, want\n%s", name, c.method, path, len(c.body), got, want)
				}
			}
		}
	}
}

// ofTheServer matches the lines that differ between two servers: fields about limits, and times.
var ofTheServer = regexp.MustCompile(`(X-)?Rate[lL]imit[^:]*:.*\r\n|(Date|Last-Modified):.*\r\n`)
