package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

const (
	budget = 50 * time.Millisecond
	slack  = 10 * time.Millisecond
)

// A fault is a failure of Redis, or of the network between the client and Redis. The function
// begin causes the fault, and end repairs it.
type fault struct {
	name       string
	begin, end func(t *testing.T, server *redistest.Proc, proxy *redistest.FaultProxy)
	fails      bool // every Take returns an error while the fault lasts
}

var faults = []fault{
	{"refused",
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Refuse(true) },
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Refuse(false) }, true},
	{"black hole",
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Swallow.Store(true) },
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Swallow.Store(false) }, true},
	{"300 ms late",
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) {
			p.Latency.Store(int64(300 * time.Millisecond))
		},
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Latency.Store(0) }, true},
	{"reset instead of an answer",
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Reset.Store(true) },
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Reset.Store(false) }, true},
	{"reset amid an answer",
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) {
			p.Reset.Store(true)
			p.Limit.Store(10)
		},
		func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) {
			p.Reset.Store(false)
			p.Limit.Store(0)
		}, true},
	{"paused",
		func(_ *testing.T, s *redistest.Proc, _ *redistest.FaultProxy) { s.Pause() },
		func(_ *testing.T, s *redistest.Proc, _ *redistest.FaultProxy) { s.Resume() }, true},
	{"restarted",
		func(t *testing.T, s *redistest.Proc, _ *redistest.FaultProxy) { s.Restart(t) },
		func(*testing.T, *redistest.Proc, *redistest.FaultProxy) {}, false},
}

// TestFaults: during each fault Take returns within the Timeout. Its error says what happened,
// and a charge is spent at most once. After the fault no goroutine stays behind, and Take soon
// works again.
func TestFaults(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, f := range faults {
		if !t.Run(f.name, func(t *testing.T) {
			for name, options := range map[string]func(addr string) *redis.UniversalOptions{
				"tuned":    func(addr string) *redis.UniversalOptions { return redisstore.ClientOptions(0, addr) },
				"defaults": func(addr string) *redis.UniversalOptions { return &redis.UniversalOptions{Addrs: []string{addr}} },
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					testFault(t, f, options)
				})
			}
		}) {
			return // each fault might fail only after a minute
		}
		eventually(t, f.name+": all goroutines end", func() error {
			if n := runtime.NumGoroutine(); n > before {
				return fmt.Errorf("%d goroutines more", n-before)
			}
			return nil
		})
	}
}

func testFault(t *testing.T, f fault, options func(addr string) *redis.UniversalOptions) {
	server := redistest.Server(t)
	proxy := redistest.Proxy(t, server.Addr())
	rdb := client(t, redis.NewUniversalClient(options(proxy.Addr())))
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &faultyClient{store: store, failed: map[string]int{},
		tx: quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.AnchoredWindow(1_000_000, time.Hour), Cost: 1}}}}
	c.recover(t) // on a busy machine the first attempts may fail

	f.begin(t, server, proxy)
	if f.name == "restarted" {
		c.takes = 0
	}
	best := c.bestRound(t, f.fails)
	if best > budget+slack {
		t.Errorf("got an answer after %v, want %v at most", best, budget+slack)
	}
	f.end(t, server, proxy)
	recovery := c.recover(t)
	t.Logf("answers within %v, errors %v, recovered after %v", best.Round(10*time.Microsecond), c.failed, recovery.Round(10*time.Microsecond))

	// A charge that was sent and not answered may still be decided, once.
	eventually(t, "goroutines end", func() error {
		if stacks := processing(); stacks > 0 {
			return fmt.Errorf("%d goroutines still send", stacks)
		}
		return nil
	})
	spent := int64(1_000_000)
	if err := server1(server, func(rdb *redis.Client) error {
		s := newStore(t, rdb)
		look := take(t, s, quota.Charge{Rule: "r", Key: "k", Limit: c.tx.Charges[0].Limit})
		spent -= look.Decisions[0].Remaining
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if spent > int64(c.takes) {
		t.Errorf("got %d units spent by %d times Take, want each once at most", spent, c.takes)
	}
	if answered := c.takes - c.failures; f.name != "restarted" && spent < int64(answered) {
		t.Errorf("got %d units spent, want the %d answered at least", spent, answered)
	}
	if ran := ran(t, server); ran > c.takes+3 { // one for the look, the others for EVAL after NOSCRIPT
		t.Errorf("got %d scripts run for %d times Take", ran, c.takes)
	}
}

// A faultyClient charges one unit again and again, while a fault begins and ends.
type faultyClient struct {
	store           *redisstore.Store
	tx              quota.Transaction
	takes, failures int
	failed          map[string]int // the errors of bestRound, by kind
}

func (c *faultyClient) take() (time.Duration, error) {
	c.takes++
	begin := time.Now()
	err := c.store.Take(context.Background(), &c.tx)
	if err != nil {
		c.failures++
	}
	return time.Since(begin), err
}

// recover repeats the charge until there is no error, for a minute at most, and returns
// how long that took.
func (c *faultyClient) recover(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		_, err := c.take()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("still %v after %v", err, time.Since(begin))
		}
		time.Sleep(time.Millisecond)
	}
}

