package admin_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/quota"
)

var byUser = weir.ByHeader("X-User")

// hourly returns a rule that allows each user n requests in an hour, which begins with the first
// request.
func hourly(name string, n int64) weir.Rule {
	return weir.Rule{Name: name, Key: byUser, Limits: []weir.Limit{algorithms.AnchoredWindow(n, time.Hour)}}
}

func must(t *testing.T, store weir.Store, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, weir.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newAdmin(t *testing.T, store weir.Store, limiters ...*weir.Limiter) *admin.Handler {
	t.Helper()
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return limiters }})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var served = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// send sends a request with a JSON body to h. header has names and values in turn.
func send(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// spend sends n requests of a user through l and returns how many were served.
func spend(l *weir.Limiter, user string, n int) (passed int) {
	for range n {
		if send(l.Handler(served), "GET", "/", "", "X-User", user).Code == 200 {
			passed++
		}
	}
	return passed
}

// TestAnswers: each path answers with the JSON that the package comment describes.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		api := weir.Rule{
			Name: "api", Key: byUser, Unit: "tokens", Enforce: weir.Percent(75),
			Limits: []weir.Limit{algorithms.GCRA(60, time.Minute).WithBurst(5), algorithms.AnchoredWindow(10, time.Hour)},
		}
		login := hourly("login", 3)
		login.ForKey = func(key string) weir.Policy {
			return map[string]weir.Policy{"root": weir.Allowed(), "mallory": weir.Denied()}[key]
		}
		login.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
		tiers := weir.Rule{Name: "tiers", Key: byUser, Policy: func(*http.Request) weir.Policy { return weir.Policy{} }}
		h := newAdmin(t, store, must(t, store, api, login), must(t, store, tiers))
		for range 3 {
			tx := quota.Transaction{}
			for _, l := range must(t, store, api).Rules()[0].Limits {
				tx.Charges = append(tx.Charges, quota.Charge{Rule: "api", Key: "anna", Limit: l, Cost: 1})
			}
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
		}

		const apiLimits = `{"name":"1m","algorithm":"gcra","quota":60,"period":60,"burst":5%s},{"name":"1h","algorithm":"anchored-window","quota":10,"period":3600,"burst":10%s}`
		const loginLimit = `{"name":"1h","algorithm":"anchored-window","quota":3,"period":3600,"burst":3`
		for _, tt := range []struct{ method, target, body, want string }{
			{"GET", "/rules", "", `{"rules":[{"name":"api","unit":"tokens","enforce":75,"limits":[` + fmt.Sprintf(apiLimits, "", "") + `]},` +
				`{"name":"login","unit":"requests","enforce":100,"limits":[` + loginLimit + `}],"penalty":{"strikes":{"name":"1m","algorithm":"anchored-window","quota":10,"period":60,"burst":10},"for":60,"most":86400}},` +
				`{"name":"tiers","unit":"requests","enforce":100,"limits":null}]}`},
			{"GET", "/state?key=anna", "", `{"key":"anna","rules":[{"rule":"api","banned_for":0,"limits":[` +
				fmt.Sprintf(apiLimits, `,"remaining":2,"next_after":1,"reset_after":3`, `,"remaining":7,"next_after":3600,"reset_after":3600`) + `]},` +
				`{"rule":"login","banned_for":0,"limits":[` + loginLimit + `,"remaining":3,"next_after":0,"reset_after":0}]},` +
				`{"rule":"tiers","banned_for":0,"limits":null}]}`},
			{"GET", "/state?key=root&rule=login", "", `{"key":"root","rules":[{"rule":"login","listed":"allow","banned_for":0,"limits":[` + loginLimit + `,"remaining":3,"next_after":0,"reset_after":0}]}]}`},
			{"GET", "/state?key=mallory&rule=login", "", `{"key":"mallory","rules":[{"rule":"login","listed":"deny","overridden":true,"banned_for":0,"limits":[]}]}`},
			{"POST", "/grant?rule=api&key=anna", `{"units": 2}`, `{"key":"anna","rules":[{"rule":"api","banned_for":0,"limits":[` +
				fmt.Sprintf(apiLimits, `,"remaining":4,"next_after":1,"reset_after":1`, `,"remaining":9,"next_after":3600,"reset_after":3600`) + `]}]}`},
			{"POST", "/grant?rule=api&key=anna", `{"units": 9000000000000000000}`, `{"key":"anna","rules":[{"rule":"api","banned_for":0,"limits":[` +
				fmt.Sprintf(apiLimits, `,"remaining":5,"next_after":0,"reset_after":0`, `,"remaining":10,"next_after":0,"reset_after":0`) + `]}]}`},
			{"POST", "/ban?rule=login&key=rounded", `{"seconds": 9.869758}`, `{"key":"rounded","rules":[{"rule":"login","banned_for":9.869758,"limits":[` + loginLimit + `,"remaining":3,"next_after":0,"reset_after":0}]}]}`},
			{"POST", "/ban?rule=login&key=eve", `{"seconds": 0.25}`, `{"key":"eve","rules":[{"rule":"login","banned_for":0.25,"limits":[` + loginLimit + `,"remaining":3,"next_after":0,"reset_after":0}]}]}`},
			{"GET", "/state?rule=tiers&key=", "", `{"key":"","rules":[{"rule":"tiers","banned_for":0,"limits":null}]}`},
		} {
			w := send(h, tt.method, tt.target, tt.body)
			if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != tt.want || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: got %d\n%s\nwant\n%s", tt.method, tt.target, w.Code, got, tt.want)
			}
		}
	})
}

