package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// timeless returns clients of servers that refuse TIME in scripts. A redis-server does so if
// its command TIME has another name, which the client knows.
func timeless(t *testing.T) map[string]redis.UniversalClient {
	real := redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Server(t, "--rename-command", "TIME", "PLAINTIME").Addr()))
	real.AddHook(plainTime{})
	return map[string]redis.UniversalClient{
		"redis":   client(t, real),
		"Lua 5.4": client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Lua54(t).RefuseTime().Addr()))),
	}
}

type plainTime struct{}

func (plainTime) DialHook(next redis.DialHook) redis.DialHook { return next }
func (plainTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		rename(cmd)
		return next(ctx, cmd)
	}
}
func (plainTime) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			rename(cmd)
		}
		return next(ctx, cmds)
	}
}

func rename(cmd redis.Cmder) {
	if cmd.Name() == "time" {
		cmd.Args()[0] = "plaintime"
	}
}

// TestSendTimeConforms: with SendTime a store passes the conformance suite and Probe on servers that
// refuse TIME in scripts, and on one that does not.
func TestSendTimeConforms(t *testing.T) {
	rounds.Slow(t, "the conformance suite on four servers")
	servers := timeless(t)
	servers["with TIME"] = client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()}))
	for name, rdb := range servers {
		t.Run(name, func(t *testing.T) {
			if err := newStore(t, rdb, true).Probe(t.Context(), everyLimit...); err != nil {
				t.Fatal(err)
			}
			conform(t, rdb, nil, true)
		})
	}
}

// A distant is a server on a clock of its own, whose network takes time, and processes on clocks of
// their own. All times are those of the test.
type distant struct {
	lua    *redistest.Lua
	stores []*redisstore.Store

	mu      sync.Mutex
	r       *rand.Rand
	passed  time.Duration // since the test began, by an exact clock
	rate    float64       // of the server's clock
	step    time.Duration // by how much the server's clock has been set
	longest time.Duration // the longest time of a command, there and back
	ran     time.Time     // the server's clock when the last script ran
	before  func()        // called while a script is on its way; may be nil
	after   func()        // called while a reply of TIME is on its way; may be nil
	ready   bool          // all processes have connected
}

// newDistant returns a server that refuses TIME in scripts, and three processes. Clocks differ by
// years, and by up to 1 in 1000 in their rates. All of them have connected, so that each has sent what it
// sends by itself, and only the calls of the test let time pass.
func newDistant(t *testing.T, r *rand.Rand) *distant {
	d := &distant{r: r, lua: redistest.Lua54(t).RefuseTime()}
	rate := func() float64 { return 1 + (d.random(time.Millisecond) - time.Millisecond/2).Seconds() }
	d.rate = rate()
	d.lua.Around(func(args []string, run func() string) string {
		d.mu.Lock()
		ready := d.ready
		d.lua.SetTime(d.now())
		d.mu.Unlock()
		if !ready {
			return run()
		}
		begin := d.pass(d.random(3 * time.Millisecond))
		script := strings.HasPrefix(args[0], "eval")
		d.mu.Lock()
		before := d.before
		if script {
			d.before = nil
		}
		d.mu.Unlock()
		if script && before != nil {
			before()
		}
		d.mu.Lock()
		now := d.now()
		d.lua.SetTime(now)
		reply := run()
		if script {
			d.ran = now
		}
		d.mu.Unlock()
		end := d.pass(d.random(3 * time.Millisecond))
		d.mu.Lock()
		after := d.after
		if !script && after != nil {
			d.after = nil
			defer after()
		}
		d.longest = max(d.longest, end-begin)
		d.mu.Unlock()
		return reply
	})
	for range 3 {
		begin, rate := time.Unix(0, 0).Add(d.random(1e18)), rate()
		store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(d.lua.Addr(), func(o *redis.UniversalOptions) { o.PoolSize, o.MinIdleConns = 1, 0 }))), true)
		store.SetClock(func() time.Time { return begin.Add(time.Duration(float64(d.pass(0)) * rate)) })
		d.stores = append(d.stores, store)
		if err := store.Take(t.Context(), weirtest.Once(algorithms.GCRA(1e6, time.Second))); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = true
	return d
}

