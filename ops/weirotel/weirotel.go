// Package weirotel reports rate-limiting metrics and traces to OpenTelemetry.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"go.opentelemetry.io/otel"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//		"github.com/seed83679106/weir/ops/weirotel"
//	)
//
//	func main() {
//		metrics, err := weirotel.New(otel.Meter("weir")) // after otel.SetMeterProvider
//		if err != nil {
//			log.Fatal(err)
//		}
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
//			Rules:   []weir.Rule{{Name: "files", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}}},
//			Observe: metrics.Observe,
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//		http.Handle("/", limiter.Handler(http.FileServer(http.Dir("public"))))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
// # Metrics
//
// The metrics are those of package weirprom with OpenTelemetry names, such as weir.decisions for
// weir_decisions_total. If you pass stores to [New], their metrics are reported too. [ObserveFile]
// reports reloads of a rules file.
//
// # Traces
//
// [Trace] wraps a store in a store that records each call as a span. Pass the returned store to
// weir.New.
//
// All metrics, spans and attributes are listed in ops/weirprom/METRICS.md in the repository. This package
// imports only the OpenTelemetry API, so your program chooses the SDK and the exporter.
package weirotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/watch"
)

// Metrics counts the events of one or more Limiters in instruments of a meter.
type Metrics struct {
	tally      *tally.Tally
	histograms []metric.Float64Histogram
}

// New returns Metrics that use the given meter. The meter also reports the metrics of the given
// stores that weirprom.New exports. New returns any error from the meter.
func New(meter metric.Meter, stores ...weir.Store) (*Metrics, error) {
	m := &Metrics{tally: tally.New(stores...)}
	var err error
	m.histograms, err = register(meter, m.tally.Metrics())
	return m, err
}

// Observe counts the event e. Set weir.Options.Observe to this method.
func (m *Metrics) Observe(e weir.Event) {
	ctx := context.Background()
	if e.Request != nil {
		ctx = e.Request.Context() // for exemplars
	}
	for i, d := range m.tally.Observe(&e) {
		if d > 0 {
			m.histograms[i].Record(ctx, d.Seconds())
		}
	}
}

// Expect makes the counters of refusals and bans begin with 0 for the given rules, so that an alert
// sees their first increase. Call Expect again after a reload. Expect does not change counters that
// are already reported.
func (m *Metrics) Expect(rules ...weir.Rule) { m.tally.Expect(rules) }

// ObserveFile uses the meter to report the version of the current rules and the number of reloads.
// It returns any error from the meter.
func ObserveFile(meter metric.Meter, file watch.File) error {
	_, err := register(meter, tally.FileMetrics(file))
	return err
}

// register makes the meter report metrics. The returned histograms report the values that are
// recorded in them.
func register(meter metric.Meter, metrics []tally.Metric) (histograms []metric.Float64Histogram, err error) {
	var errs []error
	var observables []metric.Observable
	var reports []func(metric.Observer)
	for _, m := range metrics {
		unit, help := metric.WithUnit(m.Unit), metric.WithDescription(m.Help)
		var o metric.Int64Observable
		switch m.Kind {
		case "histogram":
			h, err := meter.Float64Histogram(m.Otel, unit, help, metric.WithExplicitBucketBoundaries(m.Bounds...))
			histograms, errs = append(histograms, h), append(errs, err)
			continue
		case "counter":
			o, err = meter.Int64ObservableCounter(m.Otel, unit, help)
		case "gauge":
			o, err = meter.Int64ObservableGauge(m.Otel, unit, help)
		}
		observables, errs = append(observables, o), append(errs, err)
		reports = append(reports, func(to metric.Observer) {
			m.Read(func(n int64, values ...string) { to.ObserveInt64(o, n, attributes(m.Labels, values)) })
		})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, report := range reports {
			report(to)
		}
		return nil
	}, observables...)
	return histograms, err
}

// attributes returns an attribute for each label.
func attributes(labels, values []string) metric.MeasurementOption {
	set := make([]attribute.KeyValue, len(labels))
	for i, label := range labels {
		set[i] = attribute.String("weir."+label, values[i])
	}
	return metric.WithAttributes(set...)
}
