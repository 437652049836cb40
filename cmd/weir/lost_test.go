package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
)

// valueOf returns the value of a counter.
func valueOf(t *testing.T, c prometheus.Counter) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].Counter.GetValue()
}

func redisClient(t *testing.T, server *redistest.Proc) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// TestLostCounts: every process notices that Redis was emptied, once, also if another one was first. A
// new process notices nothing, nor does one whose Redis has only lost the counts of others.
func TestLostCounts(t *testing.T) {
	server := redistest.Server(t)
	rdb := redisClient(t, server)
	var log weirtest.Log
	process := func() *losses { return newLosses(rdb, "weir:", slog.New(slog.NewTextHandler(&log, nil))) }
	first, second := process(), process()
	check := func(of ...*losses) (noticed []float64) {
		for _, l := range of {
			l.check(t.Context())
			noticed = append(noticed, valueOf(t, l.emptied))
		}
		return noticed
	}
	if got := fmt.Sprint(check(first, second, first)); got != "[0 0 0]" {
		t.Errorf("before: got %s losses", got)
	}
	rdb.Set(t.Context(), "other", "x", 0)
	rdb.Del(t.Context(), "other")
	if got := fmt.Sprint(check(first, second)); got != "[0 0]" || log.String() != "" {
		t.Errorf("another key: got %s losses, log %s", got, &log)
	}
	rdb.FlushAll(t.Context())
	third := process()
	if got := fmt.Sprint(check(third, first, second, first, second, third)); got != "[0 1 1 1 1 0]" {
		t.Errorf("after FLUSHALL: got %s losses, want one of each process that ran before", got)
	}
	if n := strings.Count(log.String(), "counts in Redis lost"); n != 2 {
		t.Errorf("got %d lines, want 2:\n%s", n, &log)
	}
	if ttl := rdb.PTTL(t.Context(), "weir:sentinel").Val(); ttl <= 0 {
		t.Errorf("the sentinel lives for %v, want a TTL", ttl)
	}
}

// TestEvictedCounts: evictions of keys are counted from the start of a process, and logged.
func TestEvictedCounts(t *testing.T) {
	rdb := redisClient(t, redistest.Server(t))
	var log weirtest.Log
	l := newLosses(rdb, "weir:", slog.New(slog.NewTextHandler(&log, nil)))
	l.check(t.Context())
	rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-random")
	rdb.ConfigSet(t.Context(), "maxmemory", "3mb")
	for i := range 300 {
		rdb.Set(t.Context(), fmt.Sprint(i), strings.Repeat("x", 20_000), 0)
	}
	l.check(t.Context())
	if n := valueOf(t, l.evictions); n == 0 || !strings.Contains(log.String(), "keys evicted by Redis") {
		t.Errorf("got %v evictions and the log %s", n, &log)
	}
	before := valueOf(t, l.evictions)
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	rdb.ConfigResetStat(t.Context())
	l.check(t.Context())
	if n := valueOf(t, l.evictions); n != before {
		t.Errorf("after a reset of the statistics: got %v evictions, want %v", n, before)
	}
}
