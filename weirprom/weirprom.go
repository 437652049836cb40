// Package weirprom exports metrics of limiters to Prometheus.
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
//		"github.com/seed83679106/weir/weirprom"
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
// There are decisions, units and refusals by rule and limit, errors, waiting times, decisions
// that stores make from memory ([New] takes these stores), and reloads of a file of rules
// ([NewFile]). The labels name rules and limits, and never a key. docs/metrics.md in the
// repository lists all of them. The directory of this package has dashboard.json, which shows
// all metrics in Grafana, and rules.yaml, with recording rules and alerts.
package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/tally"
	"github.com/seed83679106/weir/watch"
)

// A Collector counts events, and is a prometheus.Collector of the counts. One Collector
// may observe several Limiters.
//
// It counts at most 1,000 limits separately, because Rule.Policy may return any number of
// different limits. All other limits are counted together, with rule="" and limit="other".
type Collector struct {
	collector
	tally      *tally.Tally
	histograms []*tally.Histogram
}

// New returns a Collector. It also exports the metrics of each store in stores whose method
// Stats returns quota.CacheStats, quota.BreakerStats or quota.FallbackStats, as the stores of
// Hybrid, lease.New, Breaker and Fallback do, and of each such store in a stack, which has a
// method Stores() []weir.Store. It ignores other stores.
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

// Observe counts e. Set it as Observe of weir.Options. If it has seen the limits of e before, it
// allocates nothing.
func (c *Collector) Observe(e weir.Event) {
	for i, d := range c.tally.Observe(&e) {
		if d > 0 {
			c.histograms[i].Observe(d)
		}
	}
}

// NewFile returns a Collector that exports the version of the rules in force, and counts
// reloads. To register a second file, give its metrics another label by
// prometheus.WrapCollectorWith.
func NewFile(file watch.File) prometheus.Collector {
	c := newCollector(tally.FileMetrics(file))
	return &c // a pointer, because collectors are compared
}

// A collector exports metrics.
type collector []metric

type metric struct {
	tally.Metric
	desc      *prometheus.Desc
	histogram *tally.Histogram // nil for counters and gauges
}

func newCollector(metrics []tally.Metric) (c collector) {
	for _, m := range metrics {
		d := metric{Metric: m, desc: prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)}
		if m.Bounds != nil {
			d.histogram = tally.NewHistogram(m.Bounds)
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
			n, sum, upTo := m.histogram.Read()
			ch <- prometheus.MustNewConstHistogram(m.desc, n, sum, upTo)
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
