package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// everyLimit has a limit of each algorithm.
var everyLimit = []quota.Limit{
	algorithms.GCRA(100, time.Minute), algorithms.TokenBucket(100, 100, time.Minute), algorithms.LeakyBucket(100, 100, time.Minute),
	algorithms.FixedWindow(100, time.Minute), algorithms.AnchoredWindow(100, time.Minute), algorithms.SlidingWindow(100, time.Minute),
	algorithms.SlidingLog(100, time.Minute), algorithms.Calendar(100, algorithms.Month, nil), algorithms.InFlight(100, time.Minute),
}

// storeOf returns a store of a client with the options that o changes.
func storeOf(t *testing.T, o *redis.UniversalOptions) *redisstore.Store {
	t.Helper()
	rdb := redis.NewUniversalClient(o)
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func optionsOf(addr string, change func(o *redis.UniversalOptions)) *redis.UniversalOptions {
	o := redisstore.ClientOptions(5*time.Second, addr)
	if change != nil {
		change(o)
	}
	return o
}

// TestProbe: Probe accepts a server that can decide, and leaves no key behind.
func TestProbe(t *testing.T) {
	for _, addr := range []string{redistest.Server(t).Addr(), redistest.Lua54(t).Addr()} {
		rdb := client(t, redis.NewUniversalClient(optionsOf(addr, nil)))
		store := newStore(t, rdb)
		for range 3 {
			if err := store.Probe(t.Context(), everyLimit...); err != nil {
				t.Fatal(err)
			}
		}
		if keys, err := rdb.Keys(t.Context(), "*").Result(); len(keys) > 0 || err != nil {
			t.Errorf("got %v after Probe, %v", keys, err)
		}
	}
}

// TestProbeFarClock: Probe accepts a server whose clock is years ahead. A script that needs windows
// of a calendar then runs a second time, with these windows.
func TestProbeFarClock(t *testing.T) {
	lua := redistest.Lua54(t)
	lua.SetTime(time.Now().AddDate(3, 0, 0))
	store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil))))
	if err := store.Probe(t.Context(), everyLimit...); err != nil {
		t.Error(err)
	}
}

// TestProbeTwice: two probes at the same time, when Redis has no scripts, disturb each other as
// little as other calls.
func TestProbeTwice(t *testing.T) {
	for range 20 {
		store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(redistest.Lua54(t).Addr(), nil))))
		weirtest.Together(2, func(int) {
			if err := store.Probe(t.Context(), everyLimit...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOverridesLua54: the scripts of overrides run on Lua 5.4, too. Package overrides tests them
// on a redis-server.
func TestOverridesLua54(t *testing.T) {
	store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(redistest.Lua54(t).Addr(), nil))))
	save := func(name, text string, d time.Duration, full bool) {
		t.Helper()
		if got, err := store.SaveOverride(t.Context(), name, text, d, 2); err != nil || got != full {
			t.Fatalf("%s: got %v, %v, want %v", name, got, err, full)
		}
	}
	save("a", "1", 0, false)
	save("b", "2", time.Nanosecond, false) // counts as a microsecond
	save("c", "3", 0, false)               // b has ended
	save("d", "4", 0, true)
	save("a", "", 0, false)
	save("d", "4", time.Hour, false)
	kept, version, now, err := store.LoadOverrides(t.Context(), "")
	if end := fmt.Sprint(now.Add(time.Hour).UnixMicro())[:9]; err != nil || len(kept) != 2 || kept["c"] != "0 3" || !strings.HasPrefix(kept["d"], end) {
		t.Errorf("got %q at %v, %v", kept, now, err)
	}
	if kept, again, _, err := store.LoadOverrides(t.Context(), version); len(kept) != 0 || again != version || err != nil {
		t.Errorf("the same version: got %q and version %s, %v, want nothing and %s", kept, again, err, version)
	}
}

