package overrides_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// byTable limits every user to 100 requests a minute, except those in the table.
func byTable(table *overrides.Table) (*weir.Limiter, error) {
	return weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
		ForKey: table.ForKey,
	}}})
}

func Example() {
	table, err := overrides.New(
		overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}}, // the period and the algorithm of the rule
		overrides.Entry{Prefix: "tenant-a/", Limits: []quota.Limit{{Quota: 50}}},
		overrides.Entry{Key: "monitor", Unlimited: true},
		overrides.Entry{Key: "mallory", Denied: true},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := byTable(table)
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, user := range []string{"bob", "alice", "tenant-a/7", "monitor", "mallory"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("X-User", user)
		handler.ServeHTTP(w, r)
		fmt.Printf("%s %d %q\n", user, w.Code, w.Header().Get("X-RateLimit-Limit"))
	}
	// Output:
	// bob 200 "100"
	// alice 200 "1000"
	// tenant-a/7 200 "50"
	// monitor 200 ""
	// mallory 429 ""
}
