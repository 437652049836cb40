package weirprom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/weirprom"
)

// get returns the body of a response.
func get(h http.Handler, path string) string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Body.String()
}

// Prometheus reads /metrics of a program.
func Example() {
	metrics, registry := weirprom.New(), prometheus.NewRegistry()
	registry.MustRegister(metrics)
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		Observe: metrics.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
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
