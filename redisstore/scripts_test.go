package redisstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
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
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestOneCall: a transaction is one command, even if transactions with other limits, costs or
// waits have charged the same key before.
func TestOneCall(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	charges := func(cost int64, limits ...quota.Limit) (cs []quota.Charge) {
		for _, l := range limits {
			cs = append(cs, quota.Charge{Key: "k", Limit: l, Cost: cost})
		}
		return cs
	}
	tx := func(cost int64, limits ...quota.Limit) quota.Transaction {
		return quota.Transaction{Charges: charges(cost, limits...)}
	}
	waits := func(t quota.Transaction) quota.Transaction {
		t.Within = time.Hour
		return t
	}
	keys := func(t quota.Transaction) quota.Transaction {
		for i := range t.Charges {
			t.Charges[i].Key = fmt.Sprint("k", i)
		}
		return t
	}
	spent := func(t quota.Transaction) quota.Transaction {
		for i := range t.Charges {
			t.Charges[i].Spent = time.Now().UnixMicro()
		}
		return t
	}
	meter := func(units int64) quota.Limit { return algorithms.GCRA(units, time.Minute).Named("l") }
	fixed, sliding, log := algorithms.FixedWindow(1000, time.Hour), algorithms.SlidingWindow(1000, time.Hour).Named("l"), algorithms.SlidingLog(1000, time.Hour)
	bucket, day := algorithms.LeakyBucket(1000, 1000, time.Minute), algorithms.Calendar(1000, algorithms.Day, nil)
	several := func(n int) (limits []quota.Limit) {
		for i := range n {
			limits = append(limits, algorithms.GCRA(1000, time.Hour).Named(fmt.Sprint(i)))
		}
		return limits
	}
	for name, shapes := range map[string][]quota.Transaction{
		"costs":                     {tx(1, meter(1000)), tx(7, meter(1000)), tx(0, meter(1000)), tx(-1, meter(1000)), tx(1e6, meter(1000))},
		"with waiting and without":  {tx(1, bucket, fixed), waits(tx(1, bucket, fixed)), waits(tx(3, fixed, bucket))},
		"tiers of other numbers":    {tx(1, meter(1000)), tx(1, meter(10)), tx(100, meter(1000)), tx(1, meter(10))},
		"tiers of other algorithms": {tx(1, meter(1000)), tx(1, sliding), tx(1, bucket.Named("l")), tx(1, fixed.Named("l"))},
		"limits that join":          {tx(1, meter(1000)), tx(1, meter(1000), fixed), tx(1, fixed, meter(1000), sliding), tx(1, sliding)},
		"a calendar beside":         {tx(1, day), tx(1, day, fixed), tx(2, fixed, day), waits(tx(1, day))},
		"a log beside":              {tx(1, log), tx(5, log, meter(1000)), tx(1, meter(1000)), tx(2000, log)},
		"looks beside":              {tx(1, meter(1000)), {Charges: append(charges(2, meter(1000)), charges(0, fixed)...)}, {Charges: append(charges(0, meter(1000)), charges(1, fixed)...)}},
		"forgotten":                 {tx(1, meter(1000), fixed), {Charges: charges(1, fixed), Mode: quota.ModeForget}, {Charges: charges(1, meter(1000)), Mode: quota.ModeForget}},
		"at most":                   {{Charges: charges(1, meter(1000), fixed), Mode: quota.ModeAtMost, Most: 100}, {Charges: charges(1, log, fixed), Mode: quota.ModeAtMost, Most: 1e6}, {Charges: charges(2, log), Mode: quota.ModeAtMost, Most: 1}},
		"forced":                    {{Charges: charges(5000, meter(1000), fixed), Mode: quota.ModeForce}, {Charges: charges(5000, log), Mode: quota.ModeForce}, tx(1, meter(1000))},
		"few and many":              {tx(1, several(20)...), tx(1, several(21)...), tx(1, several(3)...)},
		"several keys":              {keys(tx(1, meter(1000), fixed, log)), keys(tx(1, log, meter(10))), tx(1, log), keys(waits(tx(1, bucket, fixed))), keys(tx(0, meter(1000), fixed))},
		"given back":                {keys(tx(1, meter(1000), fixed)), spent(keys(tx(-1, meter(1000), fixed))), spent(tx(-1, meter(1000), fixed)), spent(tx(-1, log))},
	} {
		setRule(shapes, name)
		takeShapes(t, store, name, shapes)
		resetStats(t, rdb) // Redis now has the scripts
		for range 4 {
			takeShapes(t, store, name, shapes)
		}
		if got, want := ran(t, server), 4*len(shapes); got != want {
			t.Errorf("%s: got %d scripts run for %d times Take", name, got, want)
		}
		var batch []*quota.Transaction
		for range 10 {
			for i := range shapes {
				again := shapes[i]
				again.Decisions = nil
				batch = append(batch, &again)
			}
		}
		takeEach(t, store, name, batch)
		resetStats(t, rdb)
		takeEach(t, store, name, batch)
		if got := ran(t, server); got > len(batch) {
			t.Errorf("%s: got %d scripts run for a batch of %d", name, got, len(batch))
		}
	}
}