// bestRound makes rounds of charges until all charges of a round are in time, for a minute at most, because
// a machine may be busy with something else. It returns the longest time of a charge in the best round. If
// fails is set, every charge must return an error.
func (c *faultyClient) bestRound(t *testing.T, fails bool) time.Duration {
	t.Helper()
	best := time.Hour
	for begin := time.Now(); best > budget+slack && time.Since(begin) < time.Minute; {
		var longest time.Duration
		for range 5 {
			d, err := c.take()
			longest = max(longest, d)
			if err == nil && fails {
				t.Fatalf("got no error, want one")
			}
			if err != nil {
				c.failed[kind(t, err)]++
			}
		}
		best = min(best, longest)
	}
	return best
}

// kind returns what an error says: that there was no answer in time, or what the network
// did. Any other error fails the test.
func kind(t *testing.T, err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, redisstore.ErrTimeout):
		return "ErrTimeout"
	case errors.Is(err, quota.ErrBusy): // the store refuses a call that cannot be answered in time
		return "ErrBusy"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.As(err, &op),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the latter if an answer was cut
		return "network"
	}
	t.Errorf("got error %T %q, want ErrTimeout or an error of the network", err, err)
	return "other"
}

// processing returns how many goroutines of Stores are still running.
func processing() int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return len(regexp.MustCompile(`created by github.com/seed83679106/weir/redisstore\.`).FindAllIndex(buf, -1))
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: still %v after %v", what, err, time.Since(begin))
		}
	}
}

