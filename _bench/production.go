package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// production measures what a check costs a Redis server that is as busy as in production: CPU
// of the server with its sockets. An idle server gets the checks one by one, so most of this time
// is that of its sockets; a busy server finds several checks in each read.
func production(o options) (tables []*table, err error) {
	rdb, stop := startRedis()
	defer stop()
	where := "The server ran on processor 0 and the clients on processor 1"
	server := regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(rdb.Info(ctx, "server").Val())
	if len(server) != 2 || bind(server[1], "0") != nil || bind(fmt.Sprint(os.Getpid()), "1") != nil {
		where = "Server and clients were not bound to processors"
	}
	defer bind(fmt.Sprint(os.Getpid()), "0-1023")
	rounds, d := o.pick(60, 1), time.Duration(o.pick(150, 50))*time.Millisecond
	t := &table{title: "CPU of a check in a busy Redis", place: "production",
		note: fmt.Sprintf("The times are the server's CPU time per check in µs: the median, and in brackets the minimum, of %d alternating rounds of %d ms on %s. The percentages show the load on the server's processor. The columns ÷ contain the median of each round's ratio to redis_rate. %s.", rounds, d.Milliseconds(), time.Now().Format("2 January 2006"), where)}
	contenders := []shared{contenderOf("redis_rate"), contenderOf("weir, GCRA"), contenderOf("weir, two rules with a key each")}
	asks, calls, replays := make([]func() check, len(contenders)), make([][]any, len(contenders)), make([]func() check, len(contenders))
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
		asks[i], calls[i] = c.open(rdb, 1<<24), rec.last()
		var hangUp func()
		if replays[i], hangUp, err = replay(rdb.Options().Addr, calls[i]); err != nil {
			return nil, err
		}
		defer hangUp()
	}
	t.header = []string{"load", "redis_rate", "Weir, one key", "÷", "Weir, two keys", "÷"}
	for _, l := range []struct {
		name string
		run  func(i int) (int, error)
	}{
		{"4,000 checks a second", func(i int) (int, error) { return paced(asks[i], 4000, d) }},
		{"16,000 checks a second", func(i int) (int, error) { return paced(asks[i], 16_000, d) }},
		{"32,000 calls a second, recorded", func(i int) (int, error) { return paced(replays[i], 32_000, d) }},
		{"full, pipelines of 4 checks", func(i int) (int, error) { return piped(rdb, calls[i], 4, d) }},
		{"full, pipelines of 32 checks", func(i int) (int, error) { return piped(rdb, calls[i], 32, d) }},
	} {
		busy := make([]series, len(contenders))
		results, err := interleave(len(contenders), rounds, func(i int) (float64, error) {
			rdb.FlushAll(ctx)
			before, begin := serverCPU(rdb), time.Now()
			n, err := l.run(i)
			used := serverCPU(rdb) - before
			busy[i] = append(busy[i], used/float64(time.Since(begin).Microseconds())*100)
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
			row = append(row, fmt.Sprintf("%.1f (%.1f), %.0f %%", r.median(), r.least(), busy[i].median()))
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

// generators is the number of goroutines that make checks at a rate.
const generators = 64

// paced makes checks of one key at a rate, at random instants, on 64 goroutines. It returns how
// many.
func paced(newCheck func() check, rate float64, d time.Duration) (n int, err error) {
	due := make(chan struct{}, 1000+int(2*rate*d.Seconds()))
	wait := callers(generators, func() error {
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

// replay returns checks that send a recorded call on one of 64 connections and read the reply. They
// take the client less time than a Redis client does, so that it can keep the server busy.
func replay(addr string, call []any) (newCheck func() check, stop func(), err error) {
	sent := fmt.Appendf(nil, "*%d\r\n", len(call))
	for _, arg := range call {
		text := fmt.Sprint(arg)
		if b, ok := arg.([]byte); ok {
			text = string(b)
		}
		sent = fmt.Appendf(sent, "$%d\r\n%s\r\n", len(text), text)
	}
	conns := make([]net.Conn, generators)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", addr); err != nil {
			return nil, nil, err
		}
	}
	var next atomic.Int64
	newCheck = func() check {
		conn := conns[next.Add(1)%generators]
		reply := make([]byte, 4096)
		return func(key string) (bool, error) {
			if _, err := conn.Write(sent); err != nil {
				return false, err
			}
			n, err := conn.Read(reply) // a short reply on loopback comes at once
			if err != nil || reply[0] == '-' || !bytes.HasSuffix(reply[:n], []byte("\r\n")) {
				return false, fmt.Errorf("a wrong reply: %q, %v", reply[:n], err)
			}
			return true, nil
		}
	}
	return newCheck, func() {
		for _, c := range conns {
			c.Close()
		}
	}, nil
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
