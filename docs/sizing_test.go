package docs_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
)

var update = flag.Bool("update", false, "write what was measured into the pages")

// A size says how much memory and time one key costs Redis under its limits.
type size struct {
	name            string
	bytes           int64   // the bytes of the key's values when the quota is spent
	allowed, denied float64 // server µs per check, the least of several keys
}

var (
	sizingTable = regexp.MustCompile(`(?s)(<!-- TestSizing -->\n).*?(<!-- end -->)`)
	sizingRow   = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) B \| [\d.]+ µs \| [\d.]+ µs \|$`)
	evalsha     = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)
	usedMemory  = regexp.MustCompile(`used_memory:(\d+)`)
	version     = regexp.MustCompile(`redis_version:([\d.]+)`)
)

// measureSizes starts a Redis server and measures the cost of keys: their bytes by MEMORY
// USAGE, and the time of checks by INFO commandstats. inAll is the growth of used_memory
// for each key.
func measureSizes(t *testing.T) (sizes []size, inAll int64, redisVersion string) {
	rdb := redis.NewClient(redisstore.ClientOptions(time.Minute, redistest.Server(t).Addr()).Simple())
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	info := func(section string) string {
		text, err := rdb.Info(ctx, section).Result()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	stats := func() (calls, usec float64) {
		if m := evalsha.FindStringSubmatch(info("commandstats")); m != nil {
			calls, _ = strconv.ParseFloat(m[1], 64)
			usec, _ = strconv.ParseFloat(m[2], 64)
		}
		return calls, usec
	}
	five := func(f func(int64, time.Duration) weir.Limit, quota int64) (limits []weir.Limit) {
		for i := range 5 {
			limits = append(limits, f(quota, time.Duration(i+1)*time.Hour).Named(fmt.Sprint(i)))
		}
		return limits
	}
	for _, c := range []struct {
		name   string
		limits []weir.Limit
	}{
		{"GCRA", five(algorithms.GCRA, 1000)[:1]},
		{"FixedWindow", five(algorithms.FixedWindow, 1000)[:1]},
		{"SlidingWindow", five(algorithms.SlidingWindow, 1000)[:1]},
		{"five GCRA limits", five(algorithms.GCRA, 1000)},
		{"SlidingLog of 20", five(algorithms.SlidingLog, 20)[:1]},
		{"SlidingLog of 1000", five(algorithms.SlidingLog, 1000)[:1]},
		{"five SlidingLog limits of 100", five(algorithms.SlidingLog, 100)},
	} {
		if err := rdb.FlushDB(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		quota := c.limits[0].Quota
		keys := max(10, 2000/quota)
		take := func(key int64, times int64, allowed bool) {
			tx := weir.Transaction{}
			for _, l := range c.limits {
				tx.Charges = append(tx.Charges, weir.Charge{Rule: "api", Key: fmt.Sprintf("192.0.2.%d", key), Limit: l, Cost: 1})
			}
			for range times {
				if err := store.Take(ctx, &tx); err != nil {
					t.Fatal(err)
				} else if tx.Allowed() != allowed {
					t.Fatalf("%s: got %+v, want allowed %v", c.name, tx.Decisions, allowed)
				}
			}
		}
		s := size{name: c.name}
		take(9999, 1, true)                      // loads the script into the server
		perCheck := func(allowed bool) float64 { // the least, which has the fewest interruptions
			best := math.Inf(1)
			for key := range keys {
				calls, usec := stats()
				take(key, quota, allowed)
				calls2, usec2 := stats()
				best = min(best, (usec2-usec)/(calls2-calls))
			}
			return best
		}
		s.allowed, s.denied = perCheck(true), perCheck(false)
		values, err := rdb.Keys(ctx, "weir:*{.192.0.2.0}").Result()
		if err != nil || len(values) == 0 {
			t.Fatalf("%s: got keys %q, %v", c.name, values, err)
		}
		for _, v := range values {
			n, err := rdb.MemoryUsage(ctx, v, 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			s.bytes += n
		}
		sizes = append(sizes, s)
	}
	if err := rdb.FlushDB(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		n, err := strconv.ParseInt(usedMemory.FindStringSubmatch(info("memory"))[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const many = 50_000
	before := used()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			tx := weir.Transaction{Charges: []weir.Charge{{Rule: "api", Limit: algorithms.GCRA(1000, time.Hour), Cost: 500}}}
			for i := worker; i < many; i += 8 {
				tx.Charges[0].Key = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
				if err := store.Take(ctx, &tx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return sizes, (used() - before) / many, version.FindStringSubmatch(info("server"))[1]
}

// TestSizing: the bytes in the table of docs/operations.md are those that the test
// measures. The test does not compare times, which depend on the machine. With -update it
// writes the table.
func TestSizing(t *testing.T) {
	const page = "docs/operations.md"
	text := read(t, page)
	sizes, inAll, redisVersion := measureSizes(t)
	head := fmt.Sprintf("| limits of a key | Redis %s | allowed | refused |\n| --- | --- | --- | --- |\n", redisVersion)
	if *update {
		table := head
		for _, s := range sizes {
			table += fmt.Sprintf("| %s | %d B | %.1f µs | %.1f µs |\n", s.name, s.bytes, s.allowed, s.denied)
		}
		table += fmt.Sprintf("| GCRA, all included | about %d B | | |\n", (inAll+5)/10*10)
		if !sizingTable.MatchString(text) {
			t.Fatalf("%s has no place for the table", page)
		}
		text = sizingTable.ReplaceAllString(text, "${1}"+table+"${2}")
		if err := os.WriteFile(filepath.Join(root, page), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !strings.Contains(text, head) {
		t.Skipf("the table was measured with another Redis than %s", redisVersion)
	}
	written := map[string]float64{}
	for _, m := range sizingRow.FindAllStringSubmatch(text, -1) {
		written[m[1]], _ = strconv.ParseFloat(m[2], 64)
	}
	for _, s := range sizes {
		if math.Abs(written[s.name]/float64(s.bytes)-1) > 0.05 {
			t.Errorf("%s: %s says %v bytes, got %d: run go test ./docs -run TestSizing -update", page, s.name, written[s.name], s.bytes)
		}
	}
}
