package stack_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/stack"
)

// A witness is a process that notices losses.
type witness struct {
	*stack.Store
	log *weirtest.Log
	n   int
}

func newWitness(t *testing.T, addr string, o stack.Options) *witness {
	store, log := open(t, addr, o)
	w := &witness{Store: store, log: log}
	w.losses(t)
	return w
}

// losses returns what a process has noticed after another heartbeat. It changes its rules, so that this
// heartbeat finds out about evictions.
func (w *witness) losses(t *testing.T) (s quota.LossStats) {
	w.n++
	w.Announce(fmt.Sprint("rule ", w.n), nil)
	until(t, "Redis has answered", w.Beat)
	for _, part := range w.Stores() {
		if part, ok := part.(interface{ Stats() quota.LossStats }); ok {
			s = part.Stats()
		}
	}
	return s
}

// check fails the test unless the process has noticed that much, and its log has that text once for each line.
func (w *witness) check(t *testing.T, what string, lost int64, text string) {
	t.Helper()
	got := w.losses(t)
	if got.Lost != lost || strings.Count(w.log.String(), "counts in Redis lost") != int(lost) || !strings.Contains(w.log.String(), text) {
		t.Errorf("%s: got %+v and the log %s; want %d losses and %q", what, got, w.log, lost, text)
	}
}

// TestLosses: each process that ran before notices once that Redis was emptied, has restarted without its
// data, or has gone back to an older copy, also if it does not count processes. A new process notices
// nothing, and nobody the loss of other keys, a restart with the data, or an outage.
func TestLosses(t *testing.T) {
	server := redistest.Server(t, "--dbfilename", "kept.rdb") // Restart removes dump.rdb
	a, b := newWitness(t, server.Addr(), stack.Options{}), newWitness(t, server.Addr(), stack.Options{Replicas: 3})
	do := func(args ...string) {
		t.Helper()
		if _, err := server.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	both := func(what string, lost int64, text string) {
		t.Helper()
		a.check(t, what, lost, text)
		b.check(t, what, lost, text)
	}
	do("SET", "other", "x")
	do("DEL", "other")
	both("another key", 0, "")
	do("FLUSHALL")
	c := newWitness(t, server.Addr(), stack.Options{})
	both("FLUSHALL", 1, `likely="FLUSHALL or FLUSHDB"`)
	both("afterwards", 1, "")
	c.check(t, "a process that started after FLUSHALL", 0, "")
	do("SAVE")
	both("afterwards", 1, "")
	server.Restart(t)
	both("a restart with older data", 2, `likely="a restart without persistence, or a failover"`)
	server.Kill()
	a.Beat() // an outage is no loss
	b.Beat()
	server.Restart(t)
	both("a restart with a copy from before the last loss", 3, "")
	if _, err := server.Do("SHUTDOWN", "SAVE"); err == nil {
		t.Error("SHUTDOWN had an answer")
	}
	server.Restart(t)
	both("a restart with all data", 3, "")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	if ttl := rdb.PTTL(t.Context(), "weir:processes").Val(); ttl <= 0 {
		t.Errorf("the hash of the processes has the TTL %v, want one", ttl)
	}
}

// TestEvictions: evictions are counted from the start of a process, and logged, and are no other losses, even
// if the hash of the processes is evicted.
func TestEvictions(t *testing.T) {
	server := redistest.Server(t)
	w := newWitness(t, server.Addr(), stack.Options{})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	for setting, value := range map[string]string{"maxmemory-policy": "allkeys-random", "maxmemory": "3mb"} {
		if err := rdb.ConfigSet(t.Context(), setting, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < 300 || rdb.Exists(t.Context(), "weir:processes").Val() > 0; i++ {
		rdb.Set(t.Context(), fmt.Sprint(i), strings.Repeat("x", 20_000), 0)
	}
	w.check(t, "evictions", 0, "keys evicted by Redis")
	before := w.losses(t).Evicted
	if before == 0 {
		t.Error("no evictions were counted")
	}
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	rdb.ConfigResetStat(t.Context())
	if n := w.losses(t).Evicted; n != before {
		t.Errorf("after a reset of the statistics: got %v evictions, want %v", n, before)
	}
}

// TestReportsRefused: if Redis evaluates requests but refuses the reports of processes, one line names the
// key, and another one follows only after reports have succeeded. A full server is no reason for one.
func TestReportsRefused(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	w := newWitness(t, server.Addr(), stack.Options{})
	until(t, "Redis was checked", func() bool { return w.Err() == nil })
	lines := 0
	for _, key := range []string{"weir:processes", "weir:limits", "weir:processes"} {
		rdb.Del(t.Context(), key)
		rdb.Set(t.Context(), key, "of another program", 0)
		for range 9 {
			w.Beat()
		}
		lines++
		if got := w.log.String(); strings.Count(got, "processes not counted") != lines ||
			!strings.Contains(got[strings.LastIndex(got, "processes not"):], "redisstore: "+key+": redisstore: Redis answers: WRONGTYPE") {
			t.Errorf("%s is a string: got the log %s, want line %d about it", key, got, lines)
		}
		rdb.Del(t.Context(), key)
		until(t, "Redis has answered", w.Beat)
	}
	rdb.ConfigSet(t.Context(), "maxmemory", "1")
	for range 9 {
		w.Beat()
	}
	if got := w.log.String(); strings.Count(got, "processes not counted") != lines || strings.Contains(got, "counts in Redis lost") {
		t.Errorf("a full server: got the log %s, want no further line, and none about the keys that were deleted", got)
	}
}

// TestForeignProcesses: a process counts those that have a rule in common with it, whose rules it does not
// know, or that have changed them to one of its own, and no others.
func TestForeignProcesses(t *testing.T) {
	server := redistest.Server(t)
	var all []*stack.Store
	for _, rules := range [][]string{{"api", "login"}, {"login", "import"}, {"search"}, {"search"}, nil} {
		s, _ := open(t, server.Addr(), stack.Options{})
		for _, rule := range rules {
			s.Announce(rule, []quota.Limit{algorithms.GCRA(1, time.Hour)})
		}
		all = append(all, s)
	}
	check := func(want ...int) {
		t.Helper()
		until(t, "the processes have counted each other", func() bool {
			var got []int
			for _, s := range all {
				s.Beat()
				got = append(got, s.Replicas())
			}
			return slices.Equal(got, want)
		})
	}
	open(t, server.Addr(), stack.Options{Replicas: 1})
	check(3, 3, 3, 3, 5)
	all[2].Announce("api", nil)
	check(4, 3, 4, 3, 5)
}
