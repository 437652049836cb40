package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// production measures what a check costs a Redis server that is as busy as in production: CPU
// of the server with its sockets. An idle server gets the checks one by one, so most of this time
// is that of its sockets; a busy server finds several checks in each read.
func production(o options) ([]*table, error) {
	rdb, stop := startRedis()
	defer stop()
	where := "The server had processor 0 and the clients processor 1"
	server := regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(rdb.Info(ctx, "server").Val())
	if len(server) != 2 || bind(server[1], "0") != nil || bind(fmt.Sprint(os.Getpid()), "1") != nil {
		where = "Server and clients were not bound to processors"
	}
	defer bind(fmt.Sprint(os.Getpid()), "0-1023")
	rounds, d := o.pick(60, 1), time.Duration(o.pick(150, 50))*time.Millisecond
	t := &table{title: "CPU of a check in a busy Redis", place: "production",
		note: fmt.Sprintf("Measured on %s, %d rounds of %d ms in turns: CPU of the server for a check in µs, the median (and the least), and the median of the ratios to redis_rate in each round. %s.", time.Now().Format("2 January 2006"), rounds, d.Milliseconds(), where)}
	contenders := []shared{sharedContenders[0], sharedContenders[3], windows[5]}
	asks, calls := make([]func() check, len(contenders)), make([][]any, len(contenders))
	for i, c := range contenders {
		rec := &recorder{sent: map[string]int64{}}
		recorded := redis.NewClient(rdb.Options())
		defer recorded.Close()
		recorded.AddHook(rec)
		for ask, n := c.open(recorded, 1<<24)(), 0; n < 2; n++ { // the first check also asks what the server can do
			if _, err := ask("k"); err != nil {
				return nil, err
			}
		}
		asks[i], calls[i] = c.open(rdb, 1<<24), slices.Clone(rec.args) // the store uses the slice again
	}
	t.header = []string{"load", "redis_rate", "Weir, one key", "÷", "Weir, two keys", "÷"}
	for _, l := range []struct {
		name string
		run  func(i int) (int, error)
	}{
		{"4,000 checks a second", func(i int) (int, error) { return paced(asks[i], 4000, d) }},
		{"16,000 checks a second", func(i int) (int, error) { return paced(asks[i], 16_000, d) }},
		{"full, pipelines of 4 checks", func(i int) (int, error) { return piped(rdb, calls[i], 4, d) }},
		{"full, pipelines of 32 checks", func(i int) (int, error) { return piped(rdb, calls[i], 32, d) }},
	} {
		results, err := interleave(len(contenders), rounds, func(i int) (float64, error) {
			rdb.FlushAll(ctx)
			before := serverCPU(rdb)
			n, err := l.run(i)
			used := serverCPU(rdb) - before
			if allowed, wrong := asks[i]()("k"); err != nil || wrong != nil || !allowed {
				return 0, fmt.Errorf("%s: %s: %v, %v, %v", l.name, contenders[i].name, err, allowed, wrong)
			}
			return used / float64(n), nil
		})
		if err != nil {
			return nil, err
		}
		row := []any{l.name}
		for i, r := range results {
			row = append(row, fmt.Sprintf("%.1f (%.1f)", r.median(), r.least()))
			if i > 0 {
				row = append(row, fmt.Sprintf("%.2f", r.over(results[0]).median()))
			}
		}
		t.add(row...)
	}
	return []*table{t}, nil
}

// bind lets a process run on some processors only.
func bind(pid, processors string) error {
	return exec.Command("taskset", "-acp", processors, pid).Run()
}

// callers runs f on n goroutines. wait returns when all have ended, with their errors.
func callers(n int, f func() error) (wait func() error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f() })
	}
	return func() error { wg.Wait(); return errors.Join(errs...) }
}

// paced makes checks of one key at a rate, at random instants, on 64 goroutines. It returns how
// many.
func paced(newCheck func() check, rate float64, d time.Duration) (n int, err error) {
	due := make(chan struct{}, 1000+int(2*rate*d.Seconds()))
	wait := callers(64, func() error {
		ask := newCheck()
		for range due {
			if allowed, err := ask("k"); err != nil || !allowed {
				return fmt.Errorf("a wrong decision: %v, %v", allowed, err)
			}
		}
		return nil
	})
	begin := time.Now()
	for at := time.Duration(0); at < d; at += time.Duration(rand.ExpFloat64() * 1e9 / rate) {
		if early := at - time.Since(begin); early > 0 {
			tv := syscall.NsecToTimeval(int64(early))
			syscall.Select(0, nil, nil, nil, &tv) // time.Sleep would sleep for a millisecond
		}
		due <- struct{}{}
		n++
	}
	close(due)
	return n, wait()
}

// piped repeats a call on 32 connections, in pipelines of the given depth, which take the client
// little time. It returns how many.
func piped(rdb *redis.Client, call []any, depth int, d time.Duration) (int, error) {
	var n atomic.Int64
	end := time.Now().Add(d)
	err := callers(32, func() error {
		for time.Now().Before(end) {
			pipe := rdb.Pipeline()
			for range depth {
				pipe.Do(ctx, call...)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return err
			}
			n.Add(int64(depth))
		}
		return nil
	})()
	return int(n.Load()), err
}
