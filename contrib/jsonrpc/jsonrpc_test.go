package jsonrpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/jsonrpc"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// TestCost: a batch costs what it holds, and one that cannot be counted is refused.
func TestCost(t *testing.T) {
	for _, c := range []struct {
		body string
		want int64
	}{
		{``, 1},
		{`  `, 1},
		{`{"method":"a","id":1}`, 1},
		{`{"method":"` + strings.Repeat("a", 200) + `"}`, 1},
		{`"a"`, 1},
		{`x` + strings.Repeat("a", 200), -1}, // may hold a batch that the server can read
		{"\ufeff[1,2]", -1},
		{"\x00[\x001\x00]", -1},
		{"\x1f\x8b\x08", -1},
		{`[]`, 1},
		{` [ {"id":1} ]`, 1},
		{`[{"id":1},{"id":[2,3,{}]},4]`, 3},
		{"\t[[1,2],[3]]", 2},
		{`[{"id":1}`, -1},
		{`[{"id":1}]x`, -1},
		{"[{\"id\":\"\xff\"}]", -1}, // a server may read fewer elements, or more
		{`[` + strings.Repeat("1,", 100) + `1]`, -1},
		{`[1]` + strings.Repeat(" ", 97) + `[2]`, -1},
	} {
		for _, known := range []bool{true, false} {
			r := httptest.NewRequest("POST", "/", strings.NewReader(c.body))
			if !known {
				r.ContentLength = -1
			}
			for range 2 { // two rules
				if got := jsonrpc.Cost(100)(r); got != c.want {
					t.Errorf("%.40q, length known %v: got %d, want %d", c.body, known, got, c.want)
				}
			}
			if got, err := io.ReadAll(r.Body); string(got) != c.body || err != nil {
				t.Errorf("%.40q: the handler reads %.40q, %v", c.body, got, err)
			}
		}
	}
}

// TestCostEncoded: a batch costs no less than it holds because it is compressed.
func TestCostEncoded(t *testing.T) {
	for body, want := range map[string]int64{"": 1, "{\x00": -1, "[\x00": -1, "[1,2]": -1} { // br may begin with any byte
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Encoding", "br")
		if got := jsonrpc.Cost(100)(r); got != want {
			t.Errorf("%q: got %d, want %d", body, got, want)
		}
	}
}

// refuse returns the answer to a body whose request is refused.
func refuse(t *testing.T, store weir.Store, rule weir.Rule, body string) *httptest.ResponseRecorder {
	t.Helper()
	rule.Name = "tools"
	if rule.Key == nil {
		rule.Key = weir.Global()
	}
	l, err := weir.New(store, weir.Options{OnLimited: jsonrpc.OnLimited(1000, jsonrpc.CodeLimited), OnError: weir.FailClosed, Rules: []weir.Rule{rule}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	for range 2 {
		w = httptest.NewRecorder()
		l.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body)))
	}
	return w
}

var limits = []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}

// TestOnLimited: each request of a refused body gets an error with its id.
func TestOnLimited(t *testing.T) {
	hundred := "[" + strings.TrimSuffix(strings.Repeat(`{"id":1,"method":""},`, 40), ",") + "]"
	for _, c := range []struct {
		body string
		ids  string // of the errors; empty: an answer of HTTP
	}{
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call"}`, "7"},
		{`{"jsonrpc":"2.0","id":"a\"b","method":"tools/call"}`, `"a\"b"`},
		{` { "method" : "x", "id" : -1.5e3 } `, "-1.5e3"},
		{`[{"id":1,"method":"a"},{"method":"note"},{"id":2,"result":{}},{"id":3,"method":"b"},5,[6]]`, "[1,3]"},
		{`[{"id":1,"method":"a"}]`, "[1]"},
		{hundred, "[" + strings.TrimSuffix(strings.Repeat("1,", 40), ",") + "]"},
		{`{"method":"notifications/initialized"}`, ""},
		{`{"id":1,"result":{}}`, ""},
		{`{"id":null,"method":"a"}`, "null"}, // only a request without an id is a notification
		{`{"id":true,"method":"a"}`, ""},
		{`{"id":{"a":1},"method":"a"}`, ""},
		{`{"id":1,"id":2,"method":"a"}`, ""},
		{`{"id":1,"method":"` + strings.Repeat("a", 1000) + `"}`, ""},
		{`{"id":1,"method":"a"`, ""},
		{`[]`, ""},
		{`7`, ""},
		{``, ""},
	} {
		w := refuse(t, weirtest.Memory(), weir.Rule{Limits: limits}, c.body)
		h := w.Header()
		if c.ids == "" {
			if w.Code != 429 || h.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%.60s: %d %v", c.body, w.Code, h)
			}
			continue
		}
		if w.Code != 200 || h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" || h.Get("Retry-After") == "" {
			t.Errorf("%.60s: %d %v", c.body, w.Code, h)
		}
		type message struct {
			JSONRPC string
			ID      json.RawMessage
			Error   struct {
				Code    int
				Message string
				Data    struct {
					Reason     string
					RetryAfter int
				}
			}
		}
		var all []message
		text := w.Body.String()
		if c.ids[0] != '[' {
			text = "[" + text + "]"
		}
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Errorf("%.60s: %s: %v", c.body, text, err)
		}
		var ids []string
		for _, m := range all {
			ids = append(ids, string(m.ID))
			if m.JSONRPC != "2.0" || m.Error.Code != jsonrpc.CodeLimited || m.Error.Data.Reason != "limit" || fmt.Sprint(m.Error.Data.RetryAfter) != h.Get("Retry-After") ||
				m.Error.Message != "Too many requests. Try again in "+h.Get("Retry-After")+" seconds." {
				t.Errorf("%.60s: %+v", c.body, m)
			}
		}
		if got := strings.Join(ids, ","); got != strings.Trim(c.ids, "[]") {
			t.Errorf("%.60s: ids %s, want %s", c.body, got, c.ids)
		}
	}
}