func (d *distant) random(below time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.r.Int64N(int64(below)))
}

// pass lets time pass, and returns how much has passed since the test began.
func (d *distant) pass(more time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed += more
	return d.passed
}

func (d *distant) trip() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.longest
}

// onTheWay makes f run once, while the next script is on its way.
func (d *distant) onTheWay(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

// afterTime makes f run once, while the next reply of TIME is on its way.
func (d *distant) afterTime(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = f
}

// now returns the time by the server's clock, for a caller that holds d.mu.
func (d *distant) now() time.Time {
	return time.UnixMicro(1_700_000_000_000_000).Add(d.step + time.Duration(float64(d.passed)*d.rate)).Truncate(time.Microsecond)
}

// take makes the i-th process take charges. It returns the server's clock when the script ran.
func (d *distant) take(t *testing.T, i int, within time.Duration, charges ...quota.Charge) (tx *quota.Transaction, ran time.Time) {
	t.Helper()
	tx = &quota.Transaction{Charges: charges, Within: within}
	if err := d.stores[i].Take(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return tx, d.ran
}

// An event is a unit spent: when by the decision, and when by the server's clock.
type event struct {
	decided, at time.Time
	waits       bool
}

// TestSendTime: with SendTime no decision is ahead of the server's clock. None is behind it by more
// than the time of the last TIME, its own time on the way, and what the clocks may have drifted
// apart. In any time on the server's clock, at most so much is therefore spent as the limit
// admits in this time and that delay. A process is not refused because another knows a later time.
func TestSendTime(t *testing.T) {
	const period = 100 * time.Millisecond
	for range rounds.N(3, 50) {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 5))
		d := newDistant(t, rand.New(rand.NewPCG(seed, 6)))
		for _, c := range []struct {
			limit quota.Limit
			most  int // units that it admits in any period
		}{
			{algorithms.GCRA(7, period), 13}, {algorithms.LeakyBucket(7, 7, period), 13}, {algorithms.FixedWindow(7, period), 14},
			{algorithms.AnchoredWindow(7, period), 14}, {algorithms.SlidingLog(7, period), 7},
		} {
			name := c.limit.Algorithm.Name()
			charge := quota.Charge{Rule: name, Key: "k", Limit: c.limit, Cost: 1}
			waits, gap := r.IntN(2) == 0, []time.Duration{period / 5, period}[r.IntN(2)]
			var events []event
			var behind time.Duration
			ask := func(i int) {
				within := time.Duration(0)
				if waits && r.IntN(4) == 0 {
					within = 30 * time.Millisecond
				}
				charges := []quota.Charge{charge}
				if r.IntN(4) == 0 { // the newest state is that of the second value
					charges = []quota.Charge{{Rule: name, Key: "other", Limit: algorithms.GCRA(1e6, period), Cost: 1}, charge}
				}
				tx, ran := d.take(t, i, within, charges...)
				b := ran.Sub(tx.At)
				behind = max(behind, b)
				if most := 3*d.trip() + 6*time.Millisecond; b < 0 || b > most {
					t.Fatalf("seed %d: %s: a decision is %v behind the server's clock, want 0 to %v", seed, name, b, most)
				}
				if tx.Allowed() {
					events = append(events, event{tx.At.Add(tx.Wait), ran.Add(tx.Wait), tx.Wait > 0})
				} else if within == 0 && room(events, tx.At, 2*period) {
					t.Fatalf("seed %d: %s: refused at %v although there is room", seed, name, tx.At)
				}
			}
			for range 150 {
				d.pass(time.Duration(r.Int64N(int64(gap))))
				if r.IntN(50) == 0 {
					d.pass(3 * time.Second)
				}
				i := r.IntN(3)
				if r.IntN(2) == 0 { // another process is served while the script of this one is on its way
					d.onTheWay(func() { ask((i + 1) % 3) })
				}
				ask(i)
			}
			worst := 0
			for _, first := range events {
				n := 0
				for _, e := range events {
					if !e.at.Before(first.at) && e.at.Before(first.at.Add(period-behind)) {
						n++
					}
				}
				worst = max(worst, n)
			}
			if worst > c.most {
				t.Errorf("seed %d: %s: %d units in %v by the server's clock, want at most %d", seed, name, worst, period-behind, c.most)
			}
			t.Logf("%s: up to %v behind; up to %d units in %v", name, behind, worst, period-behind)
		}
	}
}