// setRule sets the rule of all charges.
func setRule(shapes []quota.Transaction, rule string) {
	for i := range shapes {
		for j := range shapes[i].Charges {
			shapes[i].Charges[j].Rule = rule
		}
	}
}

// takeShapes takes a transaction of each shape.
func takeShapes(t *testing.T, store quota.Store, name string, shapes []quota.Transaction) {
	t.Helper()
	for i := range shapes {
		if err := store.Take(t.Context(), &shapes[i]); err != nil {
			t.Fatalf("%s, shape %d: %v", name, i, err)
		}
	}
}

// resetStats sets the server's count of scripts run back to 0.
func resetStats(t *testing.T, rdb *redis.Client) {
	t.Helper()
	if err := rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestBatchIsOneCall: under every algorithm, a batch of equal transactions of one key is one
// command, even if the key has states of other limits.
func TestBatchIsOneCall(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for _, limit := range []quota.Limit{
		algorithms.GCRA(100, time.Hour), algorithms.TokenBucket(100, 100, time.Hour), algorithms.LeakyBucket(100, 100, time.Hour),
		algorithms.FixedWindow(100, 10_000*time.Hour), algorithms.AnchoredWindow(100, time.Hour), algorithms.SlidingWindow(100, 10_000*time.Hour),
		algorithms.Calendar(100, algorithms.Month, nil), algorithms.SlidingLog(100, time.Hour),
	} {
		charge := quota.Charge{Rule: "r", Key: limit.Algorithm.Name(), Limit: limit, Cost: 3}
		take(t, store, quota.Charge{Rule: "r", Key: charge.Key, Limit: limit.Named("other"), Cost: 1})
		take(t, store, quota.Charge{Rule: "r", Key: charge.Key, Limit: limit.Named("other"), Cost: -1}) // also loads the script
		var batch []*quota.Transaction
		for range 40 {
			batch = append(batch, &quota.Transaction{Charges: []quota.Charge{charge}})
		}
		resetStats(t, rdb)
		takeEach(t, store, limit.String(), batch)
		if got := ran(t, server); got != 1 {
			t.Errorf("%v: got %d scripts run for a batch, want 1", limit, got)
		}
		allowed := 0
		for i, tx := range batch {
			if tx.Allowed() {
				allowed++
			}
			if want := max(0, 100-3*int64(min(i+1, 33))); tx.Decisions[0].Remaining != want {
				t.Errorf("%v, %d: got %d remaining, want %d", limit, i, tx.Decisions[0].Remaining, want)
			}
		}
		if allowed != 33 {
			t.Errorf("%v: got %d allowed of %d, want 33", limit, allowed, len(batch))
		}
	}
}

// TestFirstOfKey: the direct part of a script decides the first charge of a key, so Redis runs as few
// commands as for a later one: the script, TIME, GET and PSETEX.
func TestFirstOfKey(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for _, limit := range []quota.Limit{
		algorithms.GCRA(100, time.Hour), algorithms.TokenBucket(1e9, 1e6, time.Second), algorithms.LeakyBucket(100, 100, time.Minute),
		algorithms.FixedWindow(100, time.Hour), algorithms.AnchoredWindow(100, time.Hour), algorithms.SlidingWindow(100, time.Hour),
		algorithms.Calendar(100, algorithms.Month, nil),
	} {
		least, list := math.MaxInt, ""
		for n := range 4 { // the first one also loads the script; a busy client may send a TIME of its own
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: fmt.Sprint(limit.Algorithm.Name(), n), Limit: limit, Cost: 1}}}
			if got, commands := commandsOf(t, rdb, store, &tx); got < least {
				least, list = got, commands
			}
		}
		if least != 4 {
			t.Errorf("%v: got%s, want 4 commands", limit, list)
		}
	}
}