// TestMistakes: a request with an error gets problem details that name the error.
func TestMistakes(t *testing.T) {
	store := memstore.New(memstore.Options{})
	tiers := weir.Rule{Name: "tiers", Key: byUser, Policy: func(*http.Request) weir.Policy { return weir.Policy{} }}
	h := newAdmin(t, store, must(t, store, hourly("api", 3), tiers))
	const units = `{"units": 1}`
	for _, tt := range []struct {
		method, target, body, contentType string
		status                            int
		want                              string
	}{
		{"GET", "/stat", "", "", 404, `unknown path "/stat"; known are GET /, /rules, /state, /explain, /top, /refusals, /bans, /overrides and /changes, POST /reset, /grant, /ban, /unban, /override, /undo and /try, and DELETE /override`},
		{"GET", "/states?key=a", "", "", 404, `unknown path "/states"; known are GET /, /rules, /state, /explain, /top, /refusals, /bans, /overrides and /changes, POST /reset, /grant, /ban, /unban, /override, /undo and /try, and DELETE /override`},
		{"GET", "/reset?rule=api&key=a", "", "", 405, "/reset accepts only POST"},
		{"DELETE", "/state?key=a", "", "", 405, "/state accepts only GET and HEAD"},
		{"GET", "/rules?rule=api", "", "", 400, `the query has an unknown parameter "rule"; /rules takes none`},
		{"GET", "/state", "", "", 400, "the query has no key"},
		{"GET", "/state?key=%zz", "", "", 400, `the query can't be read: invalid URL escape "%zz"`},
		{"GET", "/state?key=a&key=b", "", "", 400, "the query has more than one key"},
		{"GET", "/state?key=a&rul=api", "", "", 400, `the query has an unknown parameter "rul"; known are rule and key and from`},
		{"GET", "/state?key=a&rule=web", "", "", 404, `there is no rule "web"; known are api, tiers`},
		{"POST", "/reset?key=a", "", "", 400, "the query has no rule"},
		{"POST", "/reset?rule=api", "", "", 400, "the query has no key, prefix or network"},
		{"POST", "/reset?rule=&key=a", "", "", 404, `there is no rule ""; known are api, tiers`},
		{"POST", "/reset?rule=tiers&key=a", "", "", 409, `the limits of rule "tiers" depend on the request, and Options.Policy does not say which they are`},
		{"POST", "/grant?rule=tiers&key=a", units, "application/json", 409, `the limits of rule "tiers" depend on the request, and Options.Policy does not say which they are`},
		{"POST", "/grant?rule=api&key=a", units, "application/x-www-form-urlencoded", 415, `the content type is "application/x-www-form-urlencoded"; want application/json`},
		{"POST", "/grant?rule=api&key=a", units, "", 415, `the content type is ""; want application/json`},
		{"POST", "/grant?rule=api&key=a", "", "application/json", 400, "the body can't be read: EOF"},
		{"POST", "/grant?rule=api&key=a", "{", "application/json", 400, "the body can't be read: unexpected EOF"},
		{"POST", "/grant?rule=api&key=a", "{}", "application/json", 400, "units is 0; want at least 1"},
		{"POST", "/grant?rule=api&key=a", `{"units": -5}`, "application/json", 400, "units is -5; want at least 1"},
		{"POST", "/grant?rule=api&key=a", `{"units": 1.5}`, "application/json", 400, "units is of the wrong type: number 1.5"},
		{"POST", "/grant?rule=api&key=a", `{"units": 99999999999999999999}`, "application/json", 400, "units is of the wrong type: number 99999999999999999999"},
		{"POST", "/grant?rule=api&key=a", `{"units": "1"}`, "application/json", 400, "units is of the wrong type: string"},
		{"POST", "/grant?rule=api&key=a", `[1]`, "application/json", 400, "the body is of the wrong type: array"},
		{"POST", "/grant?rule=api&key=a", `{"unit": 1}`, "application/json", 400, `the body can't be read: unknown field "unit"`},
		{"POST", "/grant?rule=api&key=a", units + units, "application/json; charset=utf-8", 400, "the body can't be read: there is text after the object"},
		{"POST", "/grant?rule=api&key=a", units + "}", "application/json", 400, "the body can't be read: there is text after the object"},
		{"POST", "/grant?rule=api&key=a", strings.Repeat(" ", 5000) + units, "application/json", 413, "the body is larger than 4096 bytes"},
		{"POST", "/ban?rule=api&key=a", `{"seconds": 60}`, "application/json", 409, `rule "api" has no penalty, so it has no bans`},
		{"POST", "/ban?rule=api&key=a", `{"seconds": 0}`, "application/json", 400, "seconds is 0; want more than 0 and at most 1125899906"},
		{"POST", "/ban?rule=api&key=a", `{"seconds": 1e-7}`, "application/json", 400, "seconds is 1e-07; want more than 0 and at most 1125899906"},
		{"POST", "/ban?rule=api&key=a", `{"seconds": 1e300}`, "application/json", 400, "seconds is 1e+300; want more than 0 and at most 1125899906"},
		{"POST", "/unban?rule=api&key=a", "", "", 409, `rule "api" has no penalty, so it has no bans`},
	} {
		w := send(h, tt.method, tt.target, tt.body, "Content-Type", tt.contentType)
		var p struct {
			Title  string
			Status int
			Detail string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Errorf("%s %s: %v in %s", tt.method, tt.target, err, w.Body)
		}
		if w.Code != tt.status || p.Status != tt.status || p.Detail != tt.want || p.Title != http.StatusText(tt.status) {
			t.Errorf("%s %s %.40s: got %d, %+v; want %d, %s", tt.method, tt.target, tt.body, w.Code, p, tt.status, tt.want)
		}
		if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s %s: got content type %s", tt.method, tt.target, got)
		}
		if got := w.Header().Get("Allow"); (got != "") != (tt.status == 405) {
			t.Errorf("%s %s: got Allow: %s", tt.method, tt.target, got)
		}
	}
}

