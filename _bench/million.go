package main

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// million measures what docs/performance.md calculates with: how much CPU a check costs Redis, with
// its sockets, and the process that asks. Other programs on the machine change these times less
// than they change checks a second.
func million(o options) ([]*table, error) {
	rdb, stop := startRedis()
	defer stop()
	t := &table{title: "CPU of a check", place: "million",
		note:   fmt.Sprintf("The table shows the CPU time per check in µs. Each time is the minimum of %d one-second rounds with 128 goroutines, measured on %s. The Redis column includes socket I/O, and the process column includes the Redis client.", o.pick(3, 1), time.Now().Format("2 January 2006")),
		header: []string{"mode and shape", "Redis", "process"}}
	many := keysOf(o.pick(100_000, 1000))
	memory := func(rdb *redis.Client, units int64) func() check {
		return weirOf(memstore.New(memstore.Options{}), several(1, algorithms.GCRA, units)...)
	}
	leased := func(rdb *redis.Client, units int64) func() check {
		return weirOf(lease.New(quota.Coalesce(storeOf(rdb, "wm:")), lease.Options{}), several(1, algorithms.GCRA, units)...)
	}
	for _, c := range []struct {
		name string
		keys []string
		shared
	}{
		{"`redisstore`, one hot key", many[:1], contenderOf("weir, GCRA")},
		{"`redisstore`, 100,000 keys", many, contenderOf("weir, GCRA")},
		{"`redisstore`, 100,000 keys with five limits", many, contenderOf("weir, five GCRA")},
		{"`redisstore`, two rules with a key each, on one node", many, contenderOf("weir, two rules with a key each")},
		{"`Coalesce`, one hot key", many[:1], concurrent[0]},
		{"`Coalesce`, 100,000 keys", many, concurrent[0]},
		{"`lease`, one hot key", many[:1], shared{name: "lease", open: leased}},
		{"`lease`, 100,000 keys", many, shared{name: "lease", open: leased}},
		{"memory, one hot key", many[:1], shared{name: "memory", open: memory}},
		{"memory, 100,000 keys", many, shared{name: "memory", open: memory}},
	} {
		server, process := math.Inf(1), math.Inf(1)
		for range o.pick(3, 1) {
			rdb.FlushAll(ctx)
			before, own := serverCPU(rdb), ownCPU()
			l, err := c.load(c.open(rdb, 1<<24), c.keys, 128, time.Duration(o.pick(1000, 50))*time.Millisecond)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			n := float64(len(l.micros))
			server, process = min(server, (serverCPU(rdb)-before)/n), min(process, (ownCPU()-own)/n)
		}
		t.add(c.name, fmt.Sprintf("%.2f", server), fmt.Sprintf("%.2f", process))
	}
	return []*table{t}, nil
}

// ownCPU returns the µs of CPU that this process has used.
func ownCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e6 + float64(u.Utime.Usec+u.Stime.Usec)
}