// TestFewScripts: the number of scripts in Redis is bounded. It does not grow with the
// numbers, names and costs of limits.
func TestFewScripts(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	kinds := []func(int64, time.Duration) quota.Limit{algorithms.GCRA, algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.AnchoredWindow}
	scripts := func() int {
		info, err := rdb.InfoMap(t.Context(), "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		var n int
		fmt.Sscan(info["Memory"]["number_of_cached_scripts"], &n)
		return n
	}
	for i := range 1000 {
		take(t, store, quota.Charge{Rule: "r", Key: fmt.Sprint(i), Limit: algorithms.GCRA(int64(i+1), time.Hour).Named(fmt.Sprint(i)), Cost: int64(i)})
	}
	if got := scripts(); got > 1 {
		t.Errorf("got %d scripts for one algorithm under 1000 names and numbers, want 1", got)
	}
	for i := range 1000 {
		var charges []quota.Charge
		for j := range 6 { // makes up to 4096 shapes
			charges = append(charges, quota.Charge{Rule: "r", Key: "k", Limit: kinds[i*17>>(2*j)%4](1000, time.Hour).Named(fmt.Sprint(j)), Cost: 1})
		}
		take(t, store, charges...)
	}
	for i := range 1000 {
		var charges []quota.Charge
		for j := range 10 { // makes up to 1024 shapes of several keys
			charges = append(charges, quota.Charge{Rule: "r", Key: fmt.Sprint(j), Limit: kinds[i>>j&1](1000, time.Hour), Cost: 1})
		}
		take(t, store, charges...)
	}
	if got, most := scripts(), 64+len(kinds); got > most {
		t.Errorf("got %d scripts for any number of shapes, want %d at most", got, most)
	}
}

// TestLargeDebt: the direct part of a script, which writes with SETRANGE while the TTL stays, also
// decides under a limit whose debt has more parts than a Lua number holds.
func TestLargeDebt(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewClient(&redis.Options{Addr: server.Addr()}))
	store := newStore(t, rdb)
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1_000_000, 24*time.Hour), Cost: 500_000}
	take(t, store, charge)
	charge.Cost = 1
	for range 30 {
		take(t, store, charge)
	}
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if n := redistest.CommandStats(info)["setrange"].Calls; n < 20 {
		t.Errorf("got %d SETRANGE for 30 charges of 86 ms, want at least 20", n)
	}
}

// TestManyCharges: Redis runs the same commands for a charge, however many charges a transaction has,
// and also if its shape has no script of its own. As long as the TTL of a value stays, that is one
// command to read the value and one to write it, where general.lua always sets the TTL.
func TestManyCharges(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	meter := func(int) quota.Limit { return algorithms.GCRA(1e6, 24*time.Hour) }
	log := func(int) quota.Limit { return algorithms.SlidingLog(1e6, 24*time.Hour) }
	mixed := func(i int) quota.Limit {
		return []quota.Limit{meter(i), algorithms.FixedWindow(1e6, 1e5*time.Hour), algorithms.SlidingWindow(1e6, 1e5*time.Hour), algorithms.AnchoredWindow(1e6, 24*time.Hour), algorithms.Calendar(1e6, algorithms.Month, nil)}[i%5]
	}
	logBeside := func(i int) quota.Limit { return []quota.Limit{log(i), mixed(i)}[i%2] }
	full := newStore(t, rdb)
	for i := 1; i <= 64; i++ { // makes 64 shapes that are not among those below
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: meter(0), Cost: 1}}}
		for j := range 7 {
			tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: "k", Limit: meter(0).Named(fmt.Sprint(j)), Cost: int64(i >> j & 1)})
		}
		if _, err := full.Hash(&tx); err != nil {
			t.Fatal(err)
		}
	}
	for name, shape := range map[string]struct {
		limit              func(i int) quota.Limit
		charges, keys      int
		setRange, hashSets int // how many commands write values
	}{
		"20 meters":                 {meter, 20, 1, 1, 0},
		"21 meters":                 {meter, 21, 1, 1, 0},
		"70 meters":                 {meter, 70, 1, 1, 0},
		"21 of all algorithms":      {mixed, 21, 1, 1, 0},
		"21 keys":                   {meter, 21, 21, 21, 0},
		"21 keys of all algorithms": {mixed, 42, 21, 21, 0},
		"10 logs":                   {log, 10, 1, 0, 1},
		"11 logs":                   {log, 11, 1, 0, 1},
		"70 logs":                   {log, 70, 1, 0, 1},
		"11 keys with logs":         {log, 11, 11, 0, 11},
		"logs and others":           {logBeside, 24, 1, 1, 1},
		"one meter":                 {meter, 1, 1, 1, 0},
		"one log":                   {log, 1, 1, 0, 1},
	} {
		for own, store := range map[bool]*redisstore.Store{true: newStore(t, rdb), false: full} {
			tx := quota.Transaction{}
			for i := range shape.charges {
				tx.Charges = append(tx.Charges, quota.Charge{Rule: name, Key: fmt.Sprint(own, i%shape.keys), Limit: shape.limit(i).Named(fmt.Sprint(i)), Cost: 1000})
			}
			takeShapes(t, store, name, []quota.Transaction{tx}) // writes the values and sets their TTLs
			for i := range tx.Charges {
				tx.Charges[i].Cost = 1
			}
			resetStats(t, rdb)
			takeShapes(t, store, name, []quota.Transaction{tx, tx, tx, tx})
			info, err := rdb.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			stats := redistest.CommandStats(info)
			got := []int{stats["setrange"].Calls, stats["psetex"].Calls, stats["hset"].Calls, stats["pexpire"].Calls}
			// A charge of a meter puts off the end of its debt by 86 ms, and so sometimes the TTL.
			if want := []int{4 * shape.setRange, 0, 4 * shape.hashSets, 0}; got[0]+got[1] != want[0] || got[1] > want[0]/2 || got[2] != want[2] || got[3] != 0 {
				t.Errorf("%s, own script %v: got %v SETRANGE, PSETEX, HSET and PEXPIRE, want about %v", name, own, got, want)
			}
		}
	}
}

