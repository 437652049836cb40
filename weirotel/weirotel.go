// Package weirotel tells OpenTelemetry what limiters decide, in the metrics and
// with the meaning of package weirprom, named as is usual there: weir.decisions
// for weir_decisions_total. It needs the API only; what is done with it is for the
// program to say.
package weirotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
)

// New returns an Observe for weir.Options that counts with instruments of the
// meter. It also tells of those of the stores that are made by Hybrid, a lease.Store or
// Breaker. The error is that of the meter.
func New(meter metric.Meter, stores ...weir.Store) (observe func(weir.Event), err error) {
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
	var (
		decisions = counter("weir.decisions", "{decision}", "Decisions of each limit.")
		units     = counter("weir.units", "{unit}", "Units spent under each limit.")
		failed    = counter("weir.errors", "{request}", "Requests that could not be decided.")
		banned    = counter("weir.banned", "{request}", "Requests of banned keys.")
		denied    = counter("weir.denied", "{request}", "Requests that a list refused.")
		served    = counter("weir.served", "{decision}", "What Hybrid and leases answered from memory, and what the store did.")
		refused   = counter("weir.breaker.refused", "{decision}", "Decisions that an open breaker did not ask for.")
		wait      = histogram("weir.wait", "How long delayed requests wait.", .001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60)
		store     = histogram("weir.store.duration", "How long the store took to decide.", 1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1)
	)
	open, err := meter.Int64ObservableGauge("weir.breaker.open", metric.WithUnit("{breaker}"), metric.WithDescription("Breakers that are open."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}

	t, all := new(tally.Tally), tally.Stores(stores)
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		t.Each(func(l tally.Label, n *tally.Counts) {
			mode := "enforced"
			if l.Shadow {
				mode = "shadow"
			}
			limit := attribute.NewSet(attribute.String("weir.rule", l.Rule), attribute.String("weir.limit", l.Limit), attribute.String("weir.mode", mode))
			o.ObserveInt64(units, n.Units.Load(), metric.WithAttributeSet(limit))
			for _, d := range []struct {
				outcome string
				n       int64
			}{{"allowed", n.Allowed.Load()}, {"delayed", n.Delayed.Load()}, {"refused", n.Refused.Load()}} {
				o.ObserveInt64(decisions, d.n, metric.WithAttributeSet(limit), metric.WithAttributes(attribute.String("weir.outcome", d.outcome)))
			}
		}, func(rule string, n int64) {
			o.ObserveInt64(banned, n, metric.WithAttributes(attribute.String("weir.rule", rule)))
		}, func(rule string, n int64) {
			o.ObserveInt64(denied, n, metric.WithAttributes(attribute.String("weir.rule", rule)))
		})
		o.ObserveInt64(failed, t.Errors.Load())
		for _, s := range all.Serving() {
			kind := attribute.String("weir.kind", s.Kind)
			o.ObserveInt64(served, int64(s.Served), metric.WithAttributes(kind, attribute.String("weir.from", "memory")))
			o.ObserveInt64(served, int64(s.Asked), metric.WithAttributes(kind, attribute.String("weir.from", "store")))
		}
		if breakers := all.Breaking(); len(breakers) > 0 {
			var isOpen, n int64
			for _, b := range breakers {
				if b.Open() {
					isOpen++
				}
				n += b.Refused()
			}
			o.ObserveInt64(open, isOpen)
			o.ObserveInt64(refused, n)
		}
		return nil
	}, decisions, units, failed, banned, denied, served, refused, open)
	if err != nil {
		return nil, err
	}
	return func(e weir.Event) {
		ctx := context.Background()
		if e.Request != nil {
			ctx = e.Request.Context() // for exemplars
		}
		if d := t.Observe(e); d > 0 {
			wait.Record(ctx, d.Seconds())
		}
		if e.Took > 0 {
			store.Record(ctx, e.Took.Seconds())
		}
	}, nil
}
