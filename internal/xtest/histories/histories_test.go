// Package histories_test records what clients ask of a redisstore and what they are answered
// while servers die, hang and move, and then looks whether the answers are possible.
package histories_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
)

// A scenario is servers and what happens to them.
type scenario struct {
	name   string
	lossy  bool // Redis may forget what it has acknowledged, so units are counted instead
	clocks bool // the clock of Redis steps: limits may refuse for longer, and refill sooner
	start  func(t *testing.T, rng *rand.Rand) target
}

// A target is where clients connect, and the faults of its servers. Each fault lasts for some
// time, is healed, and has a name for the report.
type target struct {
	addrs  []string
	master string
	spread bool
	faults []func() (name string)
}

var scenarios = []scenario{
	{name: "one server behind a faulty network", start: network},
	{name: "one server that keeps every write, killed", start: durable},
	{name: "one server without persistence, killed", lossy: true, start: forgetful},
	{name: "Sentinel, masters killed and paused", lossy: true, start: sentinel},
	{name: "Cluster, slots moved", start: reshard},
	{name: "Cluster, masters killed", lossy: true, start: cluster},
	{name: "one server whose clock steps", clocks: true, start: clock},
}

// TestHistories runs each scenario for a share of WEIR_HISTORIES, such as 1h; by default for
// 1 s, or for 8 s in long tests.
func TestHistories(t *testing.T) {
	rounds.Slow(t, "it takes seconds for each scenario")
	length := time.Second
	if rounds.Long() {
		length = 8 * time.Second
	}
	if text := os.Getenv("WEIR_HISTORIES"); text != "" {
		total, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		length = total / time.Duration(len(scenarios))
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.run(t, length) })
	}
}

// run records a history in pieces of at most a minute, each with servers of its own, and
// checks them.
func (s scenario) run(t *testing.T, length time.Duration) {
	sum := report{faults: map[string]int{}, errors: map[string]int{}}
	for end := time.Now().Add(length); ; {
		rest := time.Until(end)
		if rest < time.Second/2 {
			break
		}
		seed := rand.Uint64()
		skipped := false
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			s.piece(t, seed, min(rest, time.Minute), &sum)
		})
		if skipped {
			t.SkipNow() // the piece says why
		}
	}
	t.Logf("%s", &sum)
	if sum.decided == 0 {
		t.Error("nothing was decided")
	}
}

func (s scenario) piece(t *testing.T, seed uint64, length time.Duration, sum *report) {
	rng := rand.New(rand.NewPCG(seed, 0))
	servers := s.start(t, rng)
	until := time.Now().Add(length)
	var results []<-chan []op
	for n, store := range []way{bare, hybrid, untracked, hybrid} {
		j := job{Addrs: servers.addrs, Master: servers.master, Process: n, Workers: 4, Seed: rng.Uint64(), Until: until, Spread: servers.spread, Store: store}
		results = append(results, j.start(t))
	}
	last := until.Add(-length / 5) // then everything is healed
	for time.Sleep(length / 5); time.Now().Before(last); time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond) {
		sum.faults[servers.faults[rng.IntN(len(servers.faults))]()]++
	}
	var ops []op
	for _, r := range results {
		ops = append(ops, <-r...)
	}
	sum.length += length
	sum.check(t, s, ops)
}

// A report is what was found in the histories of a scenario.
type report struct {
	length          time.Duration
	faults          map[string]int
	decided, failed int
	errors          map[string]int // of the requests that failed, without ports
	pairs, tooLarge int
	impossible      int
	beyond          int // units of all pairs
	bursts, logged  int // the most in one second
	longestGap      time.Duration
	stale           [ways][]time.Duration // of the refusals that may have come from memory, by process
}

const (
	burstBound = 5 + 20 - 1
	logBound   = 20

	// longestStale is how long a process may refuse a key from memory after another one has refunded units.
	longestStale = 10 * time.Second
)