// TestRemovedLog: a limit that was removed, or that only other transactions charge, does not change the
// commands for the other limits of its log, wherever it stood among them.
func TestRemovedLog(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for removed := range 3 {
		charges := []quota.Charge{}
		for i := range 3 {
			charges = append(charges, quota.Charge{Rule: "r", Key: fmt.Sprint(removed), Limit: algorithms.SlidingLog(100, time.Hour).Named(fmt.Sprint(i)), Cost: 1})
		}
		take(t, store, charges...)
		charges = slices.Delete(charges, removed, removed+1)
		take(t, store, charges...) // general.lua moves the removed limit to a log of its own
		resetStats(t, rdb)
		for range 4 {
			take(t, store, charges...)
		}
		info, err := rdb.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		stats := redistest.CommandStats(info)
		if hset, pexpire := stats["hset"].Calls, stats["pexpire"].Calls; hset != 4 || pexpire != 0 {
			t.Errorf("limit %d removed: got %d HSET and %d PEXPIRE for 4 charges, want 4 and 0", removed, hset, pexpire)
		}
	}
}

const matrixPassword = "a password"

// A trouble is a state of Redis in which it answers with an error instead of a decision.
// TestFaults tests failures of the network. TestSentinel, TestCluster and TestReshard test
// failures of several nodes.
type trouble struct {
	name       string
	begin, end func(m *matrix)
	sees       string // a part of the error and of the line in the log
	forgets    bool   // the trouble deletes the units that were spent before
}

// A matrix is a server in trouble. admin is a connection that was made before the trouble.
type matrix struct {
	*testing.T
	server *redistest.Proc
	admin  *redis.Conn
	busy   sync.WaitGroup
}

func (m *matrix) do(args ...any) {
	m.Helper()
	if err := m.admin.Do(context.Background(), args...).Err(); err != nil {
		m.Fatalf("%v: %v", args, err)
	}
}

// other sends a command from another goroutine, because its answer takes long.
func (m *matrix) other(args ...any) {
	rdb := client(m, redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{m.server.Addr()}, Password: matrixPassword, ReadTimeout: time.Minute, MaxRetries: -1}))
	m.busy.Go(func() { rdb.Do(context.Background(), args...) })
}

