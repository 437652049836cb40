package ops_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
)

const token = "a token of 16 bytes or more"

func files(text string) config.Options {
	return config.Options{FS: fstest.MapFS{"rules.yaml": {Data: []byte(text)}}}
}

// send sends a request with an Authorization field, unless it is empty.
func send(h http.Handler, method, target, authorization, body string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(method, target, strings.NewReader(body)), httptest.NewRecorder()
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	h.ServeHTTP(w, r)
	return w
}

// TestOpen: only the token opens the handler. A change by an operator takes effect, is logged with the
// operator's name, and requests are observed.
func TestOpen(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log, seen := new(weirtest.Log), 0
	o := ops.Options{Token: token, Observe: func(weir.Event) { seen++ }, Config: files("limits: [{name: api, config: [{limit: 2, period: 1000h}]}]")}
	o.Config.Limiter.Logger = slog.New(slog.NewTextHandler(log, nil))
	rules, operators, err := ops.Open(ctx, "rules.yaml", memstore.New(memstore.Options{}), o)
	if err != nil {
		t.Fatal(err)
	}
	basic := httptest.NewRequest("GET", "/", nil)
	basic.SetBasicAuth("ada", token)
	for authorization, want := range map[string]int{
		"": 401, token: 401, "Bearer": 401, "Bearer ": 401, "Bearer " + token[1:]: 401, "Basic " + token: 401,
		"Bearer " + token: 200, basic.Header.Get("Authorization"): 200,
	} {
		for _, target := range []string{"/", "/rules"} {
			if w := send(operators, "GET", target, authorization, ""); w.Code != want || (want == 401) != (w.Header().Get("WWW-Authenticate") != "") {
				t.Errorf("%s with %q: got %d, %q; want %d", target, authorization, w.Code, w.Header(), want)
			}
		}
	}
	h := rules.Handler("api")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func(want int) {
		t.Helper()
		if got := weirtest.Do(h, weirtest.Get()).StatusCode; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	get(200)
	key, _ := weir.ByIP()(weirtest.Get())
	const target = "/override?rule=api&key="
	if w := send(operators, "POST", target+key, "", `{"denied": true}`); w.Code != 401 {
		t.Errorf("a change without the token: got %d", w.Code)
	}
	get(200)
	if w := send(operators, "POST", target+key, basic.Header.Get("Authorization"), `{"denied": true}`); w.Code != 200 {
		body, _ := io.ReadAll(w.Body)
		t.Errorf("a change: got %d, %s", w.Code, body)
	}
	get(429)
	if seen != 3 || !strings.Contains(log.String(), "who=ada") {
		t.Errorf("%d events, want 3; log:\n%s", seen, log)
	}
	if w := send(operators, "GET", "/refusals", "Bearer "+token, ""); !strings.Contains(w.Body.String(), `"reason":"deny"`) {
		t.Errorf("got the refusals %s", w.Body)
	}
}

// TestWarningsOnPage: the page names a rule whose key no request has, as the log does.
func TestWarningsOnPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		o := ops.Options{Token: token, Config: files("limits: [{name: ip, config: [{limit: 1000, period: 1h}]}, {name: tenant, key: 'header:X-Tenant', config: [{limit: 2, period: 1h}]}]")}
		o.Config.Limiter.Logger = slog.New(slog.DiscardHandler)
		rules, operators, err := ops.Open(ctx, "rules.yaml", weirtest.Memory(), o)
		if err != nil {
			t.Fatal(err)
		}
		limit := rules.Handler("ip", "tenant")
		h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 200 {
			weirtest.Do(h, weirtest.Get())
		}
		const want = "Probable misconfiguration of rule &#34;tenant&#34;: key missing in each of the first 200 requests"
		if page := send(operators, "GET", "/", "Bearer "+token, "").Body.String(); !strings.Contains(page, want) {
			t.Errorf("got %s, want %s", page, want)
		}
	})
}

// A slowKeeper has an override, and takes a second to load it.
type slowKeeper struct{ overrides.Keeper }

func (slowKeeper) LoadOverrides(ctx context.Context, _ string) (map[string]string, string, time.Time, error) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return map[string]string{"api\x00=mallory": `0 {"denied":true}`}, "1", time.Now(), nil
}

// TestOverridesFirst: the overrides are in force when Open returns.
func TestOverridesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		o := ops.Options{Token: token, Keeper: slowKeeper{}, Config: files("limits: [{name: api, key: 'header:X-User', config: [{limit: 2, period: 1h}]}]")}
		rules, _, err := ops.Open(ctx, "rules.yaml", weirtest.Memory(), o)
		if err != nil {
			t.Fatal(err)
		}
		h := rules.Handler("api")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if got := weirtest.Do(h, weirtest.Get("X-User: mallory")).StatusCode; got != 429 {
			t.Errorf("got %d, want the denial", got)
		}
	})
}

