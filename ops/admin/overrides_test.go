package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
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
		if w.Code != tt.code || !strings.Contains(p.Detail, tt.want) || strings.Contains(p.Detail, "ForKey") {
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

// TestTypedKeys: operators type the plain key of a rule whose keys a file hashes. Neither the log nor
// the store gets it. A key that no request has is refused, as in the file.
func TestTypedKeys(t *testing.T) {
	secret := []byte("a secret of 16 bytes or more")
	store, keeper := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
	recorder := watch.NewRecorder(100, 1)
	var log bytes.Buffer
	files := fstest.MapFS{"r.yaml": {Data: []byte(`limits:
- {name: api, key: "hashed:header:X-Api-Key", penalty: {strikes: {limit: 2, period: 60}, for: 600}, config: [{limit: 1, period: 1h}]}
- {name: first, key: {first-of: ["hashed:header:X-Api-Key", ip]}, config: [{limit: 1, period: 1h}]}
- {name: joined, key: ["hashed:header:X-Api-Key", method], config: [{limit: 1, period: 1h}]}
- {name: addr, key: "hashed:ip", config: [{limit: 1, period: 1h}]}
- {name: ip, key: ip, config: [{limit: 1, period: 1h}]}
- {name: user, key: basic-auth-user, config: [{limit: 1, period: 1h}]}
`)}}
	f, err := config.Open("r.yaml", store, config.Options{FS: files, Overrides: keeper, Secret: secret, Limiter: weir.Options{Observe: recorder.Observe, Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	served := f.Handler("api")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h, err := admin.New(store, admin.Options{Limiters: f.Limiters, File: f, Overrides: keeper, Recorder: recorder, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.HandlerOfAll(); err != nil {
		t.Fatal(err)
	}
	code := func() int {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("X-Api-Key", "sk-alice")
		served.ServeHTTP(w, r)
		return w.Code
	}
	for range 6 {
		code()
	}
	digest := weir.HashedKey(secret, "sk-alice")
	for _, step := range []struct {
		method, target, body string
		code                 int
		want                 string
	}{
		{"GET", "/explain?rule=api&key=sk-alice", "", 200, `"refused":true`},
		{"GET", "/explain?key=sk-alice&from=192.0.2.1", "", 200, `"looked_up":"` + digest + `"`},
		{"GET", "/refusals?key=sk-alice", "", 200, `"key":"` + digest + `"`},
		{"GET", "/?tab=keys&rule=api&key=sk-alice", "", 200, "banned"},
		{"POST", "/unban?rule=api&key=sk-alice", "", 200, `"banned_for":0`},
		{"POST", "/override?rule=api&key=sk-alice", `{"limits": [{"quota": 9}]}`, 200, `"overridden":true`},
		{"POST", "/reset?rule=api&key=" + digest, "", 200, `"remaining":9`},
		{"POST", "/override?rule=api&prefix=sk-", `{"denied": true}`, 400, "its keys are hashed"},
		{"POST", "/override?rule=api&prefix=", `{"denied": true}`, 200, `"all":true`},
		{"DELETE", "/override?rule=api&prefix=", "", 200, ``},
		{"POST", "/override?rule=first&key=0:sk-alice", `{"denied": true}`, 200, `"key":"0:` + digest + `"`},
		{"POST", "/override?rule=joined&key=8:sk-alice,4:POST,", `{"denied": true}`, 200, `"key":"22:` + digest + `,4:POST,"`},
		{"GET", "/explain?rule=joined&key=22:" + digest + ",4:POST,", "", 200, `"listed":"deny"`},
		{"POST", "/override?rule=joined&key=sk-alice", `{"denied": true}`, 400, "a list of keys makes a key such as"},
		{"POST", "/override?rule=first&key=alice", `{"denied": true}`, 400, `want \"0:alice\"`},
		{"POST", "/override?rule=addr&key=192.0.2.1", `{"denied": true}`, 200, weir.HashedKey(secret, "192.0.2.1")},
		{"POST", "/override?rule=addr&key=alice", `{"denied": true}`, 400, "want an address such as 192.0.2.1"},
		{"POST", "/override?rule=ip&key=alice", `{"denied": true}`, 400, `\"alice\" is never the key of rule \"ip\": want an address`},
		{"POST", "/override?rule=ip&prefix=a", `{"denied": true}`, 200, `"prefix":"a"`},
		{"POST", "/override?rule=ip&prefix=x", `{"denied": true}`, 400, `is never the key`},
		{"POST", "/reset?rule=ip&key=unknown", "", 200, `"remaining":1`},
		{"POST", "/unban?rule=api&key=sk-alcie", "", 200, `"unchanged":"lifted no ban, because it had neither a ban nor strikes"`},
		{"POST", "/reset?rule=user&key=alcie", "", 200, `"unchanged":"refunded no units, because it had spent none"`},
		{"POST", "/reset?rule=user&key=Alice", "", 400, `want \"alice\"`},
		{"GET", "/explain?rule=user&key=Alice", "", 200, `no request has this key: \"Alice\" is never the key of rule \"user\"`},
	} {
		if w := send(h, step.method, step.target, step.body); w.Code != step.code || !strings.Contains(w.Body.String(), step.want) {
			t.Errorf("%s %s: got %d, %s, want %d, %s", step.method, step.target, w.Code, w.Body, step.code, step.want)
		}
	}
	for _, o := range keeper.All() {
		if strings.Contains(o.Key, "sk-alice") {
			t.Errorf("the store has the override of %q", o.Key)
		}
	}
	if strings.Contains(log.String(), "sk-alice") || !strings.Contains(log.String(), digest) {
		t.Errorf("the log has the plain key, or no hash:\n%s", &log)
	}
	if got := code(); got != 200 {
		t.Errorf("after the changes: got %d, want 200", got)
	}
	// An override that an earlier version has stored under the plain key can be removed.
	if err := keeper.Set(t.Context(), "api", overrides.Entry{Key: "sk-old", Denied: true}, 0, ""); err != nil {
		t.Fatal(err)
	}
	if w := send(h, "DELETE", "/override?rule=api&key=sk-old", ""); w.Code != 200 {
		t.Errorf("DELETE of an override under a plain key: got %d, %s", w.Code, w.Body)
	}
}