// TestKeys: a key in a URL may have any characters.
func TestKeys(t *testing.T) {
	store := memstore.New(memstore.Options{})
	l := must(t, store, hourly("a/b c", 3))
	server := httptest.NewServer(newAdmin(t, store, l))
	defer server.Close()
	limit := l.Rules()[0].Limits[0]
	for _, key := range []string{"", "192.0.2.1", "2001:db8:1:2::/64", "a/b", "//", "..", ".", "a&key=b", "a+b c", "100%", "ключ", "\xff\x00\n", "?#"} {
		charge := quota.Charge{Rule: "a/b c", Key: key, Limit: limit, Cost: 2}
		if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(server.URL+"/grant?"+url.Values{"rule": {"a/b c"}, "key": {key}}.Encode(), "application/json", strings.NewReader(`{"units": 1}`))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(text), `"remaining":2`) {
			t.Errorf("key %q: got %d, %s", key, resp.StatusCode, text)
		}
		if tx, err := quota.Peek(t.Context(), store, charge); err != nil || tx.Decisions[0].Remaining != 2 {
			t.Errorf("key %q has %d left, want 2", key, tx.Decisions[0].Remaining)
		}
	}
}

// A failing store returns an error that contains an internal address.
type failing struct{}

func (failing) Take(context.Context, *quota.Transaction) error {
	return errors.New("dial tcp 10.0.0.7: connection refused")
}

