package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/overrides"
)

type operatorKey struct{}

// A file is a file of rules with three successful reloads and two failed ones.
type file struct{}

func (file) Version() string                 { return "v7" }
func (file) Reloads() (loaded, failed int64) { return 3, 2 }
func (file) Err() error                      { return errors.New("rules.yaml:3:7: a mistake") }
func (file) Rules() []weir.Rule              { return nil }

// newOverridden returns a limiter that allows each user 2 requests an hour, an admin handler that
// can override this limit, and the log of the handler.
func newOverridden(t *testing.T, more ...weir.Limit) (*weir.Limiter, http.Handler, *bytes.Buffer) {
	store := memstore.New(memstore.Options{})
	live := overrides.NewLive(overrides.LiveOptions{})
	rule := hourly("api", 2)
	rule.Limits = append(rule.Limits, more...)
	rule.ForKey = live.Of("api", func(key string) weir.Policy {
		return map[string]weir.Policy{"filed": weir.Limited(weir.Limit{Quota: 3, Period: time.Hour})}[key]
	})
	l := must(t, store, rule)
	var log bytes.Buffer
	h, err := admin.New(store, admin.Options{
		Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Overrides: live, File: file{},
		Who: func(ctx context.Context) string { who, _ := ctx.Value(operatorKey{}).(string); return who }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, "olga")))
	}), &log
}

// TestOverride: an override applies until it is removed. /state, /overrides and the log show it.
func TestOverride(t *testing.T) {
	l, h, log := newOverridden(t)
	step := func(method, target, body string, code int, want string) {
		t.Helper()
		w := send(h, method, target, body)
		if got := w.Body.String(); w.Code != code || !strings.Contains(got, want) {
			t.Errorf("%s %s: got %d, %s, want %d, %s", method, target, w.Code, got, code, want)
		}
	}
	if n := spend(l, "alice", 3); n != 2 {
		t.Fatalf("%d served", n)
	}
	step("POST", "/override?rule=api&key=alice", `{"limits": [{"quota": 5}], "seconds": 3600, "note": "ticket 7"}`, 200, `"overridden":true,"banned_for":0,"limits":[{"name":"1h","algorithm":"anchored-window","quota":5,"period":3600,"burst":5,"remaining":3`)
	if n := spend(l, "alice", 9); n != 3 {
		t.Errorf("%d served after the limit was raised, want 3", n)
	}
	step("GET", "/overrides", "", 200, `{"rule":"api","key":"alice","limits":[{"quota":5}],"ends_after":35`)
	step("GET", "/overrides?rule=api", "", 200, `"note":"ticket 7"`)
	step("POST", "/override?rule=api&prefix=al", `{"unlimited": true}`, 200, `"prefix":"al","unlimited":true}`)
	step("GET", "/state?key=alf", "", 200, `"listed":"allow","overridden":true`)
	step("POST", "/override?rule=api&key=mallory", `{"denied": true}`, 200, `"listed":"deny","overridden":true,"banned_for":0,"limits":[]`)
	step("POST", "/reset?rule=api&key=mallory", "", 200, `"limits":[]`)
	if n := spend(l, "mallory", 1); n != 0 {
		t.Error("mallory is served")
	}
	step("GET", "/state?key=filed", "", 200, `"quota":3`)
	step("DELETE", "/override?rule=api&key=alice", "", 200, `"listed":"allow","overridden":true`) // the override of the prefix al is left
	step("DELETE", "/override?rule=api&prefix=al", "", 200, `[{"rule":"api","key":"mallory","denied":true}]`)
	step("GET", "/state?key=alice", "", 200, `"limits":[{"name":"1h","algorithm":"anchored-window","quota":2,"period":3600,"burst":2,"remaining":0`)
	step("DELETE", "/override?rule=api&key=alice", "", 404, `no override of the key`)
	step("GET", "/rules", "", 200, `{"version":"v7","reloads":{"loaded":3,"failed":2,"error":"rules.yaml:3:7: a mistake"},"rules":[`)
	if n := spend(l, "alice", 1); n != 0 {
		t.Error("alice is served")
	}
	want := `level=INFO msg="admin: change made" who=olga change="POST /override" rule=api key=alice body="{\"limits\": [{\"quota\": 5}], \"seconds\": 3600, \"note\": \"ticket 7\"}"`
	if got := log.String(); !strings.Contains(got, want) || strings.Count(got, "who=olga") != 7 || !strings.Contains(got, `level=WARN msg="admin: change failed" who=olga change="DELETE /override"`) {
		t.Errorf("got the log\n%s\nwant\n%s", got, want)
	}
}

