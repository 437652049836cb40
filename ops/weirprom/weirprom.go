// Package weirprom exports rate-limiting metrics to Prometheus.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/prometheus/client_golang/prometheus"
//		"github.com/prometheus/client_golang/prometheus/promhttp"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//		"github.com/seed83679106/weir/ops/weirprom"
//	)
//
//	func main() {
//		metrics := weirprom.New()
//		prometheus.MustRegister(metrics)
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
//			Rules:   []weir.Rule{{Name: "files", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}}},
//			Observe: metrics.Observe,
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//		http.Handle("/metrics", promhttp.Handler())
//		http.Handle("/", limiter.Handler(http.FileServer(http.Dir("public"))))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
// # Metrics
//
// A Collector counts decisions, units and refusals by rule and limit. A Collector also counts
// errors and measures waiting times. If you pass stores to [New], the Collector also exports how
// many decisions each store made from memory. The Collector returned by [NewFile] exports the
// number of reloads of a rules file. Labels contain the names of rules and limits, but never a key.
// All metrics are listed in ops/weirprom/METRICS.md in the repository. The package directory
// contains a Grafana dashboard in dashboard.json, and recording rules and alerts in rules.yaml.
package weirprom

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/watch"
)

// A Collector is a prometheus.Collector that counts the events of one or more Limiters.
//
// A Collector counts at most 1,000 limits separately, because Rule.Policy can return any number of
// different limits. Any further limits are counted together under rule="" and limit="other".
type Collector struct {
	collector
	tally      *tally.Tally
	histograms []prometheus.Histogram
}

// New returns a Collector that also exports metrics of the given stores. A store has metrics if its
// Stats method returns quota.CacheStats, quota.MemoryStats, quota.LossStats, quota.BreakerStats or
// quota.FallbackStats. Stores from memstore.New, quota.Hybrid, lease.New, quota.Breaker and
// quota.Fallback have such a method. If a store has a method Stores() []weir.Store, as in package
// stack, New exports the metrics of its component stores. It ignores all other stores.
func New(stores ...weir.Store) *Collector {
	c := &Collector{tally: tally.New(stores...)}
	c.collector = newCollector(c.tally.Metrics())
	for _, m := range c.collector {
		if m.histogram != nil {
			c.histograms = append(c.histograms, m.histogram)
		}
	}
	return c
}

// Observe counts the event e. Set weir.Options.Observe to this method. Observe does not allocate if
// the Collector has already seen the limits in e.
func (c *Collector) Observe(e weir.Event) {
	for i, d := range c.tally.Observe(&e) {
		if d > 0 {
			c.histograms[i].Observe(d.Seconds())
		}
	}
}

// Expect makes the counters of refusals and bans begin with 0 for the given rules. Otherwise a
// counter has no series before its first increase, and an alert such as WeirBans misses that
// increase. Call Expect again after a reload. Expect does not change counters that already have a
// series.
func (c *Collector) Expect(rules ...weir.Rule) { c.tally.Expect(rules) }

// NewFile returns a Collector that exports the version of the current rules and the number of
// reloads. To register a second file, add a label to its metrics with prometheus.WrapCollectorWith.
func NewFile(file watch.File) prometheus.Collector {
	c := newCollector(tally.FileMetrics(file))
	return &c // a pointer, because collectors are compared
}

// Open is like ops.Open, but the returned handler operators also serves /metrics, which requires
// the token, with the metrics of the rules, the file, the store, the process and the Go runtime.
// Open sets o.Metrics, which must be nil. If o.Observe is set, it is still called for each Event.
func Open(ctx context.Context, path string, store weir.Store, o ops.Options) (
	rules *config.File, operators http.Handler, err error) {
	if o.Metrics != nil {
		return nil, nil, errors.New("weirprom: ops.Options.Metrics is set; want nil, because Open sets it")
	}
	metrics, registry := New(store), prometheus.NewRegistry()
	registry.MustRegister(metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	observe, text := o.Observe, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	o.Observe = func(e weir.Event) {
		metrics.Observe(e)
		if observe != nil {
			observe(e)
		}
	}
	o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		metrics.Expect(rules.Rules()...) // a reload may have added rules
		text.ServeHTTP(w, r)
	})
	if rules, operators, err = ops.Open(ctx, path, store, o); err != nil {
		return nil, nil, err
	}
	registry.MustRegister(NewFile(rules))
	return rules, operators, nil
}

// A collector exports metrics.
type collector []metric

type metric struct {
	tally.Metric
	desc      *prometheus.Desc
	histogram prometheus.Histogram // nil for counters and gauges
}

func newCollector(metrics []tally.Metric) (c collector) {
	for _, m := range metrics {
		d := metric{Metric: m, desc: prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)}
		if m.Bounds != nil {
			d.histogram = prometheus.NewHistogram(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Bounds})
		}
		c = append(c, d)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c {
		if m.histogram != nil {
			ch <- m.histogram
			continue
		}
		kind := prometheus.CounterValue
		if m.Kind == "gauge" {
			kind = prometheus.GaugeValue
		}
		m.Read(func(n int64, values ...string) {
			ch <- prometheus.MustNewConstMetric(m.desc, kind, float64(n), values...)
		})
	}
}