// TestProbeCluster: Probe finds a right that is missing on one of three masters.
func TestProbeCluster(t *testing.T) {
	rounds.Slow(t, "a cluster takes seconds to begin")
	t.Parallel() // it mostly waits for its servers to start
	cluster := redistest.Cluster(t, 3, 0)
	for _, node := range cluster.Nodes {
		node.Do("ACL", "SETUSER", "weir", "on", ">p", "~*", "+@all")
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "weir", Password: "p"})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "usable", func() error { return store.Probe(t.Context(), everyLimit...) }) // a busy machine may need longer than a Probe may take
	cluster.Nodes[2].Do("ACL", "SETUSER", "weir", "-psetex")
	eventually(t, "a right is missing", func() error {
		if err := store.Probe(t.Context(), everyLimit...); !weirtest.FailsWith(err, `user "weir" lacks +psetex`) || !errors.Is(err, quota.ErrUnusable) {
			return fmt.Errorf("got error %v", err)
		}
		return nil
	})
}

// TestProbeSentinel: Probe works behind Sentinel, and says that no master has the name.
func TestProbeSentinel(t *testing.T) {
	rounds.Slow(t, "Sentinels take seconds to begin")
	t.Parallel() // it mostly waits for its servers to start
	set := redistest.Sentinel(t)
	store := storeOf(t, optionsOf(set.Addrs()[0], func(o *redis.UniversalOptions) { o.MasterName = redistest.MasterName }))
	eventually(t, "usable", func() error { return store.Probe(t.Context(), everyLimit...) }) // as in TestProbeCluster
	other := storeOf(t, optionsOf(set.Addrs()[0], func(o *redis.UniversalOptions) { o.MasterName = "other" }))
	if err := other.Probe(t.Context()); !errors.Is(err, quota.ErrUnusable) {
		t.Errorf("another name of the master: got error %v, want an ErrUnusable", err)
	}
}

// served returns how many of 50 requests a Limiter of the store lets pass, with the defaults.
func served(t *testing.T, store quota.Store) (n int) {
	limiter := weirtest.New(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: everyLimit[:1]}}})
	h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n++ }))
	for range 50 {
		weirtest.Do(h, weirtest.Ask("/", "192.0.2.1"))
	}
	return n
}

