package watch_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
)

// A program that keeps the warnings about probable misconfigurations can show them, as package admin
// does. They are logged all the same.
func ExampleRecorder_Warnings() {
	recorder := watch.NewRecorder(1000, 100_000)
	byTenant := func(r *http.Request) (string, bool) { return r.Header.Get("X-Tenant"), true }
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:  []weir.Rule{{Name: "api", Key: byTenant, Limits: []weir.Limit{algorithms.GCRA(10, time.Second)}}},
		Logger: slog.New(recorder.LogHandler(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		panic(err)
	}
	limiter.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	for _, w := range recorder.Warnings(time.Hour) {
		fmt.Printf("rule %s: %.67s…\n", w.Rule, w.Text)
	}
	// Output:
	// rule api: key empty; all requests with an empty key share one quota; likely: …
}