// server1 calls f with a client that is connected to the server itself, not to the faulty
// proxy.
func server1(server *redistest.Proc, f func(*redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	return f(rdb)
}

// ran returns how many scripts a server has run.
func ran(t *testing.T, server *redistest.Proc) int {
	info, err := server.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	stats := redistest.CommandStats(info.(string))
	return stats["eval"].Calls + stats["evalsha"].Calls
}

// TestForgotten: if the network has forgotten all idle connections, a few calls find that out, not one
// for each connection. A client of Sentinels or of a cluster reaches the servers through a Dialer.
func TestForgotten(t *testing.T) {
	via := func(o *redis.UniversalOptions, proxies map[string]*redistest.FaultProxy) *redis.UniversalOptions {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if p := proxies[addr]; p != nil {
				addr = p.Addr()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		return o
	}
	for name, start := range map[string]func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy){
		"tuned": func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy) {
			proxy := redistest.Proxy(t, redistest.Server(t).Addr())
			return redisstore.ClientOptions(0, proxy.Addr()), proxy
		},
		"defaults": func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy) {
			proxy := redistest.Proxy(t, redistest.Server(t).Addr())
			return &redis.UniversalOptions{Addrs: []string{proxy.Addr()}, PoolSize: 32}, proxy
		},
		"TLS": func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy) {
			cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
			redistest.Certificate(t, cert, key)
			own, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			proxy := redistest.Proxy(t, redistest.TLS(t, cert, key))
			o := redisstore.ClientOptions(0, proxy.Addr())
			o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true}
			return o, proxy
		},
		"Sentinel": func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy) {
			s := redistest.Sentinel(t)
			o, proxy := redisstore.ClientOptions(0, s.Addrs()...), redistest.Proxy(t, s.Master.Addr())
			o.MasterName = redistest.MasterName
			return via(o, map[string]*redistest.FaultProxy{s.Master.Addr(): proxy}), proxy
		},
		"Cluster": func(t *testing.T) (*redis.UniversalOptions, *redistest.FaultProxy) {
			c := redistest.Cluster(t, 3, 0)
			master := c.MasterOf("{.k}").Addr()
			proxy := redistest.Proxy(t, master)
			return via(redisstore.ClientOptions(0, c.Addrs()...), map[string]*redistest.FaultProxy{master: proxy}), proxy
		},
	} {
		t.Run(name, func(t *testing.T) {
			options, proxy := start(t)
			rdb := client(t, redis.NewUniversalClient(options))
			store, err := redisstore.New(rdb, redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			proxy.Latency.Store(int64(20 * time.Millisecond))
			eventually(t, "many connections", func() error { // on a busy machine, some attempts fail
				var wg sync.WaitGroup
				for range 32 { // each has its own connection
					wg.Go(func() { _ = rdb.Get(t.Context(), "{.k}").Err() })
				}
				wg.Wait()
				if n := rdb.PoolStats().IdleConns; n < 24 {
					return fmt.Errorf("%d are idle", n)
				}
				return nil
			})
			proxy.Latency.Store(0)
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
			eventually(t, "connected", func() error { return store.Take(t.Context(), &tx) })
			open := proxy.Forget()
			if open < 8 {
				t.Errorf("got %d connections, want many", open)
			}
			begin := time.Now()
			eventually(t, "a new connection", func() error { return store.Take(t.Context(), &tx) })
			t.Logf("%d of %d connections used in vain, decided after %v", proxy.Lost.Load(), open, time.Since(begin))
			if lost := proxy.Lost.Load(); lost > 16 {
				t.Errorf("got %d of %d connections used in vain, want few", lost, open)
			}
		})
	}
}