// TestUnusable: if a store can never work, Probe and Take say so, and what is wrong. The error
// survives the decorators, and the requests of a Limiter with the defaults are refused.
func TestUnusable(t *testing.T) {
	server, private := redistest.Server(t), redistest.Server(t)
	private.Do("CONFIG", "SET", "requirepass", "secret")
	renamed := redistest.Server(t, "--rename-command", "PSETEX", "")
	dir := t.TempDir()
	key, cert := dir+"/key", dir+"/cert"
	redistest.Certificate(t, cert, key)
	secure := redistest.TLS(t, cert, key)
	user := func(rules string) func(o *redis.UniversalOptions) {
		name := "u" + strings.ReplaceAll(rules, " ", "")
		server.Do(append([]string{"ACL", "SETUSER", name, "reset", "on", ">p", "~*", "+@all"}, strings.Fields(rules)...)...)
		return func(o *redis.UniversalOptions) { o.Username, o.Password = name, "p" }
	}
	with := func(a, b func(o *redis.UniversalOptions)) func(o *redis.UniversalOptions) {
		return func(o *redis.UniversalOptions) { a(o); b(o) }
	}
	const nothing = "\x00" // Take works
	for _, c := range []struct {
		name   string
		addr   string
		change func(o *redis.UniversalOptions)
		probe  string // in the error of Probe
		take   string // in the error of Take; "" for that of Probe
	}{
		{"wrong password", private.Addr(), func(o *redis.UniversalOptions) { o.Password = "x" }, "password is wrong", ""},
		{"no password", private.Addr(), nil, "Redis requires a password", ""},
		{"no user", server.Addr(), func(o *redis.UniversalOptions) { o.Username, o.Password = "nobody", "x" }, "password is wrong", ""},
		{"no such database", server.Addr(), func(o *redis.UniversalOptions) { o.DB = 99 }, "no database of this number", ""},
		{"no EVALSHA", server.Addr(), user("-evalsha"), `lacks +evalsha`, ""},
		{"no TIME", server.Addr(), user("-time"), `lacks +time`, ""},
		// This one decides, in a database of its own: a state that it left where the next ones ask
		// would be charged by SET, which they may use.
		{"no HGETALL and no HLEN", server.Addr(), with(user("-hgetall -hlen"), func(o *redis.UniversalOptions) { o.DB = 1 }), `user "u-hgetall-hlen" lacks +hgetall +hlen`, nothing},
		{"no PSETEX", server.Addr(), user("-psetex"), `lacks +psetex`, ""},
		{"other keys", server.Addr(), user("resetkeys ~other:*"), `lacks ~weir:*`, ""},
		{"no PSETEX at all", renamed.Addr(), nil, "no command PSETEX", ""},
		{"a node of a cluster", redistest.Fake(t, func([]string) string { return "-MOVED 1 127.0.0.1:1\r\n" }), nil, "node of a cluster", ""},
		{"no cluster", server.Addr(), func(o *redis.UniversalOptions) { o.IsClusterMode = true }, "the server is no cluster", ""},
		{"TLS port", secure, nil, "the server speaks TLS, and the client does not", ""},
		{"plain port", server.Addr(), func(o *redis.UniversalOptions) { o.TLSConfig = &tls.Config{} }, "the server does not speak TLS", ""},
		{"unknown CA", secure, func(o *redis.UniversalOptions) { o.TLSConfig = &tls.Config{} }, "does not trust the certificate", ""},
		{"no client certificate", secure, func(o *redis.UniversalOptions) { o.TLSConfig = &tls.Config{InsecureSkipVerify: true} }, "refuses the TLS of the client", ""},
		{"TIME refused in scripts", redistest.Fake(t, serverless), nil, "TIME is not allowed in scripts, so Options.SendTime is needed", ""},
		{"Lua 5.3", redistest.Fake(t, lua53), nil, "the server runs Lua 5.3, and the scripts need Lua 5.1 or 5.4", "the server cannot decide under this algorithm, whatever the key: "},
		{"Redis 6 with LockKeys", redistest.Fake(t, noFlags), nil, "Options.LockKeys", ""},
		{"no scripts", redistest.Fake(t, noScripts), nil, "the server has no command EVAL", "the server has no command EVALSHA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store := storeOf(t, optionsOf(c.addr, c.change))
			if err := store.Probe(t.Context(), everyLimit...); !weirtest.FailsWith(err, c.probe) || !errors.Is(err, quota.ErrUnusable) {
				t.Errorf("Probe: got error %v, want an ErrUnusable with %q", err, c.probe)
			}
			take := c.take
			if take == "" {
				take = c.probe
			}
			if n := served(t, store); (n == 50) != (take == nothing) || n != 0 && n != 50 {
				t.Errorf("%d of 50 requests were served", n)
			}
			stack := quota.Breaker(quota.Coalesce(store), quota.BreakerOptions{Failures: 1, Cooldown: time.Hour})
			for name, s := range map[string]quota.Store{"store": store, "breaker": stack, "open breaker": stack, "fallback": quota.Fallback(stack, weirtest.StoreFunc(
				func(context.Context, *quota.Transaction) error { return errors.New("the second fails too") }), quota.FallbackOptions{})} {
				err := s.Take(t.Context(), weirtest.Once(everyLimit[0]))
				if take == nothing {
					if err != nil {
						t.Errorf("%s: got error %v", name, err)
					}
				} else if !weirtest.FailsWith(err, take) || !errors.Is(err, quota.ErrUnusable) {
					t.Errorf("%s: got error %v, want an ErrUnusable with %q", name, err, take)
				} else if strings.Contains(err.Error(), "192.0.2.1") {
					t.Errorf("%s: the error has the client's key: %v", name, err)
				}
			}
		})
	}
}

