package envoy

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// metrics returns the metrics of the service, as Prometheus gets them.
func (c *client) metrics(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Errorf("metrics: got %d", w.Code)
	}
	return w.Body.String()
}

// value returns the value of a counter.
func value(t *testing.T, c prometheus.Counter) uint64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return uint64(families[0].Metric[0].Counter.GetValue())
}

// TestSameLabels: limits whose labels are equal share their metrics, also after a reload.
func TestSameLabels(t *testing.T) {
	const text = `
domain: d
descriptors:
- key: a
  descriptors:
  - {key: b.c, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: b, descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 5}}]}
`
	c := dial(t, text, memstore.New(memstore.Options{}), Options{})
	for range 2 {
		c.call(t, "d", 1, descriptor("a=1 b.c=1"), descriptor("a=1 b=1 c=1"))
		write(t, c.s.o.Path, text+"# changed")
		if err := c.s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.metrics(t), `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b.c"} 4`; !strings.Contains(got, want) {
		t.Errorf("want %s, got\n%s", want, got)
	}
}

// TestRemovedLimits: a reload removes the metrics of limits that are gone, unless another limit shares
// them.
func TestRemovedLimits(t *testing.T) {
	limit := func(key string) string {
		return "- {key: " + key + ", rate_limit: {unit: day, requests_per_unit: 5}}\n"
	}
	const head = "domain: d\ndescriptors:\n"
	c := dial(t, head+limit("gone")+limit("kept"), memstore.New(memstore.Options{}), Options{})
	c.call(t, "d", 1, descriptor("gone=1"), descriptor("kept=1"))
	write(t, c.s.o.Path, head+limit("kept")+limit("new"))
	if err := c.s.Reload(); err != nil {
		t.Fatal(err)
	}
	got := c.metrics(t)
	for _, want := range []string{`total_hits{domain="d",key1="kept",key2=""} 1`, `total_hits{domain="d",key1="new",key2=""} 0`} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	if strings.Contains(got, "gone") {
		t.Errorf("got\n%s\nwant none of the removed limit", got)
	}
}

// TestUnknownDomain: a call of a domain that no file has passes, is counted, and is logged.
func TestUnknownDomain(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{})
	var log weirtest.Log
	c.s.noDomain = slog.New(slog.NewTextHandler(&log, nil))
	if got := c.call(t, "tset-domain", 1, descriptor("key4=a")); got != "OK | OK" {
		t.Errorf("got %s", got)
	}
	c.call(t, strings.Repeat("x", 1<<15), 1, descriptor("key4=a"))
	if got := c.metrics(t); !strings.Contains(got, "ratelimit_service_domain_not_found 2\n") {
		t.Errorf("got the metrics\n%s", got)
	}
	if got := log.String(); !strings.Contains(got, "domain=tset-domain") || len(got) > 1000 {
		t.Errorf("got the log %.2000s", got)
	}
}

// TestMetrics: metrics have the names of Envoy's service, and count hits and errors.
func TestMetrics(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{})
	c.call(t, "test-domain", 20, descriptor("key5=value5 subkey5=subvalue5"))
	c.call(t, "test-domain", 3, descriptor("key5=value5 subkey5=subvalue5"))
	c.call(t, "test-domain", 4, descriptor("key5=value5 subkey5=subvalue5"))
	c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{})
	text := c.metrics(t)
	const labels = `{domain="test-domain",key1="key5_value5",key2="subkey5_subvalue5"}`
	for metric, want := range map[string]float64{
		"ratelimit_service_rate_limit_total_hits" + labels:                             27,
		"ratelimit_service_rate_limit_within_limit" + labels:                           23,
		"ratelimit_service_rate_limit_near_limit" + labels:                             5, // the hits 21 to 25 of 25
		"ratelimit_service_rate_limit_over_limit" + labels:                             2,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"}`:          1,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`:            0,
		"ratelimit_service_config_load_success":                                        1,
		"ratelimit_service_config_load_error":                                          0,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`:              4,
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}`: 4,
	} {
		if line := fmt.Sprintf("%s %v\n", metric, want); !strings.Contains(text, line) {
			t.Errorf("want %s, got\n%s", line, text)
		}
	}
}

// TestNearOption: Options.Near is the fraction of a limit above which hits are near it.
func TestNearOption(t *testing.T) {
	c := dial(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 10}}]", memstore.New(memstore.Options{}), Options{Near: 0.5})
	c.call(t, "d", 8, descriptor("k=a"))
	if got, want := c.metrics(t), `ratelimit_service_rate_limit_near_limit{domain="d",key1="k",key2=""} 3`; !strings.Contains(got, want) {
		t.Errorf("want %s, got\n%s", want, got)
	}
}
