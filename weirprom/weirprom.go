// Package weirprom exports metrics of limiters to Prometheus: decisions, units and refusals
// by rule and limit, errors, waiting times, decisions that stores make from memory, and
// reloads of a file of rules:
//
//	metrics := weirprom.New(fallback, hybrid, breaker)
//	prometheus.MustRegister(metrics, weirprom.NewFile(rules))
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: metrics.Observe})
//
// The labels name rules and limits, and never a key. docs/metrics.md in the repository
// lists all metrics and labels. The directory of this package has dashboard.json, which
// shows all metrics in Grafana, and rules.yaml, with recording rules and alerts.
package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
)

// A Collector counts events, and is a prometheus.Collector of the counts. One Collector
// may observe several Limiters.
//
// It counts at most 1,000 limits separately, because LimitsFor may return any number of
// different limits. All other limits are counted together, with rule="" and limit="other".
type Collector struct {
	tally       tally.Tally
	stores      tally.Stores
	wait, store *tally.Histogram
}

// New returns a Collector. It also exports the metrics of each store in stores that Hybrid,
// Breaker, Fallback or lease.New returned, and of each store in a stack, which has a method
// Stores() []weir.Store. It ignores other stores.
func New(stores ...weir.Store) *Collector {
	return &Collector{stores: tally.StoresOf(stores), wait: tally.NewHistogram(tally.WaitBounds), store: tally.NewHistogram(tally.StoreBounds)}
}

// Observe counts e. Set it as Observe of weir.Options. If it has seen the limits of e before, it
// allocates nothing.
func (c *Collector) Observe(e weir.Event) {
	if wait := c.tally.Observe(&e); wait > 0 {
		c.wait.Observe(wait)
	}
	if e.Took > 0 {
		c.store.Observe(e.Took)
	}
}

var (
	requests  = prometheus.NewDesc("weir_requests_total", "Requests, whether or not they could be decided.", nil, nil)
	refused   = prometheus.NewDesc("weir_refused_total", "Requests that each rule refused, by reason.", []string{"rule", "reason", "mode"}, nil)
	errs      = prometheus.NewDesc("weir_errors_total", "Requests that could not be decided, by cause, and whether they passed.", []string{"cause", "outcome"}, nil)
	unlimited = prometheus.NewDesc("weir_unlimited_total", "Requests that no rule charged or refused.", nil, nil)
	bans      = prometheus.NewDesc("weir_bans_total", "Bans that began.", []string{"rule"}, nil)
	decisions = prometheus.NewDesc("weir_decisions_total", "Decisions of each limit.", []string{"rule", "limit", "mode", "outcome"}, nil)
	near      = prometheus.NewDesc("weir_near_limit_total", "Decisions that left less than a fifth of the limit.", []string{"rule", "limit", "mode"}, nil)
	units     = prometheus.NewDesc("weir_units_total", "Units spent under each limit.", []string{"rule", "limit", "mode"}, nil)
	wait      = prometheus.NewDesc("weir_wait_seconds", "How long delayed requests wait, in seconds.", nil, nil)
	store     = prometheus.NewDesc("weir_store_seconds", "How long the store took to decide, in seconds.", nil, nil)
	served    = prometheus.NewDesc("weir_served_total", "Decisions of Hybrid and leases, made in memory or by the store behind them.", []string{"kind", "from"}, nil)
	open      = prometheus.NewDesc("weir_breaker_open", "Number of open breakers.", nil, nil)
	active    = prometheus.NewDesc("weir_fallback_active", "Number of fallbacks whose second store decides now.", nil, nil)
	rescued   = prometheus.NewDesc("weir_fallback_decisions_total", "Decisions of the second stores of fallbacks, by why the first did not decide.", []string{"cause"}, nil)
	skipped   = prometheus.NewDesc("weir_breaker_refused_total", "Decisions for which an open breaker did not ask its store.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requests, refused, errs, unlimited, bans, decisions, near, units, wait, store, served, open, skipped, active, rescued} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	m := metrics(ch)
	m.count(requests, c.tally.Requests())
	c.tally.EachError(func(cause, outcome string, n int64) { m.count(errs, n, cause, outcome) })
	m.count(unlimited, c.tally.Unlimited.Load())
	c.tally.EachRefused(func(rule, reason, mode string, n int64) { m.count(refused, n, rule, reason, mode) })
	c.tally.EachBans(func(rule string, n int64) { m.count(bans, n, rule) })
	c.tally.EachLimit(func(l tally.Label, n *tally.Counts) {
		m.count(decisions, n.Allowed.Load(), l.Rule, l.Limit, l.Mode(), "allowed")
		m.count(decisions, n.Delayed.Load(), l.Rule, l.Limit, l.Mode(), "delayed")
		m.count(decisions, n.Refused.Load(), l.Rule, l.Limit, l.Mode(), "refused")
		m.count(near, n.Near.Load(), l.Rule, l.Limit, l.Mode())
		m.count(units, n.Units(), l.Rule, l.Limit, l.Mode())
	})
	m.histogram(wait, c.wait)
	m.histogram(store, c.store)
	for _, s := range c.stores.Served() {
		m.count(served, s.Hits, s.Kind, "memory")
		m.count(served, s.Misses, s.Kind, "store")
	}
	if opened, n, ok := c.stores.Breakers(); ok {
		m.gauge(open, opened)
		m.count(skipped, n)
	}
	if n, decided, ok := c.stores.Fallbacks(); ok {
		m.gauge(active, n)
		for cause, n := range decided {
			m.count(rescued, n, cause)
		}
	}
}

// metrics is the channel to which Collect sends metrics.
type metrics chan<- prometheus.Metric

func (m metrics) count(d *prometheus.Desc, n int64, labels ...string) {
	m <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (m metrics) gauge(d *prometheus.Desc, n int64, labels ...string) {
	m <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
}

func (m metrics) histogram(d *prometheus.Desc, h *tally.Histogram) {
	n, sum, upTo := h.Read()
	m <- prometheus.MustNewConstHistogram(d, n, sum, upTo)
}

// A File is a file of rules, such as a *config.File.
type File interface {
	Version() string
	Reloads() (loaded, failed int64)
	Err() error
	Rules() []weir.Rule
}

// NewFile returns a Collector that exports the version of the rules in force, and counts
// reloads. To register a second file, give its metrics another label by
// prometheus.WrapCollectorWith.
func NewFile(file File) prometheus.Collector { return fileCollector{file} }

type fileCollector struct{ File }

var (
	info    = prometheus.NewDesc("weir_rules_info", "1 for the version of the rules in force.", []string{"version"}, nil)
	stale   = prometheus.NewDesc("weir_rules_stale", "1 if the last reload failed, so that the rules in force are not those of the file.", nil, nil)
	rules   = prometheus.NewDesc("weir_rules", "Number of rules in force.", nil, nil)
	reloads = prometheus.NewDesc("weir_reloads_total", "Reloads of the file of rules, by result.", []string{"result"}, nil)
)

func (c fileCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{info, stale, rules, reloads} {
		ch <- d
	}
}

func (c fileCollector) Collect(ch chan<- prometheus.Metric) {
	m := metrics(ch)
	m.gauge(info, 1, c.Version())
	failing := int64(0)
	if c.Err() != nil {
		failing = 1
	}
	m.gauge(stale, failing)
	m.gauge(rules, int64(len(c.Rules())))
	loaded, failed := c.Reloads()
	m.count(reloads, loaded, "loaded")
	m.count(reloads, failed, "failed")
}