func (r *report) check(t *testing.T, s scenario, ops []op) {
	t.Helper()
	pairs := map[string][]op{}
	for _, o := range ops {
		if o.Err == "" {
			r.decided++
		} else {
			r.failed++
			r.errors[ports.ReplaceAllString(o.Err, ":port")]++
		}
		if o.Kind < counts {
			pairs[o.Pair] = append(pairs[o.Pair], o)
		}
	}
	for name, list := range pairs {
		r.pairs++
		slices.SortFunc(list, func(x, y op) int { return cmp.Compare(x.Call, y.Call) })
		for i := range list {
			if o := &list[i]; o.cached() && !s.lossy && !s.clocks {
				late := o.stale(list)
				r.stale[o.Store] = append(r.stale[o.Store], late)
				if late < 0 || late > longestStale {
					t.Errorf("pair %s: worker %d was refused %v after its key was full:\n%s", name, o.Worker, late, listing(list))
				}
			}
		}
		list = slices.DeleteFunc(list, func(o op) bool { return o.cached() })
		r.beyond += beyond(list)
		if s.clocks && beyond(list) > 0 {
			t.Errorf("pair %s: %d units were admitted twice:\n%s", name, beyond(list), listing(list))
		}
		if s.lossy || s.clocks {
			continue
		}
		switch linearizable(list, false) {
		case impossible:
			r.impossible++
			t.Errorf("pair %s: no order of its %d operations explains the answers:\n%s", name, len(list), listing(list))
		case tooLarge:
			r.tooLarge++
		}
	}
	b, l := densest(ops, burst, time.Second), densest(ops, logged, time.Second)
	r.bursts, r.logged = max(r.bursts, b), max(r.logged, l)
	r.longestGap = max(r.longestGap, gap(ops))
	if !s.lossy && !s.clocks && (b > burstBound || l > logBound) {
		t.Errorf("got %d units of a GCRA and %d of a log in a second, want at most %d and %d", b, l, burstBound, logBound)
	}
}

// ports are those of servers and of clients: the errors that name them differ in nothing else.
var ports = regexp.MustCompile(`:\d+`)