// room reports whether fewer than 7 units were spent within a time before now, and none is reserved.
func room(events []event, now time.Time, d time.Duration) bool {
	spent := 0
	for _, e := range events {
		if e.waits && e.decided.After(now) {
			return false
		}
		if e.decided.After(now.Add(-d)) {
			spent++
		}
	}
	return spent < 7
}

// TestSendTimeRetry: who waits for RetryAfter, and for that of the next answer, has waited for
// little longer when the charge is admitted, whichever process decides.
func TestSendTimeRetry(t *testing.T) {
	d := newDistant(t, rand.New(rand.NewPCG(3, 4)))
	for i, l := range []quota.Limit{algorithms.GCRA(1, time.Second), algorithms.FixedWindow(1, time.Second), algorithms.SlidingLog(1, time.Second)} {
		for n := range 50 {
			charge := quota.Charge{Rule: "r", Key: fmt.Sprint(i, " ", n), Limit: l, Cost: 1}
			d.take(t, n%3, 0, charge)
			tx, _ := d.take(t, (n+1)%3, 0, charge)
			begin, first := d.pass(0), tx.Decisions[0].RetryAfter
			for !tx.Allowed() {
				d.pass(tx.Decisions[0].RetryAfter * 1001 / 1000)
				tx, _ = d.take(t, (n+2)%3, 0, charge)
			}
			if over := d.pass(0) - begin - first; over > 4*d.trip()+6*time.Millisecond {
				t.Errorf("%s: admitted %v after RetryAfter, want at most %v", l.Algorithm.Name(), over, 4*d.trip()+6*time.Millisecond)
			}
		}
	}
}

// TestSendTimeLifetime: a value lives longer than its states matter, by the most that a decision may
// be late. A late script would otherwise find nothing, and admit again what was spent at its time.
func TestSendTimeLifetime(t *testing.T) {
	for _, rdb := range timeless(t) {
		store := newStore(t, rdb, true)
		for i, l := range everyLimit {
			l.Period = min(l.Period, time.Minute)
			one := quota.Charge{Rule: "r", Key: fmt.Sprint(i), Limit: l, Cost: 1}
			other := quota.Charge{Rule: "r", Key: one.Key, Limit: algorithms.TokenBucket(1000, 1000, time.Minute).Named("other"), Cost: 1}
			longest := time.Duration(0)
			for n, charges := range [][]quota.Charge{{one}, {one}, {one, other}, {other}} {
				tx, begin := quota.Transaction{Charges: charges}, time.Now()
				if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
					t.Fatalf("%v, %+v", err, tx.Decisions)
				}
				need := tx.Decisions[0].ResetAfter + 2*patience
				longest = max(longest, need)
				ttl := rdb.PTTL(t.Context(), store.Key(&charges[0])).Val()
				if ttl+time.Since(begin) < need || ttl > longest+time.Minute {
					t.Errorf("%s, call %d: got a TTL of %v, want at least %v", l.Algorithm.Name(), n+1, ttl, need)
				}
			}
		}
	}
}

// TestSendTimeSteps: if the server's clock is set, the store soon follows it.
func TestSendTimeSteps(t *testing.T) {
	d := newDistant(t, rand.New(rand.NewPCG(1, 2)))
	for i, step := range []time.Duration{0, time.Hour, time.Minute, 0, -10 * time.Millisecond, -time.Hour} {
		d.mu.Lock()
		d.step = step
		d.mu.Unlock()
		d.pass(150 * time.Millisecond)
		charge := quota.Charge{Rule: "r", Limit: algorithms.GCRA(7, time.Minute), Cost: 1}
		d.take(t, 0, 0, charge) // has TIME behind it
		charge.Key = fmt.Sprint(i)
		tx, ran := d.take(t, 0, 0, charge)
		if behind := ran.Sub(tx.At); behind < 0 || behind > 3*d.trip() {
			t.Errorf("step %d: a decision is %v behind the server's clock, want 0 to %v", i, behind, 3*d.trip())
		}
	}
}

