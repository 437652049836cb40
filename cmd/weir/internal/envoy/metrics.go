package envoy

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// prefix begins the names of the metrics. The names are those that Envoy's service exports to
// Prometheus, so that dashboards for that service keep working.
const prefix = "ratelimit_service_"

var (
	labels     = []string{"domain", "key1", "key2"}
	totalDesc  = prometheus.NewDesc(prefix+"rate_limit_total_hits", "Hits of each limit.", labels, nil)
	withinDesc = prometheus.NewDesc(prefix+"rate_limit_within_limit", "Hits within the limit.", labels, nil)
	nearDesc   = prometheus.NewDesc(prefix+"rate_limit_near_limit",
		"Hits within the limit, but above the fraction of it that -envoy-near sets.", labels, nil)
	overDesc   = prometheus.NewDesc(prefix+"rate_limit_over_limit", "Hits that exceed the limit.", labels, nil)
	shadowDesc = prometheus.NewDesc(prefix+"rate_limit_shadow_mode",
		"Hits that exceed a limit with shadow_mode, which were answered with OK.", labels, nil)
	localDesc = prometheus.NewDesc(prefix+"rate_limit_over_limit_with_local_cache",
		"Hits that exceed the limit for which the store was not called, because of -envoy-over.", labels, nil)
	globalDesc = prometheus.NewDesc(prefix+"global_shadow_mode",
		"Calls that exceed a limit and were answered with OK because of -envoy-shadow.", nil, nil)
	domainDesc = prometheus.NewDesc(prefix+"domain_not_found",
		"Calls of a domain that no file has, which nothing limits.", nil, nil)
	errorDesc = prometheus.NewDesc(prefix+"should_rate_limit_error",
		"Calls answered with an error, because the store failed (redis_error) or the call was invalid (service_error).",
		[]string{"err_type"}, nil)
	loadDesc = prometheus.NewDesc(prefix+"config_load_success", "Number of times that the limits files were loaded.",
		nil, nil)
	failDesc = prometheus.NewDesc(prefix+"config_load_error",
		"Number of times that the limits files had an error, so that the old limits stayed in force.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{totalDesc, withinDesc, nearDesc, overDesc, shadowDesc, localDesc, globalDesc,
		domainDesc, errorDesc, loadDesc, failDesc} {
		ch <- d
	}
	s.calls.requests.Describe(ch)
	s.calls.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	collect := func(l *stats) {
		for _, c := range []struct {
			desc *prometheus.Desc
			n    *atomic.Uint64
		}{{totalDesc, &l.total}, {withinDesc, &l.within}, {nearDesc, &l.near}, {overDesc, &l.over},
			{shadowDesc, &l.shadowed}, {localDesc, &l.local}} {
			count(c.desc, c.n.Load(), l.domain, l.key1, l.key2)
		}
	}
	for _, l := range s.config.Load().stats {
		collect(l)
	}
	collect(s.overrides)
	count(globalDesc, s.shadowed.Load())
	count(domainDesc, s.noDomains.Load())
	count(errorDesc, s.storeErrors.Load(), "redis_error")
	count(errorDesc, s.callErrors.Load(), "service_error")
	count(loadDesc, s.loads.Load())
	count(failDesc, s.failures.Load())
	s.calls.requests.Collect(ch)
	s.calls.seconds.Collect(ch)
}

// callStats are the metrics of calls, by method.
type callStats struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newCallStats() callStats {
	labels := []string{"grpc_method"}
	return callStats{
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "total_requests", Help: "Calls."}, labels),
		prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "response_time_seconds",
			Help:    "Time to answer a call.",
			Buckets: append([]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025}, prometheus.DefBuckets...)}, labels),
	}
}

// observe counts a call of a method, such as /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit,
// which has begun at the given time.
func (c *callStats) observe(method string, began time.Time) {
	method = method[strings.LastIndexByte(method, '/')+1:]
	c.requests.WithLabelValues(method).Inc()
	c.seconds.WithLabelValues(method).Observe(time.Since(began).Seconds())
}

// stats are the metrics of a limit: its labels and its hits, as Envoy's service counts them.
type stats struct {
	domain, key1, key2                  string
	total, within, near, over, shadowed atomic.Uint64
	local                               atomic.Uint64 // the hits of over for which the store was not called
}

func newStats(names []string) *stats {
	s := &stats{domain: names[0], key1: names[1]}
	s.key2 = strings.Join(names[2:], ".")
	return s
}

// count adds a number of hits to the metrics of a limit. The argument after is the number of
// hits in the window, including these hits. Hits above the fraction ratio of the quota are near it.
func (s *stats) count(hits, after, quota uint64, ratio float32, shadow bool) {
	before := after - min(hits, after)
	near := uint64(math.Floor(float64(float32(quota) * ratio)))
	s.total.Add(hits)
	if after <= quota {
		s.within.Add(hits)
		if after > near {
			s.near.Add(min(hits, after-near))
		}
		return
	}
	beyond := min(hits, after-quota)
	s.over.Add(beyond)
	if shadow {
		s.shadowed.Add(beyond)
	}
	if before < quota { // some of the hits were within the quota
		s.near.Add(quota - max(near, before))
	}
}
