package docs_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

var update = flag.Bool("update", false, "write what was measured into the pages")

// A size says how much memory and time one key costs Redis under its limits.
type size struct {
	name            string
	bytes           int64   // the bytes of the key's values when the quota is spent
	allowed, denied float64 // µs that a check takes the server, the least of several keys
}

var (
	sizingTable = regexp.MustCompile(`(?s)(<!-- TestSizing -->\n).*?(<!-- end -->)`)
	sizingRow   = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) B \| [\d.]+ µs \| [\d.]+ µs \|$`)
	usedMemory  = regexp.MustCompile(`used_memory:(\d+)`)
	version     = regexp.MustCompile(`redis_version:([\d.]+)`)
)

// measureSizes starts a Redis server and measures the cost of keys: their bytes by MEMORY
// USAGE, and the time of checks by INFO commandstats. inAll, only with -update, is the growth of
// used_memory for each key.
func measureSizes(t *testing.T) (sizes []size, inAll int64, redisVersion string) {
	rdb := redis.NewClient(redisstore.ClientOptions(time.Minute, redistest.Server(t).Addr()).Simple())
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{T: t, rdb: rdb, store: store}
	five := func(f func(int64, time.Duration) quota.Limit, units int64) (limits []quota.Limit) {
		for i := range 5 {
			limits = append(limits, f(units, time.Duration(i+1)*time.Hour).Named(fmt.Sprint(i)))
		}
		return limits
	}
	for _, c := range []struct {
		name   string
		limits []quota.Limit
	}{
		{"GCRA", five(algorithms.GCRA, 1000)[:1]},
		{"FixedWindow", five(algorithms.FixedWindow, 1000)[:1]},
		{"SlidingWindow", five(algorithms.SlidingWindow, 1000)[:1]},
		{"five GCRA limits", five(algorithms.GCRA, 1000)},
		{"SlidingLog of 20", five(algorithms.SlidingLog, 20)[:1]},
		{"SlidingLog of 1000", five(algorithms.SlidingLog, 1000)[:1]},
		{"five SlidingLog limits of 100", five(algorithms.SlidingLog, 100)},
	} {
		sizes = append(sizes, m.size(c.name, c.limits))
	}
	if *update {
		inAll = m.perKey(50_000)
	}
	return sizes, inAll, version.FindStringSubmatch(m.info("server"))[1]
}

// A meter measures a Redis server that nothing else uses.
type meter struct {
	*testing.T
	rdb   *redis.Client
	store quota.Store
}

// size measures a key under some limits.
func (m *meter) size(name string, limits []quota.Limit) size {
	m.Helper()
	m.flush()
	s := size{name: name}
	m.takeTimes(limits, 9999, 1, true) // loads the script into the server
	s.allowed, s.denied = m.perCheck(limits, true), m.perCheck(limits, false)
	values, err := m.rdb.Keys(m.Context(), "weir:*{.192.0.2.0}").Result()
	if err != nil || len(values) == 0 {
		m.Fatalf("%s: got keys %q, %v", name, values, err)
	}
	for _, v := range values {
		n, err := m.rdb.MemoryUsage(m.Context(), v, 0).Result()
		if err != nil {
			m.Fatal(err)
		}
		s.bytes += n
	}
	return s
}

// perCheck returns how many µs a check takes the server. With -update it measures several
// keys and returns the least time, because interruptions lengthen the others.
func (m *meter) perCheck(limits []quota.Limit, allowed bool) float64 {
	units, keys, best := limits[0].Quota, int64(1), math.Inf(1)
	if *update {
		keys = max(10, 2000/units)
	}
	for key := range keys {
		m.rdb.ConfigResetStat(m.Context())
		m.takeTimes(limits, key, units, allowed)
		s := redistest.CommandStats(m.info("commandstats"))["evalsha"]
		best = min(best, float64(s.Micros)/float64(s.Calls))
	}
	return best
}

// perKey returns by how many bytes used_memory grows with each of n keys.
func (m *meter) perKey(n int) int64 {
	m.flush()
	before := m.used()
	weirtest.Together(8, func(worker int) {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(1000, time.Hour), Cost: 500}}}
		for i := worker; i < n; i += 8 {
			tx.Charges[0].Key = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
			if err := m.store.Take(m.Context(), &tx); err != nil {
				m.Error(err)
			}
		}
	})
	return (m.used() - before) / int64(n)
}

func (m *meter) flush() {
	m.Helper()
	if err := m.rdb.FlushDB(m.Context()).Err(); err != nil {
		m.Fatal(err)
	}
}

// info returns a section of the answer to INFO.
func (m *meter) info(section string) string {
	m.Helper()
	text, err := m.rdb.Info(m.Context(), section).Result()
	if err != nil {
		m.Fatal(err)
	}
	return text
}

// used returns used_memory in bytes.
func (m *meter) used() int64 {
	m.Helper()
	n, err := strconv.ParseInt(usedMemory.FindStringSubmatch(m.info("memory"))[1], 10, 64)
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// takeTimes takes one unit of a key several times. It fails the test unless all of these
// charges are allowed or, if allowed is false, all are refused.
func (m *meter) takeTimes(limits []quota.Limit, key, times int64, allowed bool) {
	m.Helper()
	var tx quota.Transaction
	for _, l := range limits {
		tx.Charges = append(tx.Charges, quota.Charge{Rule: "api", Key: fmt.Sprintf("192.0.2.%d", key), Limit: l, Cost: 1})
	}
	for range times {
		if err := m.store.Take(m.Context(), &tx); err != nil {
			m.Fatal(err)
		}
		if tx.Allowed() != allowed {
			m.Fatalf("%v: got %+v, want allowed %v", limits, tx.Decisions, allowed)
		}
	}
}

// TestSizing: the bytes in the table of docs/operations.md differ by at most 5 % from those
// that the test measures. The test compares neither the times, which depend on the machine,
// nor the last row. With -update it writes the table.
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
