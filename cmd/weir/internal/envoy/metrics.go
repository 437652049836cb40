package envoy

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// prefix is the prefix of the names of the metrics. Envoy's service exports the same names to
// Prometheus, so dashboards for that service keep working.
const prefix = "ratelimit_service_"

// metrics are the metrics of a service. Limits with equal labels share their metrics, even after a
// reload.
type metrics struct {
	total, within, near, over, shadowed, local *prometheus.CounterVec // of limits: see stats

	globalShadow, noDomain, loads, failures prometheus.Counter
	storeErrors, callErrors                 prometheus.Counter

	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// newMetrics registers metrics with r, or with no registry if r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	m, with := &metrics{}, promauto.With(r)
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	ofLimits := func(name, help string) *prometheus.CounterVec { return vec(name, help, "domain", "key1", "key2") }
	counter := func(name, help string) prometheus.Counter { return vec(name, help).WithLabelValues() }

	m.total = ofLimits("rate_limit_total_hits", "Hits of each limit.")
	m.within = ofLimits("rate_limit_within_limit", "Hits within the limit.")
	m.near = ofLimits("rate_limit_near_limit", "Hits within the limit, but above the fraction of it that -envoy-near sets.")
	m.over = ofLimits("rate_limit_over_limit", "Hits that exceed the limit.")
	m.shadowed = ofLimits("rate_limit_shadow_mode", "Hits that exceed a limit with shadow_mode, which were answered with OK.")
	m.local = ofLimits("rate_limit_over_limit_with_local_cache",
		"Hits that exceed the limit for which the store was not called, because of -envoy-over.")
	m.globalShadow = counter("global_shadow_mode", "Calls that exceed a limit and were answered with OK because of -envoy-shadow.")
	m.noDomain = counter("domain_not_found", "Calls of a domain that no file has, which nothing limits.")
	m.loads = counter("config_load_success", "Number of times that the limits files were loaded.")
	m.failures = counter("config_load_error",
		"Number of times that the limits files had an error, so that the old limits stayed in force.")
	failed := vec("should_rate_limit_error",
		"Calls answered with an error, because the store failed (redis_error) or the call was invalid (service_error).", "err_type")
	m.storeErrors, m.callErrors = failed.WithLabelValues("redis_error"), failed.WithLabelValues("service_error")
	m.requests = vec("total_requests", "Calls.", "grpc_method")
	m.seconds = with.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "response_time_seconds",
		Help:    "Time to answer a call.",
		Buckets: append([]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025}, prometheus.DefBuckets...)}, []string{"grpc_method"})
	return m
}

// observe counts a call that began at the given time. It is given the full name of the called
// method, such as /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit.
func (m *metrics) observe(method string, began time.Time) {
	method = method[strings.LastIndexByte(method, '/')+1:]
	m.requests.WithLabelValues(method).Inc()
	m.seconds.WithLabelValues(method).Observe(time.Since(began).Seconds())
}

// stats holds the metrics of a limit, which count its hits as Envoy's service does.
type stats struct {
	total, within, near, over, shadowed, local prometheus.Counter
}

// statsOf returns the metrics of a limit with the labels domain, key1 and key2.
func (m *metrics) statsOf(labels [3]string) *stats {
	of := func(v *prometheus.CounterVec) prometheus.Counter { return v.WithLabelValues(labels[:]...) }
	return &stats{of(m.total), of(m.within), of(m.near), of(m.over), of(m.shadowed), of(m.local)}
}

// remove removes the metrics of a limit.
func (m *metrics) remove(labels [3]string) {
	for _, v := range []*prometheus.CounterVec{m.total, m.within, m.near, m.over, m.shadowed, m.local} {
		v.DeleteLabelValues(labels[:]...)
	}
}

// count adds hits to the metrics of a limit. It is given the number of hits in the window,
// including these (after), and a fraction of the quota above which hits count as near the limit.
func (s *stats) count(hits, after, quota uint64, ratio float32, shadow bool) {
	before := after - min(hits, after)
	near := uint64(math.Floor(float64(float32(quota) * ratio)))
	s.total.Add(float64(hits))
	if after <= quota {
		s.within.Add(float64(hits))
		if after > near {
			s.near.Add(float64(min(hits, after-near)))
		}
		return
	}
	beyond := float64(min(hits, after-quota))
	s.over.Add(beyond)
	if shadow {
		s.shadowed.Add(beyond)
	}
	if before < quota { // some of the hits were within the quota
		s.near.Add(float64(quota - max(near, before)))
	}
}
