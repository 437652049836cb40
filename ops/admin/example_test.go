package admin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
)

// An operator looks at a client whose quota is spent, gives back units, and bans and unbans the
// client.
func ExampleNew() {
	store := memstore.New(memstore.Options{})
	api, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"),
		Limits:  []weir.Limit{algorithms.AnchoredWindow(2, 24*time.Hour)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Hour},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{api} }})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/", api.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "served") })))
	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", h)))
	server := httptest.NewServer(mux)
	defer server.Close()

	do := func(method, path, body string) {
		req, _ := http.NewRequest(method, server.URL+path, strings.NewReader(body))
		req.Header.Set("X-User", "anna/2")
		req.Header.Set("Content-Type", "application/json")
		req.SetBasicAuth("operator", "secret")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		var s struct {
			Rules []struct {
				BannedFor float64 `json:"banned_for"`
				Limits    []struct{ Remaining int }
			}
		}
		if json.Unmarshal(text, &s) == nil && len(s.Rules) > 0 {
			text = fmt.Appendf(nil, "%d left, banned for %.0f s", s.Rules[0].Limits[0].Remaining, s.Rules[0].BannedFor)
		}
		fmt.Println(method, path, resp.StatusCode, string(bytes.TrimSpace(text)))
	}
	do("GET", "/", "")
	do("GET", "/", "")
	do("GET", "/admin/state?key=anna%2F2", "")
	do("POST", "/admin/grant?rule=api&key=anna%2F2", `{"units": 1}`)
	do("POST", "/admin/reset?rule=api&key=anna%2F2", "")
	do("POST", "/admin/ban?rule=api&key=anna%2F2", `{"seconds": 600}`)
	do("POST", "/admin/unban?rule=api&key=anna%2F2", "")
	do("POST", "/admin/unban?rule=ap&key=anna%2F2", "")
	// Output:
	// GET / 200 served
	// GET / 200 served
	// GET /admin/state?key=anna%2F2 200 0 left, banned for 0 s
	// POST /admin/grant?rule=api&key=anna%2F2 200 1 left, banned for 0 s
	// POST /admin/reset?rule=api&key=anna%2F2 200 2 left, banned for 0 s
	// POST /admin/ban?rule=api&key=anna%2F2 200 2 left, banned for 600 s
	// POST /admin/unban?rule=api&key=anna%2F2 200 2 left, banned for 0 s
	// POST /admin/unban?rule=ap&key=anna%2F2 404 {"title":"Not Found","status":404,"detail":"there is no rule \"ap\"; known are api"}
}

func requireOperator(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "operator" || password != "secret" { // a real program compares hashes
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// A client reads its own quota at /rate_limit, in the format of GitHub's API.
func ExampleHandler_RateLimit() {
	store := memstore.New(memstore.Options{})
	api, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "core", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.AnchoredWindow(60, time.Hour)},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{api} }})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/", api.Handler(http.NotFoundHandler()))
	mux.HandleFunc("GET /rate_limit", h.RateLimit)

	var w *httptest.ResponseRecorder
	for _, path := range []string{"/", "/rate_limit", "/rate_limit"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("X-User", "anna")
		w = httptest.NewRecorder()
		mux.ServeHTTP(w, r)
	}
	var quota struct {
		Resources map[string]struct{ Limit, Used, Remaining int }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &quota); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%+v\n", quota.Resources["core"])
	// Output: {Limit:60 Used:1 Remaining:59}
}