// TestBudgetShared: a call whose request has no time left fails at once, and counts as no outage. Nor
// does one that has had less than half of the time.
func TestBudgetShared(t *testing.T) {
	server := redistest.Server(t)
	proxy := redistest.Proxy(t, server.Addr())
	store, err := redisstore.New(client(t, redis.NewUniversalClient(redisstore.ClientOptions(0, proxy.Addr()))), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
	eventually(t, "connected", func() error { return store.Take(t.Context(), &tx) })
	proxy.Swallow.Store(true)
	ctx := quota.WithBudget(t.Context())
	for quota.BudgetOf(ctx).Left(budget) > 0 {
		if err := store.Take(ctx, &tx); err == nil {
			t.Fatal("got no error, want one")
		}
	}
	err = store.Take(ctx, &tx)
	if !errors.Is(err, redisstore.ErrTimeout) || !errors.Is(err, quota.ErrUsedUp) || !errors.Is(err, quota.ErrBusy) {
		t.Errorf("got %v, want an error that says that the time is used up", err)
	}
	for used, want := range map[time.Duration]bool{0: false, budget / 4: false, budget * 3 / 4: true} {
		ctx := quota.WithBudget(t.Context())
		quota.BudgetOf(ctx).Spend(used)
		err := store.Take(ctx, &tx)
		if !errors.Is(err, redisstore.ErrTimeout) || errors.Is(err, quota.ErrUsedUp) != want {
			t.Errorf("after %v: got %v, want one that blames earlier calls: %v", used, err, want)
		}
	}
}

// TestScriptFlush: if a server has forgotten a script, the store sends it again, and Take
// succeeds.
func TestScriptFlush(t *testing.T) {
	server := redistest.Server(t)
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, server.Addr()))))
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.AnchoredWindow(10, time.Hour), Cost: 1}
	for want := int64(9); want >= 0; want-- {
		if got := take(t, store, charge).Decisions[0].Remaining; got != want {
			t.Errorf("got %d remaining, want %d", got, want)
		}
		if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHangUp: if the caller cancels or its deadline passes while Redis does not answer,
// Take returns the caller's error. If only the store's Timeout passes, it returns
// ErrTimeout.
func TestHangUp(t *testing.T) {
	server := redistest.Server(t)
	for name, options := range map[string]func(addr string) *redis.UniversalOptions{
		"tuned":    func(addr string) *redis.UniversalOptions { return redisstore.ClientOptions(500*time.Millisecond, addr) },
		"defaults": func(addr string) *redis.UniversalOptions { return &redis.UniversalOptions{Addrs: []string{addr}} },
	} {
		for _, c := range []struct {
			name      string
			timeout   time.Duration // of the store; a caller that gives up does so long before this
			want, not error
			with      func(context.Context) (context.Context, context.CancelFunc)
		}{
			{"canceled", 500 * time.Millisecond, context.Canceled, redisstore.ErrTimeout, func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(10*time.Millisecond, cancel)
				return ctx, cancel
			}},
			{"past the caller's deadline", 500 * time.Millisecond, context.DeadlineExceeded, redisstore.ErrTimeout, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 10*time.Millisecond)
			}},
			{"past the budget", 0, redisstore.ErrTimeout, context.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return ctx, func() {}
			}},
		} {
			t.Run(name+", "+c.name, func(t *testing.T) {
				proxy := redistest.Proxy(t, server.Addr())
				store, err := redisstore.New(client(t, redis.NewUniversalClient(options(proxy.Addr()))), redisstore.Options{Timeout: c.timeout})
				if err != nil {
					t.Fatal(err)
				}
				tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
				for range 3 {
					eventually(t, "connected", func() error { return store.Take(t.Context(), &tx) })
					proxy.Swallow.Store(true)
					ctx, cancel := c.with(t.Context())
					err := store.Take(ctx, &tx)
					busy := errors.Is(err, quota.ErrBusy) // if the first calls were slow, the store knows that 10 ms are too few
					if !busy && (!errors.Is(err, c.want) || errors.Is(err, c.not)) {
						t.Errorf("got error %v, want %v", err, c.want)
					}
					cancel()
					proxy.Swallow.Store(false)
				}
			})
		}
	}
}

// TestDown: a store can be made while Redis is down, and works once Redis is up.
func TestDown(t *testing.T) {
	server := redistest.Server(t)
	server.Kill()
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(0, server.Addr()))))
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
	if err := store.Take(t.Context(), &tx); kind(t, err) != "network" {
		t.Errorf("got error %v, want an error of the network", err)
	}
	server.Restart(t)
	eventually(t, "Redis is back", func() error { return store.Take(t.Context(), &tx) })
}

const (
	clients    = 8
	goroutines = 16
)

// together runs f in several goroutines for each of several clients. Each client has its own
// connections.
func together(t *testing.T, addr string, f func(store quota.Store)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range clients {
		store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, addr))))
		for range goroutines {
			wg.Go(func() {
				<-begin
				f(store)
			})
		}
	}
	close(begin)
	wg.Wait()
}

