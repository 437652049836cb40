package tally

import (
	"strings"

	"github.com/seed83679106/weir/quota"
)

// A Metric is a line of the table of metrics that packages weirprom and weirotel export. A test
// compares the table with ops/weirprom/METRICS.md.
type Metric struct {
	Name   string // for Prometheus
	Otel   string // the name for OpenTelemetry
	Kind   string // "counter", "gauge" or "histogram"
	Unit   string // for OpenTelemetry
	Help   string
	Labels []string // for OpenTelemetry, each with the prefix "weir."

	Read   Read      // nil for a histogram: see Tally.Observe
	Bounds []float64 // the upper bounds of a histogram, in seconds
}

// An Emit function receives one number of a metric, with the values of Labels.
type Emit func(n int64, values ...string)

// A Read function calls emit once for each number of a metric.
type Read func(emit Emit)

func counter(name, otel, unit, help string, read Read, labels ...string) Metric {
	return Metric{name, otel, "counter", unit, help, labels, read, nil}
}

func gauge(name, otel, unit, help string, read Read, labels ...string) Metric {
	return Metric{name, otel, "gauge", unit, help, labels, read, nil}
}

func histogram(name, otel, help string, bounds ...float64) Metric {
	return Metric{name, otel, "histogram", "s", help, nil, nil, bounds}
}

// Metrics returns the metrics of t and of its stores. A metric of stores has no values if t has no
// such store.
func (t *Tally) Metrics() []Metric {
	return []Metric{
		counter("weir_requests_total", "weir.requests", "{request}", "All requests.",
			func(emit Emit) { emit(t.requests.Load()) }),
		counter("weir_refused_total", "weir.refused", "{request}", "Requests that each rule refused, by reason.",
			t.readRefused, "rule", "reason", "mode"),
		counter("weir_errors_total", "weir.errors", "{request}",
			"Requests whose limits could not be checked, by the cause of the error.",
			t.readErrors, "cause", "outcome"),
		counter("weir_unlimited_total", "weir.unlimited", "{request}", "Requests that no rule charged or refused.",
			func(emit Emit) { emit(t.unlimited.Load()) }),
		counter("weir_bans_total", "weir.bans", "{ban}", "Bans that began with a refusal.",
			t.readBans, "rule"),
		counter("weir_decisions_total", "weir.decisions", "{decision}", "Decisions of each limit.",
			t.readLimits(func(n *counts, emit Emit) {
				emit(n.allowed.Load(), "allowed")
				emit(n.delayed.Load(), "delayed")
				emit(n.refused.Load(), "refused")
			}), "rule", "limit", "mode", "outcome"),
		counter("weir_near_limit_total", "weir.near_limit", "{decision}",
			"Decisions that left less than a fifth of the limit.",
			t.readLimits(func(n *counts, emit Emit) { emit(n.near.Load()) }), "rule", "limit", "mode"),
		counter("weir_units_total", "weir.units", "{unit}", "Units spent under each limit.",
			t.readLimits(func(n *counts, emit Emit) { emit(n.units.Load()) }), "rule", "limit", "mode"),
		histogram("weir_wait_seconds", "weir.wait", "How long delayed requests wait, in seconds.",
			.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60),
		histogram("weir_store_seconds", "weir.store.duration", "How long the store took to decide, in seconds; only of stores that call a server.",
			1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10),
		counter("weir_served_total", "weir.served", "{decision}",
			"Decisions of Hybrid and leases, made in memory or by the store behind them.",
			readStats(t.stores, func(s quota.CacheStats, emit Emit) {
				emit(s.Hits, s.Kind, "memory")
				emit(s.Misses, s.Kind, "store")
			}), "kind", "from"),
		counter("weir_watched_total", "weir.watched", "{event}",
			"Refusals in memory whose changes Redis reports: how many it began to watch, and how many changed.",
			readStats(t.stores, func(s quota.CacheStats, emit Emit) {
				if s.Kind == "hybrid" {
					emit(s.Watched, "began")
					emit(s.Changes, "changed")
				}
			}), "event"),
		counter("weir_memory_evicted_total", "weir.memory.evicted", "{state}",
			"States that full stores in memory have evicted, so that their keys have the whole quota again.",
			readStats(t.stores, func(s quota.MemoryStats, emit Emit) { emit(s.Evicted) })),
		counter("weir_redis_lost_total", "weir.redis.lost", "{loss}", "How often this process has noticed that Redis had lost counts.",
			readStats(t.stores, func(s quota.LossStats, emit Emit) { emit(s.Lost) })),
		counter("weir_redis_evicted_total", "weir.redis.evicted", "{key}", "Keys that Redis has evicted, of all its users.",
			readStats(t.stores, func(s quota.LossStats, emit Emit) { emit(s.Evicted) })),
		gauge("weir_breaker_open", "weir.breaker.open", "{breaker}", "Number of open breakers.",
			readStats(t.stores, func(s quota.BreakerStats, emit Emit) { emit(number(s.Open)) })),
		counter("weir_breaker_refused_total", "weir.breaker.refused", "{decision}",
			"Decisions for which an open breaker did not call its store.",
			readStats(t.stores, func(s quota.BreakerStats, emit Emit) { emit(s.Refused) })),
		gauge("weir_fallback_active", "weir.fallback.active", "{fallback}",
			"Number of fallbacks whose second store decides now.",
			readStats(t.stores, func(s quota.FallbackStats, emit Emit) { emit(number(s.Active)) })),
		counter("weir_fallback_decisions_total", "weir.fallback.decisions", "{decision}",
			"Decisions of the second stores of fallbacks, by the error of the first store.",
			readStats(t.stores, func(s quota.FallbackStats, emit Emit) {
				for cause, n := range s.Decided {
					emit(n, cause)
				}
			}), "cause"),
	}
}

// A file is a rules file, such as a watch.File.
type file[R any] interface {
	Version() string
	Reloads() (loaded, failed int64)
	Err() error
	Rules() []R
}

// FileMetrics returns the metrics of a rules file.
func FileMetrics[R any](file file[R]) []Metric {
	return []Metric{
		gauge("weir_rules_info", "weir.rules.info", "{version}", "1 for the version of the rules in force.",
			func(emit Emit) { emit(1, file.Version()) }, "version"),
		gauge("weir_rules_stale", "weir.rules.stale", "{file}",
			"1 if the last reload failed, so that the rules in force are not those of the file.",
			func(emit Emit) { emit(number(file.Err() != nil)) }),
		gauge("weir_rules", "weir.rules", "{rule}", "Number of rules in force.",
			func(emit Emit) { emit(int64(len(file.Rules()))) }),
		counter("weir_reloads_total", "weir.reloads", "{reload}", "Reloads of the file of rules, by result.",
			func(emit Emit) {
				loaded, failed := file.Reloads()
				emit(loaded, "loaded")
				emit(failed, "failed")
			}, "result"),
	}
}

// readStats returns a Read function for the stores whose Stats method returns an S. It adds up the
// numbers that have the same label values. Label values must not contain a space.
func readStats[S any](stores []quota.Store, read func(s S, emit Emit)) Read {
	return func(emit Emit) {
		sums := map[string]int64{}
		for _, store := range stores {
			if store, ok := store.(interface{ Stats() S }); ok {
				read(store.Stats(), func(n int64, values ...string) { sums[strings.Join(values, " ")] += n })
			}
		}
		for values, n := range sums {
			emit(n, strings.Fields(values)...)
		}
	}
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
