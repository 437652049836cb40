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
			n, err := store.CountProcesses(t.Context(), step.id)
			other, err2 := store.CompareLimits(t.Context(), step.id, map[string]string{"api": step.limit})
			want := map[string][]string{}
			if step.other != "" {
				want["api"] = strings.Fields(step.other)
				slices.Sort(other["api"])
			}
			if n != step.want || err != nil || err2 != nil || !reflect.DeepEqual(other, want) {
				t.Errorf("SendTime %v: %v: got %d and %q, errors %v and %v", sends, step, n, other, err, err2)
			}
		}
		begin = begin.Add(time.Hour)
	}
}

// TestProcessesRedis: the same scripts run in Redis.
func TestProcessesRedis(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, server.Addr())))
	store := newStore(t, rdb)
	for i := range 12 {
		id := fmt.Sprint(i)
		n, err := store.CountProcesses(t.Context(), id)
		other, err2 := store.CompareLimits(t.Context(), id, map[string]string{"a\nb": "x y\n" + id, "c": "z"})
		if n != i+1 || err != nil || err2 != nil || len(other["a\nb"]) != min(i, 7) || i > 0 && !slices.Contains(other["a\nb"], fmt.Sprint("x y\n", i-1)) {
			t.Errorf("process %d: got %d and %q, errors %v and %v", i, n, other, err, err2)
		}
	}
	for _, key := range []string{"weir:processes", "weir:limits"} {
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 90*time.Second {
			t.Errorf("%s has the TTL %v", key, ttl)
		}
	}
}
