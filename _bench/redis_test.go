package main

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
)

// BenchmarkServer measures how long the Redis server works on one check, by its own
// statistics (INFO commandstats), for Weir and for redis_rate:
//
//	go test -C _bench -run '^$' -bench Server -count 6
func BenchmarkServer(b *testing.B) {
	server := redistest.Server(b)
	rdb := redis.NewClient(redisstore.ClientOptions(time.Second, server.Addr()).Simple())
	b.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	peer := redis_rate.NewLimiter(rdb)
	ctx := context.Background()

	several := func(f func(int64, time.Duration) weir.Limit, quota int64) (limits []weir.Limit) {
		for i := range 5 {
			limits = append(limits, f(quota, time.Duration(i+1)*time.Hour).Named(fmt.Sprint(i)))
		}
		return limits
	}
	for _, verdict := range []struct {
		name  string
		quota int64
	}{{"allowed", 10_000_000}, {"denied", 1}} {
		b.Run("redis_rate/"+verdict.name, func(b *testing.B) {
			limit := redis_rate.Limit{Rate: int(verdict.quota), Burst: int(verdict.quota), Period: time.Hour}
			measure(b, rdb, func() error { _, err := peer.Allow(ctx, verdict.name, limit); return err })
		})
		for _, c := range []struct {
			name   string
			limits []weir.Limit
		}{
			{"gcra", several(algorithms.GCRA, verdict.quota)[:1]},
			{"five gcra", several(algorithms.GCRA, verdict.quota)},
			{"fixed window", several(algorithms.FixedWindow, verdict.quota)[:1]},
			{"three fixed windows", several(algorithms.FixedWindow, verdict.quota)[:3]},
			{"anchored window", several(algorithms.AnchoredWindow, verdict.quota)[:1]},
			{"sliding window", several(algorithms.SlidingWindow, verdict.quota)[:1]},
			{"five logs", several(algorithms.SlidingLog, min(verdict.quota, 200))},
		} {
			b.Run(c.name+"/"+verdict.name, func(b *testing.B) {
				measureStore(b, rdb, store, c.name, c.limits, verdict.name, verdict.quota > 1)
			})
		}
	}
}

// measureStore measures checks of a key. The logs get a new key before they are full.
func measureStore(b *testing.B, rdb *redis.Client, store weir.Store, rule string, limits []weir.Limit, key string, allowed bool) {
	ctx := b.Context()
	var t weir.Transaction
	for _, l := range limits {
		t.Charges = append(t.Charges, weir.Charge{Rule: rule, Key: key, Limit: l, Cost: 1})
	}
	n := 0
	rdb.FlushDB(ctx)
	measure(b, rdb, func() error {
		if n++; rule == "five logs" && allowed && n%200 == 0 { // a new key, because the log is nearly full
			for i := range t.Charges {
				t.Charges[i].Key = strconv.Itoa(n)
			}
		}
		err := store.Take(ctx, &t)
		if err == nil && n > 1 && t.Allowed() != allowed {
			return fmt.Errorf("wrong decision: %+v", t.Decisions)
		}
		return err
	})
}

func measure(b *testing.B, rdb *redis.Client, do func() error) {
	if err := do(); err != nil { // loads the script into the server
		b.Fatal(err)
	}
	rdb.ConfigResetStat(b.Context())
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	calls, usec, err := serverTime(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(usec/calls, "server-µs/op")
}