// each lists what was counted by name.
func each(counts map[string]int, between string) string {
	var list []string
	for name, n := range counts {
		list = append(list, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(list)
	return strings.Join(list, between)
}

func (r *report) String() string {
	return fmt.Sprintf("%v, faults: %s\n%d decided, %d failed, longest time without an answer %v\n"+
		"%d pairs of keys, impossible %d, too large to search %d, units beyond a quota %d\n"+
		"most in a second: GCRA %d (bound %d), log %d (bound %d)\n"+
		"refusals by hybrid mode: with tracking %s; without %s\nerrors:\n%s",
		r.length.Round(time.Second), each(r.faults, ", "), r.decided, r.failed, r.longestGap,
		r.pairs, r.impossible, r.tooLarge, r.beyond, r.bursts, burstBound, r.logged, logBound,
		percentiles(r.stale[hybrid]), percentiles(r.stale[untracked]), each(r.errors, "\n"))
}

// percentiles describes for how long refusals were stale.
func percentiles(stale []time.Duration) string {
	if len(stale) == 0 {
		return "none"
	}
	slices.Sort(stale)
	late, _ := slices.BinarySearch(stale, 1)
	at := func(p int) time.Duration { return stale[(len(stale)-1)*p/100].Round(time.Millisecond) }
	return fmt.Sprintf("%d, %d of them stale, for p99 %v, at most %v", len(stale), len(stale)-late, at(99), at(100))
}

// listing writes a history as text, in the order of the calls.
func listing(ops []op) string {
	slices.SortFunc(ops, func(x, y op) int { return int(x.Call - y.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "%8.3f–%8.3f ms worker %d kind %d allowed %t remaining %v waits %d %s\n",
			float64(o.Call-ops[0].Call)/1e6, float64(o.Return-ops[0].Call)/1e6, o.Worker, o.Kind, o.Allowed, o.Remaining, o.Waits, o.Err)
	}
	return b.String()
}

// network breaks answers on their way, pauses the server and flushes its scripts.
func network(t *testing.T, rng *rand.Rand) target {
	server := redistest.Server(t)
	proxy := redistest.Proxy(t, server.Addr())
	during := func(set, heal func()) {
		set()
		time.Sleep(time.Duration(50+rng.IntN(500)) * time.Millisecond)
		heal()
	}
	return target{addrs: []string{proxy.Addr()}, faults: []func() string{
		func() string {
			during(func() { proxy.Latency.Store(int64(rng.IntN(80)) * int64(time.Millisecond)) }, func() { proxy.Latency.Store(0) })
			return "late answers"
		},
		func() string {
			during(func() { proxy.Swallow.Store(true) }, func() { proxy.Swallow.Store(false) })
			return "lost answers"
		},
		func() string {
			during(func() { proxy.Reset.Store(true) }, func() { proxy.Reset.Store(false) })
			return "resets"
		},
		func() string {
			during(func() { proxy.Limit.Store(int64(1 + rng.IntN(20))) }, func() { proxy.Limit.Store(0) })
			return "cut answers"
		},
		func() string {
			during(func() { proxy.Refuse(true) }, func() { proxy.Refuse(false) })
			return "partitions"
		},
		func() string { during(server.Pause, server.Resume); return "pauses" },
		func() string { _, _ = server.Do("SCRIPT", "FLUSH"); return "script flushes" },
	}}
}

// durable kills a server that writes to its disk before it answers.
func durable(t *testing.T, rng *rand.Rand) target {
	return restarts(t, rng, "--appendonly", "yes", "--appendfsync", "always")
}

// forgetful kills a server that keeps nothing.
func forgetful(t *testing.T, rng *rand.Rand) target { return restarts(t, rng) }

func restarts(t *testing.T, rng *rand.Rand, args ...string) target {
	server := redistest.Server(t, args...)
	return target{addrs: []string{server.Addr()}, faults: []func() string{func() string {
		server.Kill()
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		server.Restart(t)
		return "kills"
	}}}
}

// sentinel kills or pauses the master; the server returns later, as a replica.
func sentinel(t *testing.T, _ *rand.Rand) target {
	s := redistest.Sentinel(t)
	fail := func(name string, down, up func(*redistest.Proc)) func() string {
		return func() string {
			old := s.Current()
			if old == nil {
				return "no master"
			}
			down(old)
			for range 100 {
				if now := s.Current(); now != nil && now != old {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			up(old)
			time.Sleep(2 * time.Second) // until it follows
			return name
		}
	}
	return target{addrs: s.Addrs(), master: redistest.MasterName, faults: []func() string{
		fail("kills", (*redistest.Proc).Kill, func(p *redistest.Proc) { p.Restart(t) }),
		fail("pauses", (*redistest.Proc).Pause, (*redistest.Proc).Resume),
	}}
}

// reshard moves slots of keys that are in use from one node to the other and back.
func reshard(t *testing.T, rng *rand.Rand) target {
	c := redistest.Cluster(t, 2, 0)
	return target{addrs: c.Addrs(), spread: true, faults: []func() string{func() string {
		pair := fmt.Sprintf("%d.%d", time.Now().Unix()/2, rng.IntN(4))
		key := "{." + pair + "a}"
		from := c.MasterOf(key)
		to := c.Nodes[0]
		if from == to {
			to = c.Nodes[1]
		}
		c.Reshard(t, from, to, redistest.Slot(key))
		return "slots moved"
	}}}
}

// cluster kills the master of a key; the server returns later, as a replica.
func cluster(t *testing.T, rng *rand.Rand) target {
	c := redistest.Cluster(t, 3, 1)
	return target{addrs: c.Addrs(), spread: true, faults: []func() string{func() string {
		key := "{." + fmt.Sprint(rng.IntN(1000)) + "}"
		old := c.MasterOf(key)
		if old == nil {
			return "no master"
		}
		old.Kill()
		for range 100 {
			if now := c.MasterOf(key); now != nil && now != old {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		old.Restart(t)
		time.Sleep(3 * time.Second) // until it follows
		return "kills"
	}}}
}

// clock sets the clock of the server back and forth.
func clock(t *testing.T, rng *rand.Rand) target {
	cc, err := exec.LookPath("cc")
	if err != nil {
		const msg = "no C compiler for a library that steps the clock: apt-get install gcc"
		if os.Getenv("CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	dir := t.TempDir()
	library := filepath.Join(dir, "clock.so")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, "testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	offset := time.Duration(0)
	set := func(d time.Duration) {
		offset += d
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], uint64(offset.Microseconds()))
		if _, err := file.WriteAt(b[:], 0); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	t.Setenv("WEIR_CLOCK", file.Name())
	t.Setenv("LD_PRELOAD", library)
	server := redistest.Server(t)
	os.Unsetenv("LD_PRELOAD") // only the server has this clock
	step := func(name string, d time.Duration) func() string {
		return func() string {
			set(d)
			time.Sleep(time.Duration(100+rng.IntN(900)) * time.Millisecond)
			return name
		}
	}
	return target{addrs: []string{server.Addr()}, faults: []func() string{
		step("3 s back", -3*time.Second), step("3 s ahead", 3*time.Second),
		step("2 h back", -2*time.Hour), step("2 h ahead", 2*time.Hour),
	}}
}