var troubles = []trouble{
	{"out of memory", func(m *matrix) { m.do("CONFIG", "SET", "maxmemory", "1") },
		func(m *matrix) { m.do("CONFIG", "SET", "maxmemory", "0") }, "redisstore: Redis answers: OOM ", false},
	{"a replica", func(m *matrix) { m.do("REPLICAOF", "127.0.0.1", "1") },
		func(m *matrix) { m.do("REPLICAOF", "NO", "ONE") }, "redisstore: Redis answers: READONLY ", false},
	{"a replica without its master", func(m *matrix) {
		m.do("CONFIG", "SET", "replica-serve-stale-data", "no")
		m.do("REPLICAOF", "127.0.0.1", "1")
	}, func(m *matrix) { m.do("REPLICAOF", "NO", "ONE") }, "redisstore: Redis answers: MASTERDOWN ", false},
	{"loading", func(m *matrix) {
		m.do("DEBUG", "POPULATE", "10000")
		m.do("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
		m.do("CONFIG", "SET", "key-load-delay", "1000")
		m.other("DEBUG", "RELOAD")
	}, func(m *matrix) { m.do("CONFIG", "SET", "key-load-delay", "0") }, "redisstore: Redis answers: LOADING ", false},
	{"busy with a script", func(m *matrix) {
		m.do("CONFIG", "SET", "busy-reply-threshold", "1")
		m.other("EVAL", "while true do end", "0")
	}, func(m *matrix) { m.do("SCRIPT", "KILL") }, "redisstore: Redis answers: BUSY ", false},
	{"cannot save", func(m *matrix) {
		dir := m.admin.ConfigGet(context.Background(), "dir").Val()["dir"]
		if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
			m.Fatal(err)
		}
		m.do("CONFIG", "SET", "save", "3600 1")
		m.do("BGSAVE")
	}, func(m *matrix) { m.do("CONFIG", "SET", "save", "") }, "redisstore: Redis answers: MISCONF ", false},
	{"no permission", func(m *matrix) { m.do("ACL", "SETUSER", "default", "-evalsha", "-eval") },
		func(m *matrix) { m.do("ACL", "SETUSER", "default", "+@all") }, "redisstore: the default user lacks +evalsha: NOPERM ", false},
	{"a wrong password", func(m *matrix) {
		m.do("CONFIG", "SET", "requirepass", "another")
		m.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}, func(m *matrix) { m.do("CONFIG", "SET", "requirepass", matrixPassword) }, "redisstore: the user or the password is wrong, or the user is disabled: WRONGPASS ", false},
	{"too many clients", func(m *matrix) {
		m.do("CONFIG", "SET", "maxclients", "1")
		m.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}, func(m *matrix) { m.do("CONFIG", "SET", "maxclients", "1000") }, "", false}, // go-redis does not pass on what Redis says
	{"a value of another program", func(m *matrix) {
		m.do("DEL", "weir:r:{.k}")
		m.do("HSET", "weir:r:{.k}", "f", "v")
	}, func(m *matrix) { m.do("DEL", "weir:r:{.k}") }, "(gcra): Redis answers: WRONGTYPE ", true},
}

// TestTroubles: during a trouble, Take returns an error with the answer of Redis, the log gets
// one line about it, and the fallback decides. After the trouble Redis still has its counts.
// The answer of a Redis with too many clients is not in the error.
func TestTroubles(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t)
		})
	}
}