// TestOneKey: if goroutines of several clients charge one key at once, exactly the quota is
// admitted.
func TestOneKey(t *testing.T) {
	const units, each = 300, 5
	addr := redistest.Server(t).Addr()
	for _, limits := range [][]quota.Limit{
		{algorithms.GCRA(units, 240*time.Hour)},
		{algorithms.AnchoredWindow(units, time.Hour)},
		{algorithms.SlidingLog(units, time.Hour)},
		{algorithms.GCRA(2*units, 240*time.Hour), algorithms.SlidingLog(units, time.Hour), algorithms.SlidingLog(2*units, 2*time.Hour).Named("2h")},
	} {
		var charges []quota.Charge
		for _, l := range limits {
			charges = append(charges, quota.Charge{Rule: fmt.Sprint(len(limits)), Key: limits[0].String(), Limit: l, Cost: 1})
		}
		var admitted atomic.Int64
		together(t, addr, func(store quota.Store) {
			tx := quota.Transaction{Charges: charges}
			for range each {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Error(err)
				} else if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != units {
			t.Errorf("%v: got %d admitted of %d, want %d", limits, got, clients*goroutines*each, units)
		}
	}
}

// TestCrossingKeys: if concurrent transactions charge overlapping sets of keys, in any
// order, each key has spent exactly what was admitted.
func TestCrossingKeys(t *testing.T) {
	const units, each, keys = 100, 5, 6
	addr := redistest.Server(t).Addr()
	charges := func(cost int64, key int) []quota.Charge {
		return []quota.Charge{
			{Rule: "r", Key: fmt.Sprint(key), Limit: algorithms.GCRA(units, 2400*time.Hour), Cost: cost},
			{Rule: "r", Key: fmt.Sprint(key), Limit: algorithms.SlidingLog(units, time.Hour), Cost: cost},
		}
	}
	spent := make([]atomic.Int64, keys)
	together(t, addr, func(store quota.Store) {
		for range each {
			used := rand.Perm(keys)[:1+rand.IntN(keys)]
			spendOn(t, store, spent, used, func(key int) []quota.Charge { return charges(1, key) })
		}
	})
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: addr})))
	full := 0
	for key := range keys {
		for _, d := range take(t, store, charges(0, key)...).Decisions {
			if got, want := units-d.Remaining, spent[key].Load(); got != want {
				t.Errorf("key %d: got %d spent, want the %d admitted", key, got, want)
			}
		}
		if spent[key].Load() == units {
			full++
		}
	}
	if full == 0 {
		t.Errorf("got no key used up, want one at least")
	}
}

// spendOn takes the charges of some keys in one transaction. If the transaction is admitted,
// spendOn adds 1 to the count of each of these keys.
func spendOn(t *testing.T, store quota.Store, spent []atomic.Int64, used []int, charges func(key int) []quota.Charge) {
	var tx quota.Transaction
	for _, key := range used {
		tx.Charges = append(tx.Charges, charges(key)...)
	}
	if err := store.Take(context.Background(), &tx); err != nil {
		t.Error(err)
		return
	}
	if !tx.Allowed() {
		return
	}
	for _, key := range used {
		spent[key].Add(1)
	}
}

// TestCrowd: if more connections have requests than the processor can serve, what is not decided
// is refused, and does not pass without a decision. On a busy machine Redis itself may stop for
// longer than the Timeout again and again, and then requests pass as in an outage: up to a sixth of
// them beside twelve busy processes. If the lateness of this process counts as one, nearly all pass.
// How many are decided depends on the processor: _bench/load
// measures it, and TestSpike and TestManyProcesses prove it by a clock of their own.
func TestCrowd(t *testing.T) {
	rounds.Slow(t, "thousands of goroutines")
	server := redistest.Server(t)
	store, err := redisstore.New(client(t, redis.NewUniversalClient(redisstore.ClientOptions(0, server.Addr()))), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limit := algorithms.GCRA(1_000_000, time.Second)
	eventually(t, "connected", func() error {
		return store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{{Rule: "crowd", Key: "k", Limit: limit, Cost: 1}}})
	})
	const connections = 2000
	var decided, refused, passed atomic.Int64
	path := func(r *http.Request) (string, bool) { return r.URL.Path, true }
	front := httptest.NewServer(weir.Middleware(store, "crowd", path, limit)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if weir.FromContext(r.Context()) == nil {
			passed.Add(1)
		} else {
			decided.Add(1)
		}
	})))
	defer front.Close()
	browser := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer browser.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for range 10 {
				res, err := browser.Get(fmt.Sprintf("%s/%d", front.URL, i%100))
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				if res.StatusCode == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d decided, %d refused, %d passed", decided.Load(), refused.Load(), passed.Load())
	if decided.Load() < connections/4 || passed.Load() > 10*connections/2 {
		t.Errorf("got %d decided, %d refused, %d passed; want some decided and hardly any passed", decided.Load(), refused.Load(), passed.Load())
	}
}