// serverless answers as ElastiCache Serverless does:
// https://github.com/cristipufu/aspnetcore-redis-rate-limiting/issues/154
func serverless(args []string) string {
	switch {
	case strings.EqualFold(args[0], "time"):
		return "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"
	case strings.Contains(args[1], "redis.pcall"), args[0] == "evalsha" && strings.Contains(args[3], "probe{"):
		return "*3\r\n$7\r\nLua 5.1\r\n$4\r\nTIME\r\n$68\r\nERR This Redis command is not allowed from script script: 53aa7d296b,\r\n"
	case args[0] == "evalsha":
		return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	}
	for i, line := range strings.Split(args[1], "\n") {
		if strings.Contains(line, "call('TIME')") {
			return fmt.Sprintf("-ERR This Redis command is not allowed from script script: 53aa7d296ba9ded783301cc275161b6e344ad383, on @user_script:%d.\r\n", i+1)
		}
	}
	return "-ERR unknown command\r\n"
}

// lua53 answers as a server with a Lua that no script was written for.
func lua53(args []string) string {
	switch {
	case strings.EqualFold(args[0], "time"):
		return "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"
	case strings.Contains(args[1], "redis.pcall"), args[0] == "evalsha" && strings.Contains(args[3], "probe{"):
		return "*1\r\n$7\r\nLua 5.3\r\n"
	}
	return "-ERR Error running script (call to f_53aa7d296ba9ded783301cc275161b6e344ad383): @user_script:145: " +
		"bad argument #2 to 'format' (number has no integer representation)\r\n"
}

// noFlags answers as Redis 6.2 does if a script begins with a line of flags.
func noFlags(args []string) string {
	switch args[0] {
	case "evalsha":
		return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	case "eval":
		return "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#' \r\n"
	}
	return "-ERR unknown command\r\n"
}

// TestLockKeys: with LockKeys a server that knows its flag decides. The error of a Redis, which
// refuses the flag, names LockKeys.
func TestLockKeys(t *testing.T) {
	open := func(addr string) *redisstore.Store {
		rdb := client(t, redis.NewUniversalClient(optionsOf(addr, nil)))
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience, LockKeys: true})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	upstash, plain := open(redistest.Lua54(t).Addr()), open(redistest.Server(t).Addr())
	for name, call := range everyCall(t) {
		if err := call(upstash); err != nil {
			t.Errorf("%s with a server that knows the flag: %v", name, err)
		}
		if err := call(plain); !weirtest.FailsWith(err, "Options.LockKeys") || !errors.Is(err, quota.ErrUnusable) {
			t.Errorf("%s with Redis: got error %v, want an ErrUnusable that names Options.LockKeys", name, err)
		}
	}
}

// everyCall has the methods of a store that run scripts.
func everyCall(t *testing.T) map[string]func(store *redisstore.Store) error {
	return map[string]func(store *redisstore.Store) error{
		"Probe": func(s *redisstore.Store) error { return s.Probe(t.Context(), everyLimit...) },
		"Take":  func(s *redisstore.Store) error { return s.Take(t.Context(), weirtest.Once(everyLimit[0])) },
		"TakeEach": func(s *redisstore.Store) error {
			return errors.Join(s.TakeEach(t.Context(), []*quota.Transaction{weirtest.Once(everyLimit[0]), weirtest.Once(everyLimit[6])})...)
		},
		"LoadOverrides": func(s *redisstore.Store) error { _, _, _, err := s.LoadOverrides(t.Context(), ""); return err },
		"SaveOverride":  func(s *redisstore.Store) error { _, err := s.SaveOverride(t.Context(), "a", "1", 0, 2); return err },
		"Heartbeat":     func(s *redisstore.Store) error { _, err := s.Heartbeat(t.Context(), "a", ""); return err },
		"CompareLimits": func(s *redisstore.Store) error {
			_, err := s.CompareLimits(t.Context(), "a", map[string]string{"b": "c"})
			return err
		},
	}
}