// test causes and ends the trouble. Meanwhile it calls a store without a fallback, and a stack
// of that store and a fallback.
func (c trouble) test(t *testing.T) {
	server := redistest.Server(t, "--enable-debug-command", "yes", "--dbfilename", "taken")
	admin := client(t, redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{server.Addr()}, MaxRetries: -1, ReadTimeout: 10 * time.Second})).(*redis.Client).Conn()
	t.Cleanup(func() { admin.Close() })
	m := &matrix{T: t, server: server, admin: admin}
	t.Cleanup(m.busy.Wait)
	m.do("CONFIG", "SET", "requirepass", matrixPassword)
	m.do("AUTH", matrixPassword)

	o := redisstore.ClientOptions(0, server.Addr())
	o.Password = matrixPassword
	store, err := redisstore.New(client(t, redis.NewUniversalClient(o)), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var log weirtest.Log
	logger := slog.New(slog.NewTextHandler(&log, nil))
	stack := quota.Fallback(quota.Breaker(store, quota.BreakerOptions{Logger: logger, Cooldown: 50 * time.Millisecond}),
		memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: logger})
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, 10*time.Minute).WithBurst(1_000_000), Cost: 1}
	tx := quota.Transaction{Charges: []quota.Charge{charge}}
	eventually(t, "connected", func() error { return store.Take(t.Context(), &tx) })
	eventually(t, "decided again", func() error { return store.Take(t.Context(), &tx) })
	before := tx.Decisions[0].Remaining

	c.begin(m)
	begin := time.Now()
	eventually(t, "in trouble", func() error {
		err := store.Take(t.Context(), &tx)
		if err == nil {
			before = tx.Decisions[0].Remaining
			return errors.New("decided")
		}
		if !strings.Contains(err.Error(), c.sees) {
			return fmt.Errorf("got %q, want %q in it", err, c.sees)
		}
		t.Logf("a client sees %q after %v", err, time.Since(begin).Round(time.Millisecond))
		return nil
	})
	for range 20 {
		if err := stack.Take(t.Context(), &tx); err != nil {
			t.Fatalf("with a fallback: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.end(m)
	m.busy.Wait()
	end := time.Now()
	eventually(t, "decided again", func() error { return store.Take(t.Context(), &tx) })
	t.Logf("decided again %v after the end", time.Since(end).Round(time.Millisecond))
	if after := tx.Decisions[0].Remaining; after >= before && !c.forgets {
		t.Errorf("got %d remaining, %d before: what was spent is lost", after, before)
	}
	c.checkLog(t, stack, &tx, &log)
}

// checkLog waits until the log says that the primary store works again. The log must also
// have one earlier line about the trouble.
func (c trouble) checkLog(t *testing.T, stack quota.Store, tx *quota.Transaction, log *weirtest.Log) {
	t.Helper()
	eventually(t, "the fallback rests", func() error {
		if err := stack.Take(t.Context(), tx); err != nil {
			return err
		}
		if !strings.Contains(log.String(), "quota: primary store works again") {
			return errors.New("not yet")
		}
		return nil
	})
	if got := strings.Count(log.String(), "quota: primary store failed") + strings.Count(log.String(), "quota: primary store unusable"); got != 1 || !strings.Contains(log.String(), c.sees) && !strings.Contains(log.String(), redisstore.ErrTimeout.Error()) {
		t.Errorf("got %d lines, want one that names %q:\n%s", got, c.sees, log.String())
	}
	t.Logf("the log says\n%s", log.String())
}

// An own algorithm has the name and the Lua that a test gives it.
type own struct {
	quota.Algorithm
	name, lua string
}

func (o own) Name() string { return o.name }
func (o own) Lua() string  { return o.lua }

// TestScriptedMistakes: if the Lua of an algorithm has a mistake, the error quotes the
// line, or names the rule and limit.
func TestScriptedMistakes(t *testing.T) {
	rdb := client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()}))
	store := newStore(t, rdb)
	for _, test := range []struct{ name, lua, want string }{
		{"syntax", "local function take(at)\n  retrn 0\nend", "of the script of syntax: retrn 0)"},
		{"other-name", "local function tke() return 0 end", "global variable 'take'"},
		{"global", "function take() return 0 end", "of the script of global: function take() return 0 end)"},
		{"nil", "local function take(at)\n  return at + nil\nend", "of the script of nil: return at + nil)"},
		{"nothing", "local function take() end", `rule "r": limit "1h" (nothing): the server cannot decide under this algorithm, whatever the key: ERR user_script`},
		{"refuses", "local function take() return 7 end", `rule "r": limit "1h" (refuses): the server cannot decide under this algorithm, whatever the key: Redis and Go decide differently`},
		{"fraction", "local function take(at, a, b, till, now) return 0, now, 0.5, 0, now + 60000000 end", `rule "r": limit "1h" (fraction): the server cannot decide under this algorithm, whatever the key: its state in Redis can't be read, or has a number that is no integer`},
	} {
		tx := func() *quota.Transaction {
			limit := quota.Limit{Algorithm: own{algorithms.FixedWindow(9, time.Hour).Algorithm, test.name, test.lua}, Quota: 9, Period: time.Hour}
			return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		}
		store.Take(t.Context(), tx()) // the second call reads what the first has stored
		errs := append(store.TakeEach(t.Context(), []*quota.Transaction{tx()}), store.Take(t.Context(), tx()))
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want %s", test.name, err, test.want)
			}
		}
	}
}

// TestWithoutLua: Redis can never decide under an algorithm without Lua, so the error is an ErrUnusable,
// after which a Limiter refuses requests, whereas it allows them in an outage.
func TestWithoutLua(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})))
	limit := quota.Limit{Algorithm: struct{ quota.Algorithm }{algorithms.FixedWindow(9, time.Hour).Algorithm}, Quota: 9, Period: time.Hour}
	tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
	for _, err := range append(store.TakeEach(t.Context(), []*quota.Transaction{tx}), store.Take(t.Context(), tx)) {
		const want = `algorithm "fixed-window" has no Lua`
		if !errors.Is(err, quota.ErrUnusable) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an ErrUnusable and errors.ErrUnsupported with the text %s", err, want)
		}
	}
}

