package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// growth measures how the cost of a check grows with the number of limits of a key, the number
// of keys, the number of goroutines, and the size of a log.
func growth(o options) ([]*table, error) {
	rdb, stop := startRedis()
	defer stop()
	var tables []*table
	for _, f := range []func(options, *redis.Client) (*table, error){growthLimits, growthKeys, growthGoroutines, growthLogs} {
		t, err := f(o, rdb)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// serverMicros returns how many µs the Redis server works on one check that is allowed.
func serverMicros(rdb *redis.Client, ops int, ask check) (float64, error) {
	if _, err := ask("k"); err != nil {
		return 0, err
	}
	rdb.ConfigResetStat(ctx)
	for range ops {
		if allowed, err := ask("k"); err != nil || !allowed {
			return 0, fmt.Errorf("a wrong decision: %v, %v", allowed, err)
		}
	}
	_, usec, err := serverTime(rdb, map[string]int64{"evalsha": int64(ops)})
	return usec / float64(ops), err
}

func growthLimits(o options, rdb *redis.Client) (*table, error) {
	t := &table{title: "More limits of a key", header: []string{"limits", "memory, GCRA, ns", "Redis, GCRA, server µs", "Redis, windows of a log, server µs"}}
	for _, n := range []int{1, 5, 20} {
		ns, err := nsPerCheck(weirOf(memstore.New(memstore.Options{}), several(n, algorithms.GCRA, 900_000)...), keysOf(1), 1, o.pick(300_000, 3000), true)
		if err != nil {
			return nil, err
		}
		gcra, err := serverMicros(rdb, o.pick(3000, 50), weirOf(storeOf(rdb, fmt.Sprint("g", n, ":")), several(n, algorithms.GCRA, 1<<22)...)())
		if err != nil {
			return nil, err
		}
		logs, err := serverMicros(rdb, o.pick(1000, 50), weirOf(storeOf(rdb, fmt.Sprint("l", n, ":")), several(n, algorithms.SlidingLog, 1<<22)...)())
		if err != nil {
			return nil, err
		}
		t.add(n, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.1f", gcra), fmt.Sprintf("%.1f", logs))
	}
	return t, nil
}

func growthKeys(o options, _ *redis.Client) (*table, error) {
	t := &table{title: "More keys in memory", header: []string{"keys", "ns a check", "bytes a key", "full GC, ms"}}
	most := o.pick(10_000_000, 10_000)
	for n := 1000; n <= most; n *= 10 {
		keys := keysOf(n)
		c := bounded(n)
		bytes, pause, err := footprint(c, keys)
		if err != nil {
			return nil, err
		}
		newCheck := c.open(300_000, time.Hour)
		if err := askAll(newCheck(), keys); err != nil {
			return nil, err
		}
		ns, err := nsPerCheck(newCheck, keys, 1, o.pick(1_000_000, 1000), true)
		if err != nil {
			return nil, err
		}
		t.add(n, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.1f", bytes), fmt.Sprintf("%.1f", pause))
	}
	return t, nil
}

func growthGoroutines(o options, _ *redis.Client) (*table, error) {
	t := &table{title: "More goroutines in memory", header: []string{"goroutines", "one key, ns a check", "100,000 keys, ns a check"}}
	many := keysOf(o.pick(100_000, 1000))
	for n := 1; n <= 1024; n *= 4 {
		row := []any{n}
		for _, keys := range [][]string{many[:1], many} {
			newCheck := weirOf(memstore.New(memstore.Options{}), algorithms.GCRA(plenty, time.Second))
			ns, err := nsPerCheck(newCheck, keys, n, max(n, o.pick(1_000_000, 2000)), true)
			if err != nil {
				return nil, err
			}
			row = append(row, fmt.Sprintf("%.0f", ns))
		}
		t.add(row...)
	}
	return t, nil
}

func growthLogs(o options, rdb *redis.Client) (*table, error) {
	t := &table{title: "Larger logs", note: "A sliding log that holds this many units. Its quota is twice this number.", header: []string{"units", "memory, ns a check", "Redis, server µs", "Redis, bytes a unit"}}
	for _, n := range []int{20, 200, 2000, 20_000, 100_000} {
		if o.quick && n > 200 {
			break
		}
		limit, ops := algorithms.SlidingLog(int64(2*n), 24*time.Hour), min(n/2, o.pick(2000, 10))
		inMemory := weirOf(memstore.New(memstore.Options{}), limit)
		keys := keysOf(max(1, 8000/n)) // several small logs, so that there are enough checks
		if err := askAll(inMemory(), slices.Repeat(keys, n)); err != nil {
			return nil, err
		}
		ns, err := nsPerCheck(inMemory, keys, 1, max(ops, 2000), true)
		if err != nil {
			return nil, err
		}
		units := slices.Repeat([]string{"k"}, n)
		rdb.FlushAll(ctx)
		ask := weirOf(storeOf(rdb, "log:"), limit)()
		if err := askAll(ask, units); err != nil {
			return nil, err
		}
		bytes := storedBytes(rdb)
		us, err := serverMicros(rdb, ops-1, ask)
		if err != nil {
			return nil, err
		}
		t.add(n, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.1f", us), fmt.Sprintf("%.1f", float64(bytes)/float64(n)))
	}
	return t, nil
}

// storedBytes returns the bytes of all keys in a Redis, by MEMORY USAGE.
func storedBytes(rdb *redis.Client) (bytes int64) {
	for _, k := range rdb.Keys(ctx, "*").Val() {
		bytes += rdb.MemoryUsage(ctx, k, 0).Val() // 0 makes MEMORY USAGE count every element
	}
	return bytes
}