// TestOverrideMistakes: an override with an error changes nothing, and the answer names the
// error.
func TestOverrideMistakes(t *testing.T) {
	_, two, _ := newOverridden(t, algorithms.GCRA(1, time.Second))
	_, one, _ := newOverridden(t)
	none := newAdmin(t, memstore.New(memstore.Options{}), must(t, memstore.New(memstore.Options{}), hourly("api", 2)))
	for _, tt := range []struct {
		h            http.Handler
		method, path string
		body         string
		code         int
		want         string
	}{
		{one, "POST", "/override?rule=ap&key=a", `{"denied": true}`, 404, "known are api"},
		{one, "POST", "/override?rule=api", `{"denied": true}`, 400, "the query has no key, prefix or network"},
		{one, "POST", "/override?rule=api&key=a", `{}`, 400, "has no limits"},
		{one, "POST", "/override?rule=api&key=", `{"denied": true}`, 400, "an entry has none of Key, Prefix, All and Network"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"limit": 5}]}`, 400, `unknown field`},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 0}]}`, 400, "or denied to refuse the key"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": -1}]}`, 400, "quota is -1; want at least 1"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 5}], "denied": true}`, 400, "more than one of"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 5}, {"quota": 6}]}`, 400, "the Algorithm is nil"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 5, "period": -1}]}`, 400, "want 0 to 1125899906 seconds"},
		{one, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 5, "algorithm": "gcr"}]}`, 400, "unknown algorithm"},
		{one, "POST", "/override?rule=api&key=a", `{"denied": true, "seconds": -5}`, 400, "seconds is -5"},
		{one, "POST", "/override?rule=api&key=a", `{"denied": true, "note": "` + strings.Repeat("n", 4056) + `"}`, 200, ""},
		{one, "DELETE", "/override?rule=api&key=a", "", 200, ""},
		{one, "POST", "/override?rule=api&key=a", `{"denied": true, "note": "` + strings.Repeat("n", 5000) + `"}`, 413, "larger than 4096 bytes"},
		{one, "POST", "/override?rule=api&prefix=" + strings.Repeat("a", 200), `{"denied": true}`, 400, "has 200 bytes; want at most 128"},
		{one, "POST", "/override?rule=api&key=a&prefix=a", `{"denied": true}`, 400, "the query has key and prefix; want one of them"},
		{one, "POST", "/override?rule=api&network=a", `{"denied": true}`, 400, `network is "a"; want one such as 192.0.2.0/24`},
		{one, "PUT", "/override?rule=api&key=a", `{"denied": true}`, 405, "POST and DELETE"},
		{one, "GET", "/overrides?rule=ap", ``, 404, "known are api"},
		{two, "POST", "/override?rule=api&key=a", `{"limits": [{"quota": 5}]}`, 400, "the Algorithm is nil"},
		{two, "POST", "/override?rule=api&key=a", `{"limits": [{"name": "1h", "quota": 5}, {"name": "1h", "quota": 6}]}`, 400, `two limits are named`},
		{none, "POST", "/override?rule=api&key=a", `{"denied": true}`, 404, "Options.Overrides is not set"},
		{none, "DELETE", "/override?rule=api&key=a", ``, 404, "Options.Overrides is not set"},
		{none, "GET", "/overrides", ``, 404, "Options.Overrides is not set"},
	} {
		w := send(tt.h, tt.method, tt.path, tt.body)
		var p struct{ Detail string }
		json.Unmarshal(w.Body.Bytes(), &p)
		if w.Code != tt.code || !strings.Contains(p.Detail, tt.want) {
			t.Errorf("%s %.40s %.60s: got %d, %s, want %d, %s", tt.method, tt.path, tt.body, w.Code, p.Detail, tt.code, tt.want)
		}
	}
	for _, h := range []http.Handler{one, two} {
		if got := send(h, "GET", "/overrides", "").Body.String(); !strings.Contains(got, `"overrides":[]`) {
			t.Errorf("after mistakes: %s", got)
		}
	}
}

// An operator raises the limit of one customer for a day. With curl the request is
//
//	curl -H 'Content-Type: application/json' -d '{"limits": [{"quota": 1000}], "seconds": 86400}' \
//		'https://localhost:9000/admin/override?rule=api&key=alice'
func ExampleHandler_overrides() {
	store, live := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
	api, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, ForKey: live.Of("api", nil),
	}}})
	if err != nil {
		panic(err)
	}
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{api} }, Overrides: live})
	if err != nil {
		panic(err)
	}
	w := send(h, "POST", "/override?rule=api&key=alice", `{"limits": [{"quota": 1000}], "seconds": 86400}`)
	fmt.Print(w.Code, w.Body)
	// Output:
	// 200 {"key":"alice","rules":[{"rule":"api","overridden":true,"banned_for":0,"limits":[{"name":"1m","algorithm":"gcra","quota":1000,"period":60,"burst":1000,"remaining":1000,"next_after":0,"reset_after":0}]}]}
}