// TestStoreFails: if the store fails, the answer is 503 without the text of the error, which is
// logged once.
func TestStoreFails(t *testing.T) {
	rule := hourly("api", 3)
	rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	limiters := []*weir.Limiter{must(t, failing{}, rule)}
	h, err := admin.New(failing{}, admin.Options{Limiters: func() []*weir.Limiter { return limiters }, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		h                    http.Handler
		method, target, body string
		status               int
	}{
		{h, "GET", "/rules", "", 200}, // does not need the store
		{h, "GET", "/state?key=a", "", 503},
		{h, "POST", "/reset?rule=api&key=a", "", 503},
		{h, "POST", "/grant?rule=api&key=a", `{"units": 1}`, 503},
		{h, "POST", "/ban?rule=api&key=a", `{"seconds": 1}`, 503},
		{h, "POST", "/unban?rule=api&key=a", "", 503},
		{http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", 503},
	} {
		log.Reset()
		w := send(tt.h, tt.method, tt.target, tt.body, "X-User", "a")
		if w.Code != tt.status {
			t.Errorf("%s: got %d, %s; want %d", tt.target, w.Code, w.Body, tt.status)
		}
		if strings.Contains(w.Body.String(), "10.0.0.7") {
			t.Errorf("%s tells clients the address of the store: %s", tt.target, w.Body)
		}
		if n := strings.Count(log.String(), "10.0.0.7"); n != tt.status/503 {
			t.Errorf("%s: the error is logged %d times:\n%s", tt.target, n, log.String())
		}
	}
}

// TestNewRefuses: New returns an error if the store or Limiters is nil.
func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		store weir.Store
		o     admin.Options
		want  string
	}{
		{nil, admin.Options{Limiters: func() []*weir.Limiter { return nil }}, "admin: the store is nil"},
		{(*memstore.Store)(nil), admin.Options{Limiters: func() []*weir.Limiter { return nil }}, "admin: the store is nil"},
		{failing{}, admin.Options{}, "admin: Options.Limiters is nil"},
	} {
		if _, err := admin.New(tt.store, tt.o); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// TestCrossOrigin: a change that a browser sends for a page of another origin is refused, and
// changes nothing. The text names the proxy that changes Host, which looks the same.
func TestCrossOrigin(t *testing.T) {
	store := memstore.New(memstore.Options{})
	l := must(t, store, hourly("api", 3))
	h := newAdmin(t, store, l)
	spend(l, "anna", 3)
	for _, tt := range []struct {
		header, value string
		status        int
	}{
		{"Sec-Fetch-Site", "cross-site", 403},
		{"Sec-Fetch-Site", "same-site", 403},
		{"Origin", "https://evil.example", 403},
		{"Origin", "null", 403},
		{"Sec-Fetch-Site", "same-origin", 200},
		{"Origin", "http://example.com", 200}, // the host of httptest
		{"X-Nothing", "", 200},                // a client that is no browser
	} {
		if w := send(h, "POST", "/reset?rule=api&key=anna", "", tt.header, tt.value); w.Code != tt.status || strings.Contains(w.Body.String(), "forward the field Host") != (w.Code == 403) {
			t.Errorf("%s: %s: got %d, %s; want %d", tt.header, tt.value, w.Code, w.Body, tt.status)
		}
		if passed := spend(l, "anna", 3); (passed == 3) != (tt.status == 200) {
			t.Errorf("%s: %s: %d requests passed after it", tt.header, tt.value, passed)
		}
	}
}

// TestSeveralLimiters: rules of the same name in several limiters are shown as one rule with all
// their limits. A ban and an unban apply in all these limiters.
func TestSeveralLimiters(t *testing.T) {
	store := memstore.New(memstore.Options{})
	penalty := &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
	read, write := hourly("api", 3), hourly("api", 3)
	write.Limits = append(write.Limits, algorithms.AnchoredWindow(2, time.Minute).Named("writes"))
	read.Penalty, write.Penalty = penalty, penalty
	a, b, plain := must(t, store, read), must(t, store, write), must(t, store, hourly("api", 3))
	h := newAdmin(t, store, plain, a, b)
	if got := send(h, "GET", "/rules", "").Body.String(); strings.Count(got, `"quota"`) != 3 {
		t.Errorf("got rules %s, want the limits 1h and writes, and strikes", got)
	}
	send(h, "POST", "/ban?rule=api&key=eve", `{"seconds": 600}`)
	for _, l := range []*weir.Limiter{a, b} {
		if passed := spend(l, "eve", 1); passed > 0 {
			t.Error("a banned key passed")
		}
	}
	if w := send(h, "POST", "/unban?rule=api&key=eve", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"banned_for":0,`) {
		t.Errorf("unban: got %d, %s", w.Code, w.Body)
	}
	for _, l := range []*weir.Limiter{a, b} {
		if passed := spend(l, "eve", 1); passed != 1 {
			t.Error("a key whose ban was lifted is refused")
		}
	}
}

// TestPolicy: for a rule whose limits depend on the request, the limits of a key are those
// that Options.Policy returns.
func TestPolicy(t *testing.T) {
	store := memstore.New(memstore.Options{})
	tiers := map[string][]weir.Limit{
		"anna": {algorithms.AnchoredWindow(5, time.Hour), algorithms.AnchoredWindow(3, time.Minute)},
		"bad":  {{}},
	}
	l := must(t, store, weir.Rule{Name: "api", Key: byUser, Policy: func(r *http.Request) weir.Policy { return weir.Limited(tiers[r.Header.Get("X-User")]...) }})
	h, err := admin.New(store, admin.Options{
		Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} },
		Policy: func(ctx context.Context, rule, key string) (weir.Policy, error) {
			if key == "unlucky" {
				return weir.Policy{}, errors.New("no database")
			}
			if key == "stranger" {
				return weir.Unlimited(), nil
			}
			return weir.Limited(tiers[key]...), nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	spend(l, "anna", 3)
	for _, tt := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/state?key=anna", "", 200, `"burst":3,"remaining":0`},
		{"POST", "/grant?rule=api&key=anna", `{"units": 1}`, 200, `"burst":3,"remaining":1`},
		{"POST", "/reset?rule=api&key=anna", "", 200, `"burst":5,"remaining":5`},
		{"GET", "/state?key=stranger", "", 200, `"limits":[]`},
		{"POST", "/grant?rule=api&key=stranger", `{"units": 1}`, 200, `"limits":[]`},
		{"POST", "/reset?rule=api&key=stranger", "", 200, `"limits":[]`},
		{"GET", "/state?key=unknown", "", 200, `"limits":null`},
		{"POST", "/reset?rule=api&key=unknown", "", 409, "Options.Policy does not say which they are"},
		{"GET", "/state?key=unlucky", "", 503, "the store failed"},
		{"GET", "/state?key=bad", "", 503, "the store failed"},
	} {
		if w := send(h, tt.method, tt.target, tt.body); w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s: got %d, %s; want %d with %s", tt.method, tt.target, w.Code, w.Body, tt.status, tt.want)
		}
	}
}

// TestBuffer: the Buffer of a rule is part of the period under which its counts are stored, so the
// panel reads and resets the counts under that period.
func TestBuffer(t *testing.T) {
	store, rule := memstore.New(memstore.Options{}), hourly("api", 5)
	rule.Buffer = 20 * time.Millisecond
	l := must(t, store, rule)
	h := newAdmin(t, store, l)
	spend(l, "anna", 2)
	if w := send(h, "GET", "/state?key=anna", ""); !strings.Contains(w.Body.String(), `"period":3600,"burst":5,"remaining":3`) {
		t.Errorf("after 2 of 5: got %s", w.Body)
	}
	if w := send(h, "POST", "/reset?rule=api&key=anna", ""); w.Code != 200 || spend(l, "anna", 6) != 5 {
		t.Errorf("after a reset: got %d %s, want 5 of 6 requests served", w.Code, w.Body)
	}
}

// TestReload: after the reload of a file of rules, /state and RateLimit show the new limits.
func TestReload(t *testing.T) {
	store := memstore.New(memstore.Options{})
	text := func(n int) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "limits: [{name: api, key: 'header:X-User', algorithm: anchored-window, config: [{limit: %d, period: 1h}]}]", n)}
	}
	files := fstest.MapFS{"r.yaml": text(5)}
	f, err := config.Open("r.yaml", store, config.Options{FS: files})
	if err != nil {
		t.Fatal(err)
	}
	api := f.Handler("api")(served)
	h, err := admin.New(store, admin.Options{Limiters: f.Limiters})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		send(api, "GET", "/", "", "X-User", "anna")
	}
	for _, tt := range []struct {
		limit            int
		state, rateLimit string
	}{
		{5, `"burst":5,"remaining":2,`, `{"limit":5,"used":3,"remaining":2,`},
		{9, `"burst":9,"remaining":6,`, `{"limit":9,"used":3,"remaining":6,`},
		{2, `"burst":2,"remaining":0,`, `{"limit":2,"used":2,"remaining":0,`},
	} {
		files["r.yaml"] = text(tt.limit)
		if _, err := f.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := send(h, "GET", "/state?key=anna", "").Body.String(); !strings.Contains(got, tt.state) {
			t.Errorf("a limit of %d: got state %s, want %s", tt.limit, got, tt.state)
		}
		if got := send(http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", "X-User", "anna").Body.String(); !strings.Contains(got, tt.rateLimit) {
			t.Errorf("a limit of %d: got %s, want %s", tt.limit, got, tt.rateLimit)
		}
	}
}

// stores returns an empty store in memory and one in Redis.
func stores(t *testing.T) map[string]weir.Store {
	shared := weirtest.Redis(t, redistest.Server(t).Addr(), 10*time.Second) // for a busy machine
	return map[string]weir.Store{"memory": memstore.New(memstore.Options{}), "redis": shared}
}

// TestGrantUnderLoad: if 20 units are granted one by one while clients send requests, exactly 20
// requests more than the quota of 50 pass.
func TestGrantUnderLoad(t *testing.T) {
	const units, grants, clients = 50, 20, 4
	for name, store := range stores(t) {
		l := must(t, store, hourly("api", units))
		admin := httptest.NewServer(newAdmin(t, store, l))
		defer admin.Close()
		api := httptest.NewServer(l.Handler(served))
		defer api.Close()
		var passed atomic.Int64
		ask := func() {
			r, _ := http.NewRequest("GET", api.URL, nil)
			r.Header.Set("X-User", "anna")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode == 200 {
				passed.Add(1)
			}
		}
		for range units {
			ask()
		}
		stop := weirtest.Meanwhile(clients, func(int) bool { ask(); return true })
		for range grants {
			if status := grantOne(t, admin.URL); status != 200 {
				t.Errorf("%s: a grant got %d", name, status)
			}
		}
		stop()
		for range grants + 1 {
			ask()
		}
		if got := passed.Load(); got != units+grants {
			t.Errorf("%s: %d requests passed, want %d", name, got, units+grants)
		}
	}
}

// grantOne grants anna a unit, and returns the status of the answer.
func grantOne(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Post(url+"/grant?rule=api&key=anna", "application/json", strings.NewReader(`{"units": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestResetUnderLoad: while clients send requests, each reset lets at most a whole quota of further
// requests pass. After a reset without concurrent requests, exactly the quota passes.
func TestResetUnderLoad(t *testing.T) {
	const units, resets, clients = 20, 10, 4
	for name, store := range stores(t) {
		l := must(t, store, hourly("api", units))
		h := newAdmin(t, store, l)
		var passed atomic.Int64
		stop := weirtest.Meanwhile(clients, func(int) bool { passed.Add(int64(spend(l, "anna", 1))); return true })
		for range resets {
			if w := send(h, "POST", "/reset?rule=api&key=anna", ""); w.Code != 200 {
				t.Errorf("%s: a reset got %d, %s", name, w.Code, w.Body)
			}
		}
		stop()
		passed.Add(int64(spend(l, "anna", units+1)))
		if got := passed.Load(); got < units || got > units*(resets+1) {
			t.Errorf("%s: %d requests passed with %d resets, want %d to %d", name, got, resets, units, units*(resets+1))
		}
		send(h, "POST", "/reset?rule=api&key=anna", "")
		if got := spend(l, "anna", units+1); got != units {
			t.Errorf("%s: %d requests passed after the last reset, want %d", name, got, units)
		}
	}
}

// TestKeysOfNobody: a change is refused if its key is an address but requests from that address
// have another key under the rule. The answer names that other key.
func TestKeysOfNobody(t *testing.T) {
	store := memstore.New(memstore.Options{})
	with := func(name string, key weir.KeyFunc) weir.Rule {
		r := hourly(name, 3)
		r.Key, r.Penalty = key, &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
		return r
	}
	picky := func(r *http.Request) (string, bool) { return r.Context().Value("user").(string), true }
	h := newAdmin(t, store, must(t, store,
		with("ip", weir.ByIP()), with("network", weir.ByIPPrefix(24, 48)), with("joined", weir.Join(weir.ByIP(), weir.ByMethod())),
		with("first", weir.FirstOf(byUser, weir.ByIP())), with("global", weir.Global()), with("user", byUser), with("picky", picky)))
	for _, tt := range []struct{ rule, key, want string }{ // a part of the answer to a refused change; "" if it is accepted
		{"ip", "198.51.100.7", ""},
		{"ip", "2001:db8:1:2::/64", ""},
		{"ip", "unknown", ""},
		{"ip", "198.51.100.0/24", `no request has the key "198.51.100.0/24": a request from 198.51.100.0 has the key "198.51.100.0"; to refuse a network, use the parameter network`},
		{"ip", "2001:db8::1", `a request from 2001:db8::1 has the key "2001:db8::/64"`},
		{"ip", "2001:db8::/48", `has the key "2001:db8::/64"`},
		{"ip", "::ffff:198.51.100.7", `has the key "198.51.100.7"`},
		{"ip", "198.51.100.07", `has the key "198.51.100.7"`},
		{"ip", "198.51.100.7:443", `has the key "198.51.100.7"`},
		{"ip", "198.51.100.7 ", `has the key "198.51.100.7"`},
		{"network", "198.51.100.0/24", ""},
		{"network", "198.51.100.7", `has the key "198.51.100.0/24"`},
		{"joined", "198.51.100.7", `has the key "12:198.51.100.7,3:GET,"`},
		{"joined", "12:198.51.100.7,3:GET,", ""},
		{"first", "198.51.100.7", `has the key "1:198.51.100.7"`},
		{"first", "0:alice", ""},
		{"global", "198.51.100.7", `has the key ""`},
		{"global", "", ""},
		{"user", "198.51.100.7", ""}, // a user name may look like an address
		{"picky", "198.51.100.7", ""},
	} {
		for path, body := range map[string]string{"/ban": `{"seconds": 60}`, "/unban": "", "/reset": "", "/grant": `{"units": 1}`} {
			w := send(h, "POST", path+"?"+url.Values{"rule": {tt.rule}, "key": {tt.key}}.Encode(), body)
			var p struct{ Detail string }
			json.Unmarshal(w.Body.Bytes(), &p)
			if tt.want == "" && w.Code != 200 || tt.want != "" && (w.Code != 400 || !strings.Contains(p.Detail, tt.want)) {
				t.Errorf("%s of %q under %s: got %d, %s, want %s", path, tt.key, tt.rule, w.Code, p.Detail, cmp.Or(tt.want, "200"))
			}
		}
	}
}

// TestExplainInFlight: under a limit of requests in flight, /explain names no time at which a unit
// is free, because a unit is free when a request ends.
func TestExplainInFlight(t *testing.T) {
	store := memstore.New(memstore.Options{})
	rule := hourly("exports", 1)
	rule.Limits = []weir.Limit{algorithms.InFlight(1, time.Minute)}
	l := must(t, store, rule)
	var got string
	h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		got = send(newAdmin(t, store, l), "GET", "/explain?key=alice", "").Body.String()
	}))
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", "alice")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if want := "has none of 1 units left; the next one is available when a request in flight ends"; !strings.Contains(got, want) {
		t.Errorf("got %s, want %q", got, want)
	}
}

// TestExplainEnforce: under a rule that is enforced for a part of the keys, /explain says of each key
// what its requests get.
func TestExplainEnforce(t *testing.T) {
	store := memstore.New(memstore.Options{})
	rule := hourly("api", 1)
	rule.Enforce = weir.Percent(50)
	l := must(t, store, rule)
	refused := 0
	for i := range 20 {
		user := fmt.Sprint("user", i)
		limited := spend(l, user, 2) == 1
		want := `"refused":false`
		if limited {
			want, refused = `"refused":true`, refused+1
		}
		got := send(newAdmin(t, store, l), "GET", "/explain?key="+user, "").Body.String()
		if !strings.Contains(got, want) || strings.Contains(got, "it is in shadow") == limited {
			t.Errorf("%s: a second request is refused %v, but /explain says %s", user, limited, got)
		}
	}
	if refused == 0 || refused == 20 {
		t.Errorf("%d of 20 keys are refused, want a part", refused)
	}
}