func noScripts(args []string) string {
	return fmt.Sprintf("-ERR unknown command '%s', with args beginning with: '%s'\r\n", args[0], strings.ReplaceAll(strings.Join(args[1:], "' '"), "\n", " "))
}

// TestOutages: errors that end by themselves are no ErrUnusable, neither of Probe nor of Take.
func TestOutages(t *testing.T) {
	for _, reply := range []string{
		"-OOM command not allowed when used memory > 'maxmemory'. script: 53aa7d, on @user_script:145.\r\n",
		"-ERR Error running script (call to f_53aa7d): @user_script:145: @user_script: 145: -OOM command not allowed when used memory > 'maxmemory'.\r\n",
		"-LOADING Redis is loading the dataset in memory\r\n",
		"-READONLY You can't write against a read only replica. script: 53aa7d, on @user_script:145.\r\n",
		"-CLUSTERDOWN The cluster is down\r\n",
		"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
		"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
		"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
		"-NOREPLICAS Not enough good replicas to write.\r\n",
		"-ERR max number of clients reached\r\n",
		"",
	} {
		addr := redistest.Fake(t, func(args []string) string {
			if args[0] == "time" {
				return "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"
			}
			return reply
		})
		store := storeOf(t, optionsOf(addr, nil))
		for range 3 {
			if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err == nil || errors.Is(err, quota.ErrUnusable) {
				t.Errorf("%q: Take: got error %v, want one that is no ErrUnusable", reply, err)
			}
			if err := store.Probe(t.Context(), everyLimit...); err == nil || errors.Is(err, quota.ErrUnusable) {
				t.Errorf("%q: Probe: got error %v, want one that is no ErrUnusable", reply, err)
			}
		}
	}
	if err := storeOf(t, optionsOf("127.0.0.1:1", nil)).Probe(t.Context()); err == nil || errors.Is(err, quota.ErrUnusable) {
		t.Errorf("refused: got error %v, want one that is no ErrUnusable", err)
	}
}