// TestScriptedLua54: on Lua 5.4, too, the time is a float, so an algorithm may multiply it by
// other numbers.
func TestScriptedLua54(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Lua54(t).Addr()})))
	a := algorithms.FixedWindow(1<<30, time.Hour).Algorithm
	lua, cancel, _ := strings.Cut(a.(redisstore.Scripted).Lua(), "local function cancel(")
	lua += `
local decide = take
local function take(at, a, b, till, now, cost, quota, period)
  if (now - at) * quota < 0 then return -1 end
  return decide(at, a, b, till, now, cost, quota, period)
end
local function cancel(` + cancel
	limit := quota.Limit{Algorithm: own{a, "product", lua}, Quota: 1 << 30, Period: time.Hour}
	tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
	if err := store.Take(t.Context(), tx); err != nil || !tx.Allowed() {
		t.Errorf("got %+v, %v, want the charge allowed", tx.Decisions, err)
	}
}

// A double is an algorithm under which a unit costs two units of another meter.
type double struct{ own }

func (d double) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	return d.own.Take(s, l, now, 2*cost)
}

// TestScriptedLayout: the Lua of an algorithm need not be indented, so a function that take
// defines may begin a line. If the Lua defines take twice, the second take decides.
func TestScriptedLayout(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})))
	limit := algorithms.GCRA(6, 10_000*time.Hour)
	first, rest, _ := strings.Cut(limit.Algorithm.(redisstore.Scripted).Lua(), "local function cancel(")
	limit.Algorithm = double{own{limit.Algorithm, "flat", first + `
local inner = take
local function take(at, a, b, till, now, cost, quota, period, burst, edges, c)
local function twice(n)
return 2 * n
end
return inner(at, a, b, till, now, twice(cost), quota, period, burst, edges, c)
end
local function cancel(` + rest}}
	for i := range 5 {
		tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		if err := store.Take(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if want := i < 3; tx.Allowed() != want {
			t.Errorf("%d: got allowed %v, want %v", i, tx.Allowed(), want)
		}
	}
}

// A listed is an algorithm that can't be compared with ==.
type listed struct {
	own
	list []int
}

func (listed) Additive() {}

// TestNotComparable: a batch may have algorithms whose values cannot be compared with ==.
func TestNotComparable(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})))
	fixed := algorithms.FixedWindow(3, 10_000*time.Hour)
	limit := fixed
	limit.Algorithm = listed{own{fixed.Algorithm, "listed", fixed.Algorithm.(redisstore.Scripted).Lua()}, []int{1}}
	var batch []*quota.Transaction
	for range 5 {
		batch = append(batch, &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}})
	}
	for i, err := range store.TakeEach(t.Context(), batch) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	for i, tx := range batch {
		if want := i < 3; tx.Allowed() != want {
			t.Errorf("%d: got allowed %v, want %v", i, tx.Allowed(), want)
		}
	}
}

// A scriptHook keeps the arguments of the last EVAL.
type scriptHook struct {
	redis.Hook
	args []any
}

func (h *scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "eval" {
			h.args = cmd.Args()
		}
		return next(ctx, cmd)
	}
}

// TestEndedLimit: the direct part of a script decides the charge of a value that also keeps the state of a
// limit that has been removed: refused, whenever that state has ended, because a refusal does not write the
// value, and allowed until a second after the end, when general.lua drops the state.
func TestEndedLimit(t *testing.T) {
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, redistest.Server(t).Addr())))
	hook := &scriptHook{Hook: &callerHook{}}
	rdb.AddHook(hook)
	store := newStore(t, rdb)
	for _, c := range []struct {
		ends   time.Duration // after the charge
		cost   int64
		direct bool
	}{{time.Hour, 1, true}, {-time.Second / 2, 1, true}, {-time.Minute, 1, false}, {time.Hour, 9, true}, {-time.Minute, 9, true}} {
		charge := quota.Charge{Rule: "r", Key: fmt.Sprint(c), Limit: algorithms.GCRA(9, time.Hour), Cost: 1}
		removed := charge
		removed.Limit = algorithms.GCRA(1000, time.Hour).Named("removed")
		take(t, store, charge, removed)
		key := store.Key(&charge)
		value, err := rdb.Get(t.Context(), key).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		charge.Cost = c.cost
		rdb.ScriptFlush(t.Context()) // so that the store sends the text
		take(t, store, charge)
		binary.LittleEndian.PutUint64(value[len(value)-8:], math.Float64bits(float64(time.Now().Add(c.ends).UnixMicro())))
		rdb.Set(t.Context(), key, value, time.Hour)
		args := slices.Clone(hook.args)
		direct, _, _ := strings.Cut(args[1].(string), "local function ms(us)")
		args[1] = direct + "return 'general.lua'"
		reply, err := rdb.Do(t.Context(), args...).Text()
		if err != nil {
			t.Fatal(err)
		}
		if got := reply != "general.lua"; got != c.direct {
			t.Errorf("%+v: got decided by the direct part %v", c, got)
		}
	}
}

