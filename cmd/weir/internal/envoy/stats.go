package envoy

import (
	"math"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// nearLimit is the fraction of a limit above which hits are counted as near the limit.
const nearLimit = 0.8

// stats are the metrics of a limit: its labels and its hits, as Envoy's service counts them.
type stats struct {
	domain, key1, key2                  string
	total, within, near, over, shadowed atomic.Uint64
}

func newStats(names []string) *stats {
	s := &stats{domain: names[0], key1: names[1]}
	s.key2 = strings.Join(names[2:], ".")
	return s
}

// count adds a number of hits to the metrics of a limit. The argument after is the number of
// hits in the window, including these hits. The result reports whether the window exceeds the quota.
func (s *stats) count(hits, after, quota uint64, shadow bool) (over bool) {
	before := after - min(hits, after)
	near := uint64(math.Floor(float64(float32(quota) * float32(nearLimit))))
	s.total.Add(hits)
	if after <= quota {
		s.within.Add(hits)
		if after > near {
			s.near.Add(min(hits, after-near))
		}
		return false
	}
	beyond := min(hits, after-quota)
	s.over.Add(beyond)
	if shadow {
		s.shadowed.Add(beyond)
	}
	if before < quota { // some of the hits were within the quota
		s.near.Add(quota - max(near, before))
	}
	return true
}

// prefix begins the names of the metrics. The names are those that Envoy's service exports to
// Prometheus, so that dashboards for that service keep working.
const prefix = "ratelimit_service_"

var (
	labels     = []string{"domain", "key1", "key2"}
	totalDesc  = prometheus.NewDesc(prefix+"rate_limit_total_hits", "Hits of each limit.", labels, nil)
	withinDesc = prometheus.NewDesc(prefix+"rate_limit_within_limit", "Hits within the limit.", labels, nil)
	nearDesc   = prometheus.NewDesc(prefix+"rate_limit_near_limit", "Hits above 80 % of the limit that are still within it.", labels, nil)
	overDesc   = prometheus.NewDesc(prefix+"rate_limit_over_limit", "Hits over the limit.", labels, nil)
	shadowDesc = prometheus.NewDesc(prefix+"rate_limit_shadow_mode", "Hits over a limit with shadow_mode, which were answered with OK.", labels, nil)
	errorDesc  = prometheus.NewDesc(prefix+"should_rate_limit_error", "Calls answered with an error, because the store failed (redis_error) or the call was invalid (service_error).", []string{"err_type"}, nil)
	loadDesc   = prometheus.NewDesc(prefix+"config_load_success", "Number of times that the files of limits were loaded.", nil, nil)
	failDesc   = prometheus.NewDesc(prefix+"config_load_error", "Number of times that the files of limits had an error, so that the old limits stayed in force.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{totalDesc, withinDesc, nearDesc, overDesc, shadowDesc, errorDesc, loadDesc, failDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, l := range append(s.config.Load().limits, &limit{stats: s.overrides}) {
		for _, c := range []struct {
			desc *prometheus.Desc
			n    *atomic.Uint64
		}{{totalDesc, &l.total}, {withinDesc, &l.within}, {nearDesc, &l.near}, {overDesc, &l.over}, {shadowDesc, &l.shadowed}} {
			count(c.desc, c.n.Load(), l.domain, l.key1, l.key2)
		}
	}
	count(errorDesc, s.storeErrors.Load(), "redis_error")
	count(errorDesc, s.callErrors.Load(), "service_error")
	count(loadDesc, s.loads.Load())
	count(failDesc, s.failures.Load())
}
