// Package weirprom tells Prometheus what limiters decide:
//
//	metrics := weirprom.New(hybrid, breaker)
//	prometheus.MustRegister(metrics)
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: metrics.Observe})
//
// It counts by rule and limit, and never by key. dashboard.json shows all of it in
// Grafana.
package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
)

// A Collector is a prometheus.Collector of these metrics:
//
//   - weir_decisions_total, by rule, limit, mode (enforced or shadow) and outcome:
//     allowed, delayed, or refused by that limit. Of a refused request the limits
//     that would have let it pass are not counted.
//   - weir_units_total, by rule, limit and mode: what was spent.
//   - weir_errors_total: requests that could not be decided, and by default passed.
//   - weir_banned_total, by rule: requests refused because their key is banned.
//   - weir_denied_total, by rule: requests that its Deny refused.
//   - weir_wait_seconds, a histogram of how long delayed requests wait.
//   - weir_store_seconds, a histogram of how long the store took.
//   - weir_served_total, by kind (hybrid or lease) and from: memory or store.
//   - weir_breaker_open, 1 while a breaker is, and weir_breaker_refused_total.
//
// At most 1,000 limits are told apart, for LimitsFor may make up any number; the
// rest is counted under the limit "other" of no rule.
type Collector struct {
	tally  tally.Tally
	stores tally.Stores
	wait   prometheus.Histogram
	store  prometheus.Histogram
}

// New returns a Collector that also tells of those of the stores that are made by
// Hybrid, a lease.Store or Breaker; the others are ignored.
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

// Observe is for weir.Options. It allocates nothing for limits that it has seen.
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
	banned    = prometheus.NewDesc("weir_banned_total", "Requests of banned keys.", []string{"rule"}, nil)
	denied    = prometheus.NewDesc("weir_denied_total", "Requests that a list refused.", []string{"rule"}, nil)
	served    = prometheus.NewDesc("weir_served_total", "What Hybrid and leases answered from memory, and what the store did.", []string{"kind", "from"}, nil)
	open      = prometheus.NewDesc("weir_breaker_open", "Breakers that are open.", nil, nil)
	refused   = prometheus.NewDesc("weir_breaker_refused_total", "Decisions that an open breaker did not ask for.", nil, nil)
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
		mode := "enforced"
		if l.Shadow {
			mode = "shadow"
		}
		count(decisions, float64(n.Allowed.Load()), l.Rule, l.Limit, mode, "allowed")
		count(decisions, float64(n.Delayed.Load()), l.Rule, l.Limit, mode, "delayed")
		count(decisions, float64(n.Refused.Load()), l.Rule, l.Limit, mode, "refused")
		count(units, float64(n.Units.Load()), l.Rule, l.Limit, mode)
	}, func(rule string, n int64) { count(banned, float64(n), rule) },
		func(rule string, n int64) { count(denied, float64(n), rule) })
	count(errs, float64(c.tally.Errors.Load()))
	sums := map[[2]string]uint64{}
	for _, s := range c.stores.Serving() {
		sums[[2]string{s.Kind, "memory"}] += s.Served
		sums[[2]string{s.Kind, "store"}] += s.Asked
	}
	for labels, n := range sums {
		count(served, float64(n), labels[0], labels[1])
	}
	if breakers := c.stores.Breaking(); len(breakers) > 0 {
		var isOpen, n float64
		for _, b := range breakers {
			if b.Open() {
				isOpen++
			}
			n += float64(b.Refused())
		}
		ch <- prometheus.MustNewConstMetric(open, prometheus.GaugeValue, isOpen)
		count(refused, n)
	}
	c.wait.Collect(ch)
	c.store.Collect(ch)
}
