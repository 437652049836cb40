// Package weirprom has metrics of limiters for Prometheus: decisions, units and
// refusals by rule and limit, errors, waiting times, and what stores serve from memory.
//
//	metrics := weirprom.New(hybrid, breaker)
//	prometheus.MustRegister(metrics)
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: metrics.Observe})
//
// Its labels name rules and limits, and never a key. docs/metrics.md in the repository
// lists all metrics and labels. dashboard.json beside this package shows all of them in
// Grafana.
package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
)

// A Collector counts events, and is a prometheus.Collector of the counts. One Collector
// may observe several Limiters.
//
// It keeps at most 1,000 limits apart, because LimitsFor may return any number of
// different limits. It counts all others with the labels rule="" and limit="other".
type Collector struct {
	tally  tally.Tally
	stores tally.Stores
	wait   prometheus.Histogram
	store  prometheus.Histogram
}

// New returns a Collector. Its metrics include those of the given stores that Hybrid,
// Breaker or lease.New returned. It ignores other stores.
func New(stores ...weir.Store) *Collector {
	return &Collector{
		stores: stores,
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_wait_seconds", Help: "How long delayed requests wait.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		store: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_store_seconds", Help: "How long the store took to decide.",
			Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1},
		}),
	}
}

// Observe counts e: set it as Observe of weir.Options. It allocates nothing for a limit
// that it has seen before.
func (c *Collector) Observe(e weir.Event) {
	if wait := c.tally.Observe(e); wait > 0 {
		c.wait.Observe(wait.Seconds())
	}
	if e.Took > 0 {
		c.store.Observe(e.Took.Seconds())
	}
}

var (
	decisions = prometheus.NewDesc("weir_decisions_total", "Decisions of each limit.", []string{"rule", "limit", "mode", "outcome"}, nil)
	units     = prometheus.NewDesc("weir_units_total", "Units spent under each limit.", []string{"rule", "limit", "mode"}, nil)
	errs      = prometheus.NewDesc("weir_errors_total", "Requests that could not be decided.", nil, nil)
	banned    = prometheus.NewDesc("weir_banned_total", "Requests that a ban refused.", []string{"rule"}, nil)
	denied    = prometheus.NewDesc("weir_denied_total", "Requests that a deny list refused.", []string{"rule"}, nil)
	served    = prometheus.NewDesc("weir_served_total", "Decisions of Hybrid and leases from memory, and of the store behind them.", []string{"kind", "from"}, nil)
	open      = prometheus.NewDesc("weir_breaker_open", "Number of open breakers.", nil, nil)
	refused   = prometheus.NewDesc("weir_breaker_refused_total", "Decisions that an open breaker did not ask the store for.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{decisions, units, errs, banned, denied, served, open, refused} {
		ch <- d
	}
	c.wait.Describe(ch)
	c.store.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, n, labels...)
	}
	c.tally.Each(func(l tally.Label, n *tally.Counts) {
		mode := l.Mode()
		count(decisions, float64(n.Allowed.Load()), l.Rule, l.Limit, mode, "allowed")
		count(decisions, float64(n.Delayed.Load()), l.Rule, l.Limit, mode, "delayed")
		count(decisions, float64(n.Refused.Load()), l.Rule, l.Limit, mode, "refused")
		count(units, float64(n.Units.Load()), l.Rule, l.Limit, mode)
	}, func(rule string, n int64) { count(banned, float64(n), rule) },
		func(rule string, n int64) { count(denied, float64(n), rule) })
	count(errs, float64(c.tally.Errors.Load()))
	for _, s := range c.stores.Served() {
		count(served, float64(s.Hits), s.Kind, "memory")
		count(served, float64(s.Misses), s.Kind, "store")
	}
	if opened, n, ok := c.stores.Breakers(); ok {
		ch <- prometheus.MustNewConstMetric(open, prometheus.GaugeValue, float64(opened))
		count(refused, float64(n))
	}
	c.wait.Collect(ch)
	c.store.Collect(ch)
}
