package redisstore_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/redisstore"
)

// TestProcesses: a process counts for 20 s after its last report, by the clock of the server, and its
// limits are known for 30 s. Nothing stays without a TTL.
func TestProcesses(t *testing.T) {
	lua := redistest.Lua54(t)
	begin := time.UnixMicro(1_700_000_000_000_000)
	for _, sends := range []bool{false, true} {
		rdb := client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil)))
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience, SendTime: sends, Prefix: fmt.Sprint(sends, ":")})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			at    time.Duration
			id    string
			limit string // of "api"
			want  int
			other string
		}{
			{0, "a", "10", 1, ""}, {0, "b", "10", 2, ""}, {0, "c", "20", 3, "10"}, {15 * time.Second, "b", "10", 3, "20"},
			{21 * time.Second, "c", "20", 2, "10"}, {22 * time.Second, "b", "30", 2, "20"}, {23 * time.Second, "c", "20", 2, "30"},
			{24 * time.Second, "a", "10", 3, "20 30"}, {45500 * time.Millisecond, "c", "20", 1, "10 30"},
			{53 * time.Second, "c", "20", 1, "10"}, {54500 * time.Millisecond, "c", "20", 1, ""}, {55 * time.Second, "b", "30", 2, "20"},
		} {
			lua.SetTime(begin.Add(step.at))
			if sends {
				store, _ = redisstore.New(rdb, redisstore.Options{Timeout: patience, SendTime: true, Prefix: "true:"}) // learns the time
			}
			h, err := store.Heartbeat(t.Context(), step.id, "")
			if err != nil {
				t.Fatal(err)
			}
			other, err2 := store.CompareLimits(t.Context(), step.id, map[string]string{"api": step.limit})
			want := map[string][]string{}
			if step.other != "" {
				want["api"] = strings.Fields(step.other)
				slices.Sort(other["api"])
			}
			if h.Processes != step.want || err2 != nil || !reflect.DeepEqual(other, want) {
				t.Errorf("SendTime %v: %v: got %d and %q, error %v", sends, step, h.Processes, other, err2)
			}
		}
		begin = begin.Add(time.Hour)
	}
}

// TestHeartbeatGroups: a heartbeat knows the groups of all processes, also of one that has just started or
// moved to another group. A process notices a loss once, and none after it was away for too long.
func TestHeartbeatGroups(t *testing.T) {
	lua := redistest.Lua54(t)
	rdb := client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil)))
	store := newStore(t, rdb)
	begin := time.UnixMicro(1_700_000_000_000_000)
	last := map[string]*redisstore.Heartbeat{}
	for _, step := range []struct {
		at        time.Duration
		id, group string
		want      string
		lost      bool
	}{
		{0, "a", "x", "map[x:1]", false}, {time.Second, "b", "y", "map[x:1 y:1]", false}, {2 * time.Second, "c", "x", "map[x:2 y:1]", false},
		{3 * time.Second, "a", "y", "map[x:1 y:2]", false}, {21500 * time.Millisecond, "c", "", "map[:1 y:1]", false},
		{24 * time.Second, "b", "y", "map[:1 y:1]", false}, // it was away for too long
		{23 * time.Second, "b", "y", "map[:1 y:1]", false}, // the clock has stepped back
		{24 * time.Second, "c", "", "map[:1 y:1]", false}, {60 * time.Second, "FLUSHALL", "", "", false},
		{61 * time.Second, "c", "", "map[:1]", true}, {62 * time.Second, "b", "y", "map[:1 y:1]", true}, {63 * time.Second, "c", "", "map[:1 y:1]", false},
		{3 * time.Hour, "FLUSHALL", "", "", false}, {3 * time.Hour, "c", "", "map[:1]", false}, // the hash has expired
	} {
		lua.SetTime(begin.Add(step.at))
		if step.id == "FLUSHALL" {
			rdb.FlushAll(t.Context())
			continue
		}
		h, err := store.Heartbeat(t.Context(), step.id, step.group)
		if err != nil {
			t.Fatal(err)
		}
		lost := last[step.id] != nil && h.Lost(last[step.id])
		if last[step.id] = h; fmt.Sprint(h.Groups) != step.want || lost != step.lost || h.Server != "" {
			t.Errorf("%+v: got %+v, lost %v", step, h, lost)
		}
	}
}

// TestProcessesClockBack: after the clock was set back by an hour, a process that has ended counts for no
// longer than before, the limits that it had are forgotten, and nobody reports a loss.
func TestProcessesClockBack(t *testing.T) {
	lua := redistest.Lua54(t)
	store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil))))
	begin := time.UnixMicro(1_700_000_000_000_000)
	last := map[string]*redisstore.Heartbeat{}
	for at := time.Duration(0); at < 40*time.Second; at += 2 * time.Second {
		step := time.Duration(0)
		if at >= 10*time.Second {
			step = -time.Hour
		}
		lua.SetTime(begin.Add(at + step))
		processes := []string{"a", "b", "dead"}
		if step < 0 {
			processes = processes[:2]
		}
		for _, id := range processes {
			h, err := store.Heartbeat(t.Context(), id, id)
			if err != nil {
				t.Fatal(err)
			}
			if last[id] != nil && h.Lost(last[id]) {
				t.Errorf("at %v, %s reports a loss", at, id)
			}
			last[id] = h
			other, err := store.CompareLimits(t.Context(), id, map[string]string{"api": id})
			if at >= 36*time.Second && (err != nil || h.Processes != 2 || len(h.Groups) != 2 || len(other["api"]) != 1) {
				t.Errorf("at %v, %s: got %d processes, groups %v, and other limits %q, error %v", at, id, h.Processes, h.Groups, other, err)
			}
		}
	}
}

// TestProcessesRedis: the same scripts run in Redis, also without INFO.
func TestProcessesRedis(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, server.Addr())))
	store := newStore(t, rdb)
	for i := range 12 {
		id := fmt.Sprint(i)
		h, err := store.Heartbeat(t.Context(), id, "")
		if err != nil {
			t.Fatal(err)
		}
		other, err2 := store.CompareLimits(t.Context(), id, map[string]string{"a\nb": "x y\n" + id, "c": "z"})
		if h.Processes != i+1 || h.Server == "" || err2 != nil || len(other["a\nb"]) != min(i, 7) || i > 0 && !slices.Contains(other["a\nb"], fmt.Sprint("x y\n", i-1)) {
			t.Errorf("process %d: got %+v and %q, error %v", i, h, other, err2)
		}
	}
	if _, err := server.Do("ACL", "SETUSER", "default", "-info"); err != nil {
		t.Fatal(err)
	}
	if h, err := newStore(t, rdb).Heartbeat(t.Context(), "a", "another group"); err != nil || h.Processes != 13 || h.Server != "" {
		t.Errorf("without the right to INFO: got %+v, error %v", h, err)
	}
	if err := rdb.HSet(t.Context(), "weir:processes", "of another program", "x").Err(); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"g", "h"} { // the second report finds that the foreign field is gone
		if h, err := store.Heartbeat(t.Context(), "b", group); err != nil || group == "h" && h.Processes != 14 {
			t.Errorf("with a foreign field: got %+v, error %v; want 14 processes", h, err)
		}
	}
	for key, most := range map[string]time.Duration{"weir:processes": time.Hour, "weir:limits": 90 * time.Second} {
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > most {
			t.Errorf("%s has the TTL %v", key, ttl)
		}
	}
}