// TestClosesAtHello: if a proxy closes the connection at HELLO, as twemproxy does, Probe and Take say
// so. Before, both said only EOF.
func TestClosesAtHello(t *testing.T) {
	store := storeOf(t, optionsOf(redistest.Fake(t, func(args []string) string {
		if strings.EqualFold(args[0], "get") {
			return "$-1\r\n"
		}
		return "" // closes the connection
	}), nil))
	want := "redisstore: the server closes connections at HELLO, as the proxy twemproxy does; the client must connect to Redis itself: EOF"
	for _, err := range []error{store.Probe(t.Context(), everyLimit...), store.Take(t.Context(), weirtest.Once(everyLimit[0]))} {
		if !errors.Is(err, quota.ErrUnusable) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestRefusedConnection: if Redis refuses a connection with a reply and closes it at once, Probe and Take
// name the reason. Only the protected mode is an error of the setup.
func TestRefusedConnection(t *testing.T) {
	for reply, want := range map[string]string{
		"-ERR max number of clients reached\r\n":                           "redisstore: Redis answers: ERR max number of clients reached: EOF",
		"-DENIED Redis is running in protected mode because protected\r\n": "redisstore: Redis is in protected mode: EOF",
	} {
		store := storeOf(t, optionsOf(redistest.Fake(t, func(args []string) string {
			if strings.EqualFold(args[0], "get") {
				return reply
			}
			return "" // closes the connection
		}), nil))
		for _, err := range []error{store.Probe(t.Context(), everyLimit...), store.Take(t.Context(), weirtest.Once(everyLimit[0]))} {
			if err == nil || errors.Is(err, quota.ErrUnusable) != strings.Contains(want, "protected") || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// TestTryAgain: while Redis answers TRYAGAIN, Take asks it again until the Timeout has passed,
// with a pause of a millisecond each time.
func TestTryAgain(t *testing.T) {
	var asked atomic.Int64
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Fake(t, func(args []string) string {
		if args[0] != "evalsha" {
			return "-ERR unknown command\r\n"
		}
		asked.Add(1)
		return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
	})})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		asked.Store(0)
		if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err == nil || errors.Is(err, quota.ErrUnusable) {
			t.Errorf("got error %v, want one that is no ErrUnusable", err)
		}
		if n := asked.Load(); n > 21 {
			t.Errorf("Redis was asked %d times in 20 ms, want 21 times at most", n)
		}
	}
}

// TestDamageIsNoOutage: a key whose value is damaged or of another type has errors, but they
// are no ErrUnusable, and the store decides for other keys.
func TestDamageIsNoOutage(t *testing.T) {
	server := redistest.Server(t)
	store := storeOf(t, optionsOf(server.Addr(), nil))
	for _, l := range everyLimit {
		damaged, other := weirtest.Once(l), weirtest.Once(l)
		other.Charges[0].Key = "other"
		name := store.Key(&damaged.Charges[0])
		for _, write := range [][]string{{"SET", name, "hunter2"}, {"RPUSH", name, "hunter2"}, {"HSET", name, "h", "hunter2"}} {
			server.Do("DEL", name)
			if _, err := server.Do(write...); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				err := store.Take(t.Context(), damaged)
				if errors.Is(err, quota.ErrUnusable) || err == nil && l.Algorithm.Name() != "sliding-log" {
					t.Errorf("%v, %s: got error %v, want one that is no ErrUnusable", l, write[0], err)
				}
				if err := store.Take(t.Context(), other); err != nil {
					t.Errorf("%v, %s: other key: %v", l, write[0], err)
				}
			}
		}
	}
}

// TestDamageUnderPenalty: under a rule with bans, too, a damaged value is no ErrUnusable.
func TestDamageUnderPenalty(t *testing.T) {
	server := redistest.Server(t)
	store := storeOf(t, optionsOf(server.Addr(), nil))
	for _, l := range everyLimit[:len(everyLimit)-1] { // bans and requests in flight have no rule together
		var charges []quota.Charge
		var failure error
		spy := weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
			charges = append(charges, tx.Charges...)
			failure = store.Take(ctx, tx)
			return failure
		})
		h := weirtest.New(t, spy, weir.Options{OnError: weir.FailClosed, Rules: []weir.Rule{{
			Name: l.Algorithm.Name(), Key: weir.ByIP(), Limits: []quota.Limit{l}, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(1, time.Minute), Duration: time.Minute},
		}}}).Handler(http.NotFoundHandler())
		weirtest.Do(h, weirtest.Ask("/", "192.0.2.1"))
		for i := range charges {
			server.Do("SET", store.Key(&charges[i]), "hunter2")
		}
		weirtest.Do(h, weirtest.Ask("/", "192.0.2.1"))
		if failure == nil || errors.Is(failure, quota.ErrUnusable) {
			t.Errorf("%v: got error %v, want one that is no ErrUnusable", l, failure)
		}
	}
}

// The example shows an address at which there is no Redis. Probe then cannot know whether the
// store could work.
func ExampleStore_Probe() {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:1"))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	switch err := store.Probe(context.Background(), algorithms.GCRA(100, time.Minute), algorithms.SlidingLog(5, time.Minute)); {
	case err == nil:
		fmt.Println("Redis can decide")
	case errors.Is(err, quota.ErrUnusable):
		fmt.Println("somebody must change something:", err) // such as: user "weir" lacks +setrange
	default:
		fmt.Println("an outage")
	}
	// Output:
	// an outage
}