// TestBound: the answer to a batch of many requests does not have an error for each.
func TestBound(t *testing.T) {
	l, err := weir.New(weirtest.Memory(), weir.Options{OnLimited: jsonrpc.OnLimited(1<<20, jsonrpc.CodeLimited), Rules: []weir.Rule{{Name: "tools", Key: weir.Global(), Cost: jsonrpc.Cost(1 << 20), Limits: limits}}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	body := "[" + strings.Repeat(`{"id":1,"method":""},`, 40_000) + "1]"
	l.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body)))
	if w.Code != 429 || w.Body.Len() > 1000 {
		t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
	}
}

// TestReasons: the error says why, and has a wait only if one helps.
func TestReasons(t *testing.T) {
	busy := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrBusy })
	for _, c := range []struct {
		store weir.Store
		rule  weir.Rule
		want  string
	}{
		{weirtest.Memory(), weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Denied() }}, `{"code":429,"message":"Abnormal usage was detected.","data":{"reason":"deny"}}`},
		{weirtest.Memory(), weir.Rule{Key: weir.ByHeader("X-None"), NoKey: weir.NoKeyRefuse, Limits: limits}, `{"code":429,"message":"The request lacks the value by which it is limited.","data":{"reason":"no-key"}}`},
		{busy, weir.Rule{Limits: limits}, `{"code":429,"message":"The service has less capacity for now. Try again in a second.","data":{"reason":"error","retryAfter":1}}`},
	} {
		if got, want := refuse(t, c.store, c.rule, `{"id":1,"method":"a"}`).Body.String(), `{"jsonrpc":"2.0","id":1,"error":`+c.want+"}\n"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	w := httptest.NewRecorder()
	jsonrpc.OnLimited(100, -32023).ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(`{"id":1,"method":"a"}`))) // outside of a limiter
	if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32023,"message":"Too many requests.","data":{"reason":"limit"}}}` + "\n"; w.Body.String() != want {
		t.Errorf("got %s, want %s", w.Body, want)
	}
}

func TestPanics(t *testing.T) {
	for _, f := range []func(){func() { jsonrpc.Cost(0) }, func() { jsonrpc.OnLimited(-1, 1) }} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "jsonrpc: ") {
					t.Errorf("got %q", got)
				}
			}()
			f()
		}()
	}
}

// FuzzOnLimited: whatever the body is, the answer is JSON, and the errors have the ids of the body.
func FuzzOnLimited(f *testing.F) {
	for _, s := range []string{``, `{}`, `[]`, `{"id":1,"method":"a"}`, `[{"id":"\u0000","method":1},{"ID":2,"Method":""}]`, `{"id":1,"method"`, `[[{"id":1,"method":"a"}]]`, `{"id":tru`} {
		f.Add(s)
	}
	h := jsonrpc.OnLimited(100, jsonrpc.CodeLimited)
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		cost := jsonrpc.Cost(100)(r)
		h.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) || w.Code != 200 && w.Code != 429 {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
		var batch []json.RawMessage
		if len(body) < 100 && utf8.ValidString(body) && json.Unmarshal([]byte(body), &batch) == nil && batch != nil && cost != max(1, int64(len(batch))) {
			t.Errorf("%q: cost %d", body, cost)
		}
		if cost == 0 || cost < -1 || cost > 100 {
			t.Errorf("%q: cost %d", body, cost)
		}
	})
}

func Example() {
	limiter, err := weir.New(weirtest.Memory(), weir.Options{
		OnLimited: jsonrpc.OnLimited(64<<10, jsonrpc.CodeLimited),
		Rules: []weir.Rule{{
			Name: "tools", Key: weir.ByHeader("X-User"), Cost: jsonrpc.Cost(64 << 10),
			Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)},
		}},
	})
	if err != nil {
		panic(err)
	}
	h := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "served") }))
	for range 2 {
		r := httptest.NewRequest("POST", "/", strings.NewReader(`[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":2,"method":"b"}]`))
		r.Header.Set("X-User", "ann")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(strings.Count(w.Body.String(), fmt.Sprint(jsonrpc.CodeLimited)), "errors")
	}
	// Output:
	// 0 errors
	// 2 errors
}