// A callerHook counts the calls that a client makes on the goroutine of a test.
type callerHook struct {
	test   string
	direct atomic.Int64
}

func (h *callerHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *callerHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note()
		return next(ctx, cmd)
	}
}

func (h *callerHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note()
		return next(ctx, cmds)
	}
}

func (h *callerHook) note() {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "."+h.test) {
			h.direct.Add(1)
		}
		if !more {
			return
		}
	}
}

// TestLoneCaller: a caller that has been alone for a while sends its calls itself. A caller who
// may give up at any time does not, because it could not return before its answer. If Redis
// hangs, a lone caller learns it as any other does, and goes on when Redis is back.
func TestLoneCaller(t *testing.T) {
	server := redistest.Server(t)
	const timeout = 2 * time.Second // for a busy machine
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(timeout, server.Addr())))
	hook := &callerHook{test: "TestLoneCaller"}
	rdb.AddHook(hook)
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(1e9, time.Hour), Cost: 1}}}
	take := func(ctx context.Context, n int) (direct int64) {
		before := hook.direct.Load()
		for range n {
			if err := store.Take(ctx, &tx); err != nil && !errors.Is(err, quota.ErrBusy) { // a busy machine
				t.Fatal(err)
			}
		}
		return hook.direct.Load() - before
	}
	eventually(t, "a call on the goroutine of its caller", func() error {
		if take(context.Background(), 20) == 0 {
			return errStill
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if n := take(ctx, 100); n > 0 {
		t.Errorf("%d calls of a caller that may give up were made on its goroutine", n)
	}
	eventually(t, "a call by its caller", func() error {
		if take(context.Background(), 20); take(context.Background(), 1) == 0 {
			return errStill
		}
		return nil
	})
	server.Pause()
	if err := store.Take(context.Background(), &tx); !errors.Is(err, redisstore.ErrTimeout) {
		t.Errorf("while Redis hangs: got %v, want ErrTimeout", err)
	}
	server.Resume()
	eventually(t, "decisions", func() error { return store.Take(context.Background(), &tx) })
}

// TestManyLimitsEach: TakeEach decides batches of equal transactions, with 1 to 250 limits in
// each transaction.
func TestManyLimitsEach(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for _, n := range []int{1, 30, 31, 32, 33, 66, 100, 250} {
		for name, limit := range map[string]func(int64, time.Duration) quota.Limit{"meters": algorithms.GCRA, "logs": algorithms.SlidingLog} {
			var charges []quota.Charge
			for i := range n {
				charges = append(charges, quota.Charge{Rule: name, Key: fmt.Sprint(n), Limit: limit(3, time.Hour+time.Duration(i)*time.Second), Cost: 1})
			}
			var ts []*quota.Transaction
			for range 5 {
				ts = append(ts, &quota.Transaction{Charges: slices.Clone(charges)})
			}
			takeEach(t, store, fmt.Sprint(n, " ", name), ts)
			for i, tx := range ts {
				if got, want := len(tx.Decisions) == n && tx.Allowed(), i < 3; got != want {
					t.Errorf("%d %s, transaction %d: got allowed %v, want %v", n, name, i, got, want)
				}
			}
		}
	}
}

// TestTooManyCharges: for a transaction of more than 10,000 charges, Take returns an error
// that names this bound.
func TestTooManyCharges(t *testing.T) {
	rounds.Slow(t, "10,000 charges in one script")
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Minute}) // a busy machine may need longer than patience for 10,000 charges
	if err != nil {
		t.Fatal(err)
	}
	tx := quota.Transaction{}
	for i := range 10_001 {
		tx.Charges = append(tx.Charges, quota.Charge{Key: fmt.Sprint(i), Limit: algorithms.GCRA(3, time.Hour), Cost: 1})
	}
	const want = "redisstore: the transaction has 10001 charges; want at most 10000"
	if err := store.Take(t.Context(), &tx); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	tx.Charges = tx.Charges[1:]
	if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
		t.Errorf("one charge less: got error %v, allowed %v; want it decided", err, tx.Allowed())
	}
}
