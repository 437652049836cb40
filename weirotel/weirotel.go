// Package weirotel has metrics of limiters for OpenTelemetry:
//
//	observe, err := weirotel.New(otel.Meter("weir"), hybrid, breaker)
//	…
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: observe})
//
// They are the metrics of package weirprom under the names that are usual here:
// weir.decisions for weir_decisions_total. docs/metrics.md in the repository lists all
// metrics and attributes. The package needs the API of OpenTelemetry only; the program
// chooses the SDK and the exporter.
package weirotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
)

// New returns an Observe for weir.Options that counts events with instruments of the
// meter. One Observe may serve several Limiters. The metrics include those of the given
// stores that Hybrid, Breaker or lease.New returned; other stores are ignored. An error
// is one of the meter.
func New(meter metric.Meter, stores ...weir.Store) (observe func(weir.Event), err error) {
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	m.stores = stores
	_, err = meter.RegisterCallback(m.report, m.decisions, m.units, m.errors, m.banned, m.denied, m.served, m.refused, m.open)
	if err != nil {
		return nil, err
	}
	return m.observe, nil
}

// metrics are counts, and the instruments that report them.
type metrics struct {
	tally  tally.Tally
	stores tally.Stores

	decisions, units, errors, banned, denied, served, refused metric.Int64ObservableCounter
	open                                                      metric.Int64ObservableGauge
	wait, store                                               metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	var errs []error
	counter := func(name, unit, description string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, description string, buckets ...float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	m := &metrics{
		decisions: counter("weir.decisions", "{decision}", "Decisions of each limit."),
		units:     counter("weir.units", "{unit}", "Units spent under each limit."),
		errors:    counter("weir.errors", "{request}", "Requests that could not be decided."),
		banned:    counter("weir.banned", "{request}", "Requests that a ban refused."),
		denied:    counter("weir.denied", "{request}", "Requests that a deny list refused."),
		served:    counter("weir.served", "{decision}", "Decisions of Hybrid and leases from memory, and of the store behind them."),
		refused:   counter("weir.breaker.refused", "{decision}", "Decisions that an open breaker did not ask the store for."),
		wait:      histogram("weir.wait", "How long delayed requests wait.", .001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60),
		store:     histogram("weir.store.duration", "How long the store took to decide.", 1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1),
	}
	var err error
	m.open, err = meter.Int64ObservableGauge("weir.breaker.open", metric.WithUnit("{breaker}"), metric.WithDescription("Number of open breakers."))
	return m, errors.Join(append(errs, err)...)
}

// observe counts an event.
func (m *metrics) observe(e weir.Event) {
	ctx := context.Background()
	if e.Request != nil {
		ctx = e.Request.Context() // for exemplars
	}
	if d := m.tally.Observe(e); d > 0 {
		m.wait.Record(ctx, d.Seconds())
	}
	if e.Took > 0 {
		m.store.Record(ctx, e.Took.Seconds())
	}
}

// report is called when metrics are collected.
func (m *metrics) report(_ context.Context, o metric.Observer) error {
	m.tally.Each(func(l tally.Label, n *tally.Counts) { m.reportLimit(o, l, n) },
		func(rule string, n int64) { o.ObserveInt64(m.banned, n, with("weir.rule", rule)) },
		func(rule string, n int64) { o.ObserveInt64(m.denied, n, with("weir.rule", rule)) })
	o.ObserveInt64(m.errors, m.tally.Errors.Load())
	for _, s := range m.stores.Served() {
		o.ObserveInt64(m.served, s.Hits, with("weir.kind", s.Kind), with("weir.from", "memory"))
		o.ObserveInt64(m.served, s.Misses, with("weir.kind", s.Kind), with("weir.from", "store"))
	}
	if open, refused, ok := m.stores.Breakers(); ok {
		o.ObserveInt64(m.open, open)
		o.ObserveInt64(m.refused, refused)
	}
	return nil
}

// reportLimit reports the counts of one limit.
func (m *metrics) reportLimit(o metric.Observer, l tally.Label, n *tally.Counts) {
	limit := metric.WithAttributes(attribute.String("weir.rule", l.Rule), attribute.String("weir.limit", l.Limit), attribute.String("weir.mode", l.Mode()))
	o.ObserveInt64(m.units, n.Units.Load(), limit)
	o.ObserveInt64(m.decisions, n.Allowed.Load(), limit, with("weir.outcome", "allowed"))
	o.ObserveInt64(m.decisions, n.Delayed.Load(), limit, with("weir.outcome", "delayed"))
	o.ObserveInt64(m.decisions, n.Refused.Load(), limit, with("weir.outcome", "refused"))
}

func with(key, value string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String(key, value))
}
