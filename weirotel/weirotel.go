// Package weirotel reports metrics of limiters to OpenTelemetry:
//
//	observe, err := weirotel.New(otel.Meter("weir"), fallback, hybrid, breaker)
//	…
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: observe})
//
// The metrics are those of package weirprom, named as is usual in OpenTelemetry:
// weir.decisions for weir_decisions_total. docs/metrics.md in the repository lists all
// metrics and attributes. The package imports only the API of OpenTelemetry. Your program
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

// New returns a function for Observe of weir.Options that counts events with instruments
// of the meter. Several Limiters may share that function. The metrics include those of
// each store in stores that Hybrid, Breaker, Fallback or lease.New returned, and of each
// store in a stack, which has a method Stores() []weir.Store. Other stores are ignored. New
// returns the errors of the meter.
func New(meter metric.Meter, stores ...weir.Store) (observe func(weir.Event), err error) {
	m, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	m.stores = tally.StoresOf(stores)
	_, err = meter.RegisterCallback(m.report, m.requests, m.refused, m.errors, m.unlimited, m.bans, m.decisions, m.near, m.units, m.served, m.skipped, m.open, m.rescued, m.active)
	if err != nil {
		return nil, err
	}
	return m.observe, nil
}

// metrics has the counts and the instruments that report them.
type metrics struct {
	tally  tally.Tally
	stores tally.Stores

	requests, refused, errors, unlimited, bans, decisions, near, units, served, skipped, rescued metric.Int64ObservableCounter
	open, active                                                                                 metric.Int64ObservableGauge
	wait, store                                                                                  metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	var errs []error
	histogram := func(name, description string, buckets []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	i := instruments{Meter: meter}
	m := &metrics{
		requests:  i.counter("weir.requests", "{request}", "Requests, whether or not they could be decided."),
		refused:   i.counter("weir.refused", "{request}", "Requests that each rule refused, by reason."),
		errors:    i.counter("weir.errors", "{request}", "Requests that could not be decided, by cause, and whether they passed."),
		unlimited: i.counter("weir.unlimited", "{request}", "Requests that no rule charged or refused."),
		bans:      i.counter("weir.bans", "{ban}", "Bans that began."),
		decisions: i.counter("weir.decisions", "{decision}", "Decisions of each limit."),
		near:      i.counter("weir.near_limit", "{decision}", "Decisions that left less than a fifth of the limit."),
		units:     i.counter("weir.units", "{unit}", "Units spent under each limit."),
		served:    i.counter("weir.served", "{decision}", "Decisions of Hybrid and leases, made in memory or by the store behind them."),
		skipped:   i.counter("weir.breaker.refused", "{decision}", "Decisions for which an open breaker did not ask its store."),
		open:      i.gauge("weir.breaker.open", "{breaker}", "Number of open breakers."),
		rescued:   i.counter("weir.fallback.decisions", "{decision}", "Decisions of the second stores of fallbacks, by why the first did not decide."),
		active:    i.gauge("weir.fallback.active", "{fallback}", "Number of fallbacks whose second store decides now."),
		wait:      histogram("weir.wait", "How long delayed requests wait, in seconds.", tally.WaitBounds),
		store:     histogram("weir.store.duration", "How long the store took to decide, in seconds.", tally.StoreBounds),
	}
	return m, errors.Join(append(errs, i.errs...)...)
}

// instruments makes instruments with a meter, and keeps the errors of the meter.
type instruments struct {
	metric.Meter
	errs []error
}

func (i *instruments) counter(name, unit, description string) metric.Int64ObservableCounter {
	c, err := i.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.errs = append(i.errs, err)
	return c
}

func (i *instruments) gauge(name, unit, description string) metric.Int64ObservableGauge {
	g, err := i.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.errs = append(i.errs, err)
	return g
}

// observe counts an event.
func (m *metrics) observe(e weir.Event) {
	ctx := context.Background()
	if e.Request != nil {
		ctx = e.Request.Context() // for exemplars
	}
	if d := m.tally.Observe(&e); d > 0 {
		m.wait.Record(ctx, d.Seconds())
	}
	if e.Took > 0 {
		m.store.Record(ctx, e.Took.Seconds())
	}
}

// report reports the counts. The meter calls it when metrics are collected.
func (m *metrics) report(_ context.Context, o metric.Observer) error {
	o.ObserveInt64(m.requests, m.tally.Requests())
	m.tally.EachError(func(cause, outcome string, n int64) {
		o.ObserveInt64(m.errors, n, with("weir.cause", cause), with("weir.outcome", outcome))
	})
	o.ObserveInt64(m.unlimited, m.tally.Unlimited.Load())
	m.tally.EachRefused(func(rule, reason, mode string, n int64) {
		o.ObserveInt64(m.refused, n, with("weir.rule", rule), with("weir.reason", reason), with("weir.mode", mode))
	})
	m.tally.EachBans(func(rule string, n int64) { o.ObserveInt64(m.bans, n, with("weir.rule", rule)) })
	m.tally.EachLimit(func(l tally.Label, n *tally.Counts) { m.reportLimit(o, l, n) })
	for _, s := range m.stores.Served() {
		o.ObserveInt64(m.served, s.Hits, with("weir.kind", s.Kind), with("weir.from", "memory"))
		o.ObserveInt64(m.served, s.Misses, with("weir.kind", s.Kind), with("weir.from", "store"))
	}
	if open, refused, ok := m.stores.Breakers(); ok {
		o.ObserveInt64(m.open, open)
		o.ObserveInt64(m.skipped, refused)
	}
	if active, decided, ok := m.stores.Fallbacks(); ok {
		o.ObserveInt64(m.active, active)
		for cause, n := range decided {
			o.ObserveInt64(m.rescued, n, with("weir.cause", cause))
		}
	}
	return nil
}

// reportLimit reports the counts of one limit.
func (m *metrics) reportLimit(o metric.Observer, l tally.Label, n *tally.Counts) {
	limit := metric.WithAttributes(attribute.String("weir.rule", l.Rule), attribute.String("weir.limit", l.Limit), attribute.String("weir.mode", l.Mode()))
	o.ObserveInt64(m.units, n.Units(), limit)
	o.ObserveInt64(m.near, n.Near.Load(), limit)
	o.ObserveInt64(m.decisions, n.Allowed.Load(), limit, with("weir.outcome", "allowed"))
	o.ObserveInt64(m.decisions, n.Delayed.Load(), limit, with("weir.outcome", "delayed"))
	o.ObserveInt64(m.decisions, n.Refused.Load(), limit, with("weir.outcome", "refused"))
}

// A File is a file of rules, such as a *config.File.
type File interface {
	Version() string
	Reloads() (loaded, failed int64)
	Err() error
	Rules() []weir.Rule
}

// ObserveFile makes the meter report the version of the rules in force, and count reloads. It
// returns the errors of the meter.
func ObserveFile(meter metric.Meter, file File) error {
	i := instruments{Meter: meter}
	info := i.gauge("weir.rules.info", "{version}", "1 for the version of the rules in force.")
	stale := i.gauge("weir.rules.stale", "{file}", "1 if the last reload failed, so that the rules in force are not those of the file.")
	rules := i.gauge("weir.rules", "{rule}", "Number of rules in force.")
	reloads := i.counter("weir.reloads", "{reload}", "Reloads of the file of rules, by result.")
	if err := errors.Join(i.errs...); err != nil {
		return err
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(info, 1, with("weir.version", file.Version()))
		failing := int64(0)
		if file.Err() != nil {
			failing = 1
		}
		o.ObserveInt64(stale, failing)
		o.ObserveInt64(rules, int64(len(file.Rules())))
		loaded, failed := file.Reloads()
		o.ObserveInt64(reloads, loaded, with("weir.result", "loaded"))
		o.ObserveInt64(reloads, failed, with("weir.result", "failed"))
		return nil
	}, info, stale, rules, reloads)
	return err
}

func with(key, value string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String(key, value))
}