// TestSendTimeNewServer: if a client has connected to another server, or a call has failed, the
// store asks for the time before the next decision. Here the clock of the old server is an hour
// ahead, and that of the process stands still, so that the store has no other reason to ask.
func TestSendTimeNewServer(t *testing.T) {
	for _, fails := range []bool{true, false} {
		old, next := redistest.Lua54(t).RefuseTime(), redistest.Lua54(t).RefuseTime()
		old.SetTime(time.Now().Add(time.Hour))
		var addr atomic.Value
		addr.Store(old.Addr())
		o := redisstore.ClientOptions(patience, "redis:6379")
		o.MinIdleConns = 0
		o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr.Load().(string))
		}
		if !fails {
			o.ConnMaxLifetime = time.Nanosecond // the client makes a connection for each call
		}
		store := newStore(t, client(t, redis.NewUniversalClient(o)), true)
		begin := time.Now()
		store.SetClock(func() time.Time { return begin })
		tx := weirtest.Once(everyLimit[0])
		for range 50 {
			if err := store.Take(t.Context(), tx); err != nil || time.Until(tx.At) < 59*time.Minute {
				t.Fatalf("got %v and a decision at %v, want it an hour ahead", err, tx.At)
			}
		}
		addr.Store(next.Addr())
		if fails {
			old.Around(func([]string, func() string) string { return "" }) // ends the connection
		}
		if err := store.Take(t.Context(), tx); (err != nil) != fails {
			t.Fatalf("got error %v of the first call", err)
		}
		tx.Charges[0].Key = "another"
		eventually(t, "the new server decides", func() error { return store.Take(t.Context(), tx) })
		if d := time.Since(tx.At); d < 0 || d > patience {
			t.Errorf("fails %v: a decision is %v behind the clock of the new server", fails, d)
		}
	}
}

// TestSendTimeOptionIsNeeded: without SendTime nothing is decided, and the error of each call
// names the option. With it, overrides work too.
func TestSendTimeOptionIsNeeded(t *testing.T) {
	lua := redistest.Lua54(t).RefuseTime()
	rdb := client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil)))
	with, without := newStore(t, rdb, true), newStore(t, rdb)
	for name, call := range everyCall(t) {
		if err := call(with); err != nil {
			t.Errorf("%s with SendTime: %v", name, err)
		}
		if err := call(without); !weirtest.FailsWith(err, "Options.SendTime") || !errors.Is(err, quota.ErrUnusable) {
			t.Errorf("%s: got error %v, want an ErrUnusable that names Options.SendTime", name, err)
		}
	}
}

// TestSendTimeUnanswered: if the server no longer answers TIME, or answers what no clock can be,
// calls soon fail with an error that names TIME. The store does not go on with its own clock.
func TestSendTimeUnanswered(t *testing.T) {
	for _, reply := range []string{
		"-ERR unknown command 'time'\r\n", "+OK\r\n", "$-1\r\n", "*0\r\n", "*2\r\n$1\r\n0\r\n$1\r\n5\r\n", "*2\r\n$2\r\n-1\r\n$1\r\n5\r\n",
		"*2\r\n$19\r\n9000000000000000000\r\n$1\r\n0\r\n", "*2\r\n$10\r\n1700000000\r\n$7\r\n1000000\r\n", "*2\r\n$11\r\n90000000000\r\n$1\r\n0\r\n",
	} {
		lua := redistest.Lua54(t).RefuseTime()
		var fails atomic.Bool
		lua.Around(func(args []string, run func() string) string {
			if fails.Load() && strings.EqualFold(args[0], "time") {
				return reply
			}
			return run()
		})
		store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr()))), true)
		var passed atomic.Int64
		begin := time.Now()
		store.SetClock(func() time.Time { return begin.Add(time.Duration(passed.Load())) })
		if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err != nil {
			t.Fatal(err)
		}
		fails.Store(true)
		var err error
		for i := 0; err == nil && i < 100; i++ { // ten seconds
			passed.Add(int64(100*time.Millisecond + 1))
			err = store.Take(t.Context(), weirtest.Once(everyLimit[0]))
		}
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "time") || errors.Is(err, redisstore.ErrTimeout) {
			t.Errorf("reply %q: got error %v after %v, want one that names TIME", reply, err, time.Duration(passed.Load()))
		}
		fails.Store(false)
		if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err != nil {
			t.Errorf("reply %q: got error %v once TIME works again", reply, err)
		}
	}
}