// TestMetricsPath: with Metrics, each path but theirs has the same answer as without, also under a bare
// http.StripPrefix.
func TestMetricsPath(t *testing.T) {
	handler := func(metrics http.Handler) http.Handler {
		o := ops.Options{Token: token, Metrics: metrics, Config: files("limits: [{name: api, config: [{limit: 2, period: 1h}]}]")}
		_, operators, err := ops.Open(t.Context(), "rules.yaml", weirtest.Memory(), o)
		if err != nil {
			t.Fatal(err)
		}
		return http.StripPrefix("/admin", operators)
	}
	with := handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "metrics") }))
	without := handler(nil)
	for _, path := range []string{"/admin", "/admin/", "/admin/rules", "/admin//rules", "/admin/./rules", "/admin/metrics/x", "/admin//metrics"} {
		got, want := send(with, "GET", path, "Bearer "+token, ""), send(without, "GET", path, "Bearer "+token, "")
		if got.Code != want.Code || got.Header().Get("Location") != want.Header().Get("Location") {
			t.Errorf("%s: got %d, %q; want %d, %q", path, got.Code, got.Header().Get("Location"), want.Code, want.Header().Get("Location"))
		}
	}
	if got := send(with, "GET", "/admin/metrics", "Bearer "+token, ""); got.Body.String() != "metrics" {
		t.Errorf("got %d, %s; want the metrics", got.Code, got.Body)
	}
	if got := send(with, "GET", "/admin/metrics", "", ""); got.Code != 401 {
		t.Errorf("without the token: got %d", got.Code)
	}
}

// TestOpenRefuses: Open does not serve without a token, or with options that it would replace.
func TestOpenRefuses(t *testing.T) {
	const rules = "limits: [{name: api, config: [{limit: 2, period: 1h}]}]"
	observed, overridden := files(rules), files(rules)
	observed.Limiter.Observe = func(weir.Event) {}
	overridden.Overrides = overrides.NewLive(overrides.LiveOptions{})
	for _, c := range []struct {
		o    ops.Options
		want string
	}{
		{ops.Options{Config: files(rules)}, "Token has 0 bytes; want at least 16"},
		{ops.Options{Token: token[:15], Config: files(rules)}, "Token has 15 bytes; want at least 16"},
		{ops.Options{Token: token + "\n", Config: files(rules)}, "Token begins or ends with white space"},
		{ops.Options{Token: token, Config: observed}, "want nil, because Open sets them"},
		{ops.Options{Token: token, Config: overridden}, "want nil, because Open sets them"},
		{ops.Options{Token: token, Config: files("limits: []")}, "limits is an empty list"},
	} {
		if _, _, err := ops.Open(t.Context(), "rules.yaml", weirtest.Memory(), c.o); !weirtest.FailsWith(err, c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestDeadline: Open says that a context with a deadline ends what it watches.
func TestDeadline(t *testing.T) {
	for _, deadline := range []bool{false, true} {
		var log weirtest.Log
		o := files("limits: [{name: api, config: [{limit: 2, period: 1h}]}]")
		o.Limiter.Logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		if deadline {
			ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		}
		defer cancel()
		if _, _, err := ops.Open(ctx, "rules.yaml", weirtest.Memory(), ops.Options{Token: token, Config: o}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), `"ops: context with a deadline"`); got != deadline {
			t.Errorf("deadline %v: logged %q", deadline, log.String())
		}
	}
}

func ExampleOpen() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	rules, operators, err := ops.Open(ctx, "rules.yaml", memstore.New(memstore.Options{}), ops.Options{
		Token:  token,
		Config: files("limits: [{name: api, config: [{limit: 100, period: 60}]}]"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/", http.StripPrefix("/admin", operators))
	mux.Handle("/", rules.Handler("api")(http.NotFoundHandler()))

	fmt.Println(send(mux, "GET", "/admin/rules", "", "").Code)
	fmt.Println(send(mux, "GET", "/admin/rules", "Bearer "+token, "").Code)
	// Output:
	// 401
	// 200
}

// A handler of your own, for people who have the token.
func ExampleAuthenticate() {
	if len(token) < ops.MinToken {
		panic("the token is too short")
	}
	secret := ops.Authenticate(token, slog.Default(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s\n", ops.Operator(r.Context()))
	}))
	r := httptest.NewRequest("GET", "/", nil)
	r.SetBasicAuth("ada", token)
	fmt.Print(send(secret, "GET", "/", "", "").Body)
	fmt.Print(send(secret, "GET", "/", r.Header.Get("Authorization"), "").Body)
	// Output:
	// the operators' token is missing or wrong
	// hello ada
}
