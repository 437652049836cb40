package redisstore_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// benchmark calls a function again and again, and reports how many µs the server works on
// each call.
func benchmark(b *testing.B, rdb *redis.Client, do func() error) {
	if err := do(); err != nil { // loads the script into the server
		b.Fatal(err)
	}
	rdb.ConfigResetStat(b.Context())
	b.ReportAllocs()
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	info, err := rdb.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	s := redistest.CommandStats(info)["evalsha"]
	b.ReportMetric(float64(s.Micros)/float64(s.Calls), "server-µs/op")
}

func open(b testing.TB) (*redis.Client, *redisstore.Store) {
	server := redistest.Server(b)
	rdb := redis.NewClient(redisstore.ClientOptions(time.Second, server.Addr()).Simple())
	b.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	return rdb, store
}

// many returns n limits with different periods.
func many(n int, l func(units int64, period time.Duration) quota.Limit) []quota.Limit {
	limits := make([]quota.Limit, n)
	for i := range limits {
		limits[i] = l(1_000_000_000>>(4*i), 10*time.Second>>i).Named(fmt.Sprint("l", i))
	}
	return limits
}

var benchmarks = []struct {
	name   string
	limits []quota.Limit
}{
	{"gcra", []quota.Limit{algorithms.GCRA(1_000_000_000, time.Second)}},
	{"gcra/denied", []quota.Limit{algorithms.GCRA(1, time.Hour)}},
	{"gcra×5", many(5, algorithms.GCRA)},
	{"gcra×5/denied", append(many(4, algorithms.GCRA), algorithms.GCRA(1, time.Hour))},
	{"token-bucket", []quota.Limit{algorithms.TokenBucket(1_000_000, 1_000_000, time.Second)}},
	{"leaky-bucket", []quota.Limit{algorithms.LeakyBucket(1_000_000, 1_000_000, time.Second)}},
	{"fixed-window", []quota.Limit{algorithms.FixedWindow(1<<40, time.Second)}},
	{"anchored-window", []quota.Limit{algorithms.AnchoredWindow(1<<40, time.Second)}},
	{"sliding-window", []quota.Limit{algorithms.SlidingWindow(1<<40, time.Second)}},
	{"calendar", []quota.Limit{algorithms.Calendar(1<<40, algorithms.Day, nil)}},
	{"sliding-log", []quota.Limit{algorithms.SlidingLog(1_000_000, time.Second)}},
	{"sliding-log/denied", []quota.Limit{algorithms.SlidingLog(1, time.Hour)}},
	{"sliding-log×5", many(5, algorithms.SlidingLog)},
	{"sliding-log×5/denied", append(many(4, algorithms.SlidingLog), algorithms.SlidingLog(1, time.Hour))},
}

// BenchmarkServer measures how long the server works on a check under each script.
func BenchmarkServer(b *testing.B) {
	rdb, store := open(b)
	b.Run("return 1", func(b *testing.B) {
		script := redis.NewScript("return 1")
		benchmark(b, rdb, func() error { return script.Run(context.Background(), rdb, []string{"k"}).Err() })
	})
	for _, bench := range benchmarks {
		b.Run(bench.name, func(b *testing.B) {
			rdb.FlushDB(context.Background())
			var t quota.Transaction
			for _, l := range bench.limits {
				t.Charges = append(t.Charges, quota.Charge{Rule: "api", Key: "192.0.2.1", Limit: l, Cost: 1})
			}
			benchmark(b, rdb, func() error { return store.Take(context.Background(), &t) })
		})
	}
}

// BenchmarkMemory measures how many bytes Redis needs for a key, with its name and TTL, and
// for an entry of a log.
func BenchmarkMemory(b *testing.B) {
	rdb, store := open(b)
	used := func(b *testing.B) float64 {
		info, err := rdb.Info(context.Background(), "memory").Result()
		if err != nil {
			b.Fatal(err)
		}
		n, _ := strconv.ParseFloat(regexp.MustCompile(`used_memory_dataset:(\d+)`).FindStringSubmatch(info)[1], 64)
		return n
	}
	for _, bench := range []struct {
		name   string
		limits []quota.Limit
		keys   int
		unit   string
	}{
		{"gcra", []quota.Limit{algorithms.GCRA(100, time.Hour)}, 1 << 30, "B/key"},
		{"gcra×5", many(5, func(int64, time.Duration) quota.Limit { return algorithms.GCRA(100, time.Hour) }), 1 << 30, "B/key"},
		{"sliding-log×5", many(5, func(int64, time.Duration) quota.Limit { return algorithms.SlidingLog(1<<30, time.Hour) }), 1, "B/entry"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			rdb.FlushDB(context.Background())
			before, takes := used(b), 0
			for b.Loop() {
				var t quota.Transaction
				for _, l := range bench.limits {
					t.Charges = append(t.Charges, quota.Charge{Rule: "api", Key: fmt.Sprintf("key %07d", takes%bench.keys), Limit: l, Cost: 1})
				}
				if err := store.Take(context.Background(), &t); err != nil {
					b.Fatal(err)
				}
				takes++
			}
			b.ReportMetric((used(b)-before)/float64(takes), bench.unit)
		})
	}
}

// BenchmarkTrack measures how long after a change by another process a user is allowed whom this process has
// refused from memory. Run it with -benchtime 100x.
func BenchmarkTrack(b *testing.B) {
	server := redistest.Server(b)
	here, other := newService(b, server.Addr()), newService(b, server.Addr())
	for _, c := range changes(b, here, other) {
		b.Run(c.name, func(b *testing.B) {
			var took []time.Duration
			for i := range b.N {
				user := fmt.Sprint(c.name, b.N, " ", i)
				c.begin(user)
				c.watched(b, here, user)
				begin := time.Now()
				for c.end(user); !c.allowed(user); {
					time.Sleep(100 * time.Microsecond)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
		})
	}
}
