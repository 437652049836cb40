package weirprom_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/weirprom"
)

// get returns the body of a response.
func get(h http.Handler, path string, header ...string) string {
	r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	return w.Body.String()
}

// One call loads a file of rules, watches it, and serves the operators' page and metrics behind a token.
func ExampleOpen() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	limits := fstest.MapFS{"rules.yaml": {Data: []byte("limits: [{name: api, config: [{limit: 1, period: 1h}]}]")}}
	rules, operators, err := weirprom.Open(ctx, "rules.yaml", memstore.New(memstore.Options{}), ops.Options{
		Token:  "a token of 16 bytes or more",
		Config: config.Options{FS: limits},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/", rules.Handler("api")(http.NotFoundHandler()))
	mux.Handle("/admin/", http.StripPrefix("/admin", operators))

	fmt.Print(get(mux, "/admin/metrics"))
	for line := range strings.Lines(get(mux, "/admin/metrics", "Authorization", "Bearer a token of 16 bytes or more")) {
		if strings.HasPrefix(line, "weir_rules ") {
			fmt.Print(line)
		}
	}
	// Output:
	// the operators' token is missing or wrong
	// weir_rules 1
}

// Prometheus reads /metrics of a program.
func Example() {
	metrics, registry := weirprom.New(), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	rules := []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: rules, Observe: metrics.Observe})
	if err != nil {
		fmt.Println(err)
		return
	}
	metrics.Expect(rules...) // so that alerts see the first refusal
	mux := http.NewServeMux()
	mux.Handle("/", limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	for range 3 {
		get(mux, "/")
	}
	for line := range strings.Lines(get(mux, "/metrics")) {
		if strings.HasPrefix(line, "weir_decisions_total{") {
			fmt.Print(line)
		}
	}
	// Output:
	// weir_decisions_total{limit="1h",mode="enforced",outcome="allowed",rule="api"} 1
	// weir_decisions_total{limit="1h",mode="enforced",outcome="delayed",rule="api"} 0
	// weir_decisions_total{limit="1h",mode="enforced",outcome="refused",rule="api"} 2
}
