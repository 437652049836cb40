package weirotel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/weirotel"
)

// show prints the decisions that a reader collects. A program has an exporter instead.
func show(reader metric.Reader) {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		fmt.Println(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name != "weir.decisions" {
			continue
		}
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			outcome, _ := p.Attributes.Value("weir.outcome")
			fmt.Println(m.Name, outcome.AsString(), p.Value)
		}
	}
}

func Example() {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	metrics, err := weirotel.New(provider.Meter("weir"))
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		Observe: metrics.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 3 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	show(reader)
	// Unordered output:
	// weir.decisions allowed 1
	// weir.decisions delayed 0
	// weir.decisions refused 2
}