// TestSendTimeStopped: a process is stopped for a minute while its script is on the way, or the reply of
// the TIME before it. An old decision, which other processes no longer count, admits nothing.
func TestSendTimeStopped(t *testing.T) {
	d := newDistant(t, rand.New(rand.NewPCG(1, 2)))
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, time.Second), Cost: 1}
	d.take(t, 0, 0, charge)
	d.onTheWay(func() { d.pass(time.Minute) })
	if err := d.stores[0].Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); !errors.Is(err, quota.ErrBusy) {
		t.Errorf("stopped while the script is on the way: got error %v, want an ErrBusy", err)
	}
	d.afterTime(func() { d.pass(time.Minute) })
	if err := d.stores[1].Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); !errors.Is(err, quota.ErrBusy) {
		t.Errorf("stopped while the reply of TIME is on the way: got error %v, want an ErrBusy", err)
	}
	for i := range 2 {
		charge.Key = fmt.Sprint("another ", i) // the state of a key shows a later time
		if tx, ran := d.take(t, i, 0, charge); ran.Sub(tx.At) > time.Second {
			t.Errorf("afterwards a decision is %v behind", ran.Sub(tx.At))
		}
	}
}

// TestSendTimeErrors: while calls fail, others decide. None decides at a time that no server has.
func TestSendTimeErrors(t *testing.T) {
	lua := redistest.Lua54(t).RefuseTime()
	var n atomic.Int64
	lua.Around(func(args []string, run func() string) string {
		if n.Add(1)%101 == 0 {
			return "" // ends the connection
		}
		return run()
	})
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr()))), true)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 200 {
				tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: fmt.Sprint(i, j), Limit: everyLimit[0], Cost: 1}}}
				err := store.Take(context.Background(), tx)
				if err == nil && time.Until(tx.At).Abs() > time.Minute || err != nil && strings.Contains(err.Error(), "can't be read") {
					t.Errorf("got a decision at %v, and error %v", tx.At, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSendTimeMixed: a process with SendTime and one without share a key, as while the option is rolled
// out. Nobody overtakes the reservations of the other.
func TestSendTimeMixed(t *testing.T) {
	for _, l := range []quota.Limit{algorithms.GCRA(1, time.Second), algorithms.LeakyBucket(20, 1, time.Second), algorithms.SlidingLog(1, time.Second), algorithms.FixedWindow(1, time.Second)} {
		lua := redistest.Lua54(t)
		lua.SetTime(time.UnixMicro(1_700_000_000_000_000))
		rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr())))
		with, without := newStore(t, rdb, true), newStore(t, rdb)
		begin := time.Now()
		with.SetClock(func() time.Time { return begin })
		for i := range 8 {
			store := without
			if i%4 == 3 {
				store = with
			}
			tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Limit: l, Cost: 1}}, Within: 20 * time.Second}
			if err := store.Take(t.Context(), tx); err != nil || tx.Wait != time.Duration(i)*time.Second {
				t.Errorf("%s: call %d: got %v and a wait of %v, want %d s", l.Algorithm.Name(), i, err, tx.Wait, i)
			}
		}
	}
}

