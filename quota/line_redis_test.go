package quota_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// TestLineProcesses: the workers of three processes wait for 10 units. There are never more in
// flight, and each process gets its share, although those who wait in a process are told of the
// units that it releases: also the third, which has fewer workers and begins when all units are in
// use. In most runs the shares differ by less than a third, and never by more than three times.
func TestLineProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 4 s")
	}
	p := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer rdb.Close()
	var all []*exec.Cmd
	for name, workers := range []int{40, 40, 15} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLineProcess$")
		cmd.Env = append(os.Environ(), "WEIR_LINE="+p.Addr(), fmt.Sprintf("WEIR_WORKERS=%d", workers), fmt.Sprintf("WEIR_NAME=p%d", name))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	ctx := t.Context()
	most, _ := rdb.Get(ctx, "most").Int()
	var served [3]int
	for i := range served {
		served[i], _ = rdb.Get(ctx, fmt.Sprintf("p%d", i)).Int()
	}
	t.Log("at most", most, "in flight, served:", served)
	if most > 10 || 3*slices.Min(served[:]) < slices.Max(served[:]) {
		t.Errorf("got %d in flight, want at most 10; the processes got %d units, want shares that differ by less than three times", most, served)
	}
}

// TestLineProcess is one of the processes that TestLineProcesses starts.
func TestLineProcess(t *testing.T) {
	addr, name := os.Getenv("WEIR_LINE"), os.Getenv("WEIR_NAME")
	if addr == "" {
		t.Skip("only TestLineProcesses starts it")
	}
	workers, err := strconv.Atoi(os.Getenv("WEIR_WORKERS"))
	if err != nil {
		t.Fatal(err)
	}
	rdb, ctx := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16}), t.Context()
	store := redisAt(t, addr, 10*time.Second)
	count := redis.NewScript(`
local n = redis.call('INCRBY', 'now', ARGV[1])
if n > tonumber(redis.call('GET', 'most') or 0) then redis.call('SET', 'most', n) end
if redis.call('GET', 'all') and ARGV[1] == '1' then redis.call('INCR', KEYS[1]) end`)
	add := func(n int) {
		if err := count.Run(ctx, rdb, []string{name}, n).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
	}
	if name == "p2" {
		for rdb.Get(ctx, "now").Val() != "10" {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second / 2)
		rdb.Set(ctx, "all", 1, 3*time.Second)
	}
	over := func() bool { return rdb.Get(ctx, "over").Val() != "" }
	together(workers, func(i int) {
		for !over() {
			waits, cancel := context.WithTimeout(ctx, time.Second)
			release, err := quota.Hold(waits, store, jobs(10, time.Minute))
			cancel()
			if errors.As(err, new(*quota.LimitedError)) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			add(1)
			time.Sleep(10 * time.Millisecond)
			add(-1)
			release()
			if name == "p2" && i == 0 && rdb.Get(ctx, "all").Val() == "" {
				rdb.Set(ctx, "over", 1, 0)
			}
		}
	})
}