// TestSendTimeMany: transactions of so many charges that a loop decides them do not overtake the states
// that another process has written at a later time, whichever of the states is the newest. Only the first
// limit refuses a second charge, and only within 4 s.
func TestSendTimeMany(t *testing.T) {
	meter := func(i int) quota.Limit {
		return algorithms.GCRA(min(2, 1+int64(i)), 4*time.Second).Named(fmt.Sprint(i))
	}
	log := func(i int) quota.Limit {
		return algorithms.SlidingLog(min(2, 1+int64(i)), 4*time.Second).Named(fmt.Sprint(i))
	}
	for name, c := range map[string]struct {
		limit       func(i int) quota.Limit
		n, keys, of int // how many charges, their keys, and how many of them the other process does not spend
	}{
		"meters": {meter, 21, 1, 0}, "the first meter is older": {meter, 21, 1, 1}, "keys": {meter, 22, 22, 0},
		"the first key is older": {meter, 22, 22, 1}, "logs": {log, 11, 1, 0}, "keys with logs": {log, 12, 12, 0}, "the first log is older": {log, 12, 12, 1},
	} {
		lua, begin := redistest.Lua54(t), time.UnixMicro(1_700_000_000_000_000)
		lua.SetTime(begin)
		own := func() redis.UniversalClient { // after a further connection of its client, behind would query the time again
			o := redisstore.ClientOptions(patience, lua.Addr())
			o.MinIdleConns, o.PoolSize = 0, 1
			return client(t, redis.NewUniversalClient(o))
		}
		behind, other, still := newStore(t, own(), true), newStore(t, own()), time.Now()
		behind.SetClock(func() time.Time { return still })
		var charges []quota.Charge
		for i := range c.n {
			charges = append(charges, quota.Charge{Rule: "r", Key: fmt.Sprint(i % c.keys), Limit: c.limit(i), Cost: 1})
		}
		take(t, behind, charges...)
		lua.SetTime(begin.Add(5 * time.Second))
		later := slices.Clone(charges)
		for i := range c.of {
			later[i].Cost = 0
		}
		if tx := take(t, other, later...); !tx.Allowed() {
			t.Fatalf("%s: the other process is refused", name)
		}
		lua.SetTime(begin.Add(10 * time.Second))
		if got := take(t, behind, charges...); got.Allowed() != (c.of > 0) || !got.At.Equal(begin.Add(5*time.Second)) {
			t.Errorf("%s: allowed %v at %v, want %v at 5 s", name, got.Allowed(), got.At.Sub(begin), c.of > 0)
		}
	}
}

// TestSendTimeRedirect: a node with an early clock redirects a decision to one with a later clock, or
// the other way round. It counts for the earlier time, so that it is ahead of neither.
func TestSendTimeRedirect(t *testing.T) {
	nodes := [2]*redistest.Lua{redistest.Lua54(t).RefuseTime(), redistest.Lua54(t).RefuseTime()}
	nodes[0].SetTime(time.Now().Add(time.Hour))
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: nodes[0].Addr()}}},
			{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: nodes[1].Addr()}}},
		}, nil
	}})
	store := newStore(t, client(t, rdb), true)
	charge := func(node int) quota.Charge {
		for i := 0; ; i++ {
			if key := fmt.Sprint(i); redistest.Slot("{."+key+"}")/8192 == node {
				return quota.Charge{Rule: "r", Key: key, Limit: everyLimit[0], Cost: 1}
			}
		}
	}
	for i := range nodes {
		if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		nodes[i].Around(func(args []string, run func() string) string {
			if strings.HasPrefix(args[0], "eval") {
				return "-MOVED 1 " + nodes[1-i].Addr() + "\r\n"
			}
			return run()
		})
		tx := &quota.Transaction{Charges: []quota.Charge{charge(i)}}
		tx.Charges[0].Rule = "new"
		if err := store.Take(t.Context(), tx); err != nil || time.Until(tx.At).Abs() > time.Minute {
			t.Errorf("redirected by node %d: got %v and a decision %v ahead", i, err, time.Until(tx.At))
		}
		nodes[i].Around(nil)
	}
}
