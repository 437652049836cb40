package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// watchTimeout is long, because a busy machine is no reason to fail.
const watchTimeout = 10 * time.Second

// A watcher is a process that uses Hybrid.
type watcher struct {
	t      testing.TB
	hybrid *quota.HybridStore
	charge quota.Charge
}

func newWatcher(t testing.TB, o *redis.UniversalOptions) *watcher {
	t.Helper()
	rdb := redis.NewUniversalClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	s, err := redisstore.New(rdb, redisstore.Options{Timeout: watchTimeout})
	if err != nil {
		t.Fatal(err)
	}
	c := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(3, time.Hour), Cost: 1}
	return &watcher{t, quota.Hybrid(s, quota.HybridOptions{}), c}
}

// take reports whether a request is allowed.
func (w *watcher) take() bool {
	w.t.Helper()
	tx := quota.Transaction{Charges: []quota.Charge{w.charge}}
	if err := w.hybrid.Take(context.Background(), &tx); err != nil {
		w.t.Fatal(err)
	}
	return tx.Allowed()
}

// until takes until done returns true. It fails after a minute.
func (w *watcher) until(what string, done func(allowed bool) bool) {
	w.t.Helper()
	for begin := time.Now(); !done(w.take()); time.Sleep(100 * time.Microsecond) {
		if time.Since(begin) > time.Minute {
			w.t.Fatalf("not %s: %+v", what, w.hybrid.Stats())
		}
	}
}

// watched uses up the limit, and sends requests until the refusal is watched.
func (w *watcher) watched() {
	w.t.Helper()
	for w.take() {
	}
	before := w.hybrid.Stats().Watched
	w.until("watched", func(bool) bool { return w.hybrid.Stats().Watched > before })
}

// reported waits until the server has reported a change, for at most a minute.
func reported(t testing.TB, h *quota.HybridStore, before quota.CacheStats) {
	t.Helper()
	for begin := time.Now(); h.Stats().Changes == before.Changes; time.Sleep(100 * time.Microsecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("no report: %+v", h.Stats())
		}
	}
}

// TestTrack: under each algorithm, a refusal from memory ends when another process changes the key.
func TestTrack(t *testing.T) {
	server := redistest.Server(t)
	w := newWatcher(t, redisstore.ClientOptions(watchTimeout, server.Addr()))
	other := newWatcher(t, redisstore.ClientOptions(watchTimeout, server.Addr()))
	take := func(c quota.Charge, mode quota.Mode) error {
		return other.hybrid.Take(context.Background(), &quota.Transaction{Charges: []quota.Charge{c}, Mode: mode})
	}
	changes := map[string]func(c quota.Charge) error{
		"reset":  func(c quota.Charge) error { return take(c, quota.ModeForget) },
		"refund": func(c quota.Charge) error { c.Cost = -1; return take(c, quota.ModeSpend) },
		"DEL": func(c quota.Charge) error {
			_, err := server.Do("DEL", "weir:r:{."+c.Key+"}", "weir:r:log:{."+c.Key+"}")
			return err
		},
		"FLUSHALL": func(quota.Charge) error { _, err := server.Do("FLUSHALL"); return err },
	}
	for _, l := range []quota.Limit{
		algorithms.GCRA(3, time.Hour), algorithms.FixedWindow(3, time.Hour), algorithms.SlidingWindow(3, time.Hour),
		algorithms.SlidingLog(3, time.Hour), algorithms.LeakyBucket(3, 3, time.Hour), algorithms.TokenBucket(3, 3, time.Hour),
		algorithms.AnchoredWindow(3, time.Hour), algorithms.Calendar(3, algorithms.Month, nil),
	} {
		for name, change := range changes {
			t.Run(l.Algorithm.Name()+"/"+name, func(t *testing.T) {
				w.charge = quota.Charge{Rule: "r", Key: fmt.Sprintf("%s %s", l.Algorithm.Name(), name), Limit: l, Cost: 1}
				w.watched()
				before := w.hybrid.Stats()
				for range 1000 {
					if w.take() {
						t.Fatal("allowed, want refused")
					}
				}
				if n := w.hybrid.Stats().Misses - before.Misses; n != 0 {
					t.Errorf("%d calls for 1,000 refusals, want none", n)
				}
				if err := change(w.charge); err != nil {
					t.Fatal(err)
				}
				reported(t, w.hybrid, before)
				if !w.take() {
					t.Error("refused after the report, want allowed")
				}
			})
		}
	}
}

// A service is a process with two Limiters: one of them bans keys.
type service struct {
	hybrid         *quota.HybridStore
	store          quota.Store
	limiter, bans  *weir.Limiter
	handler, guard http.Handler
	client         http.RoundTripper
}

func newService(t testing.TB, addr string) *service {
	t.Helper()
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(watchTimeout, addr))
	t.Cleanup(func() { _ = rdb.Close() })
	store, err := stack.New(rdb, stack.Options{Replicas: 2, Redis: redisstore.Options{Timeout: watchTimeout}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := &service{store: credit.New(store, credit.Options{Rules: []string{"api"}})}
	for _, x := range store.Stores() {
		if h, ok := x.(*quota.HybridStore); ok {
			s.hybrid = h
		}
	}
	rule := weir.Rule{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}}
	s.limiter = weirtest.New(t, s.store, weir.Options{MaxWait: time.Second / 5, Rules: []weir.Rule{rule}})
	rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1_000_000, time.Minute), Duration: time.Hour}
	s.bans = weirtest.New(t, s.store, weir.Options{Rules: []weir.Rule{rule}}) // a strike changes the value of the key
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s.handler, s.guard = s.limiter.Handler(served), s.bans.Handler(served)
	upstream := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"3600"}}, Body: http.NoBody, Request: r}, nil
	})
	if s.client, err = s.limiter.Transport(weir.TransportOptions{Base: upstream, MaxPause: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return s
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A change is what an operator does in another process to a user whom this process refuses from memory.
type change struct {
	name       string
	allowed    func(user string) bool
	begin, end func(user string)
}

// changes returns what an operator can do at the process other, as the process here sees it.
func changes(t testing.TB, here, other *service) []change {
	request := func(user string) *http.Request {
		r := httptest.NewRequest("GET", "http://example.com/", nil)
		r.Header.Set("User", user)
		return r
	}
	by := func(h http.Handler) func(user string) bool {
		return func(user string) bool { return weirtest.Do(h, request(user)).StatusCode == 200 }
	}
	sent := func(user string) bool {
		res, err := here.client.RoundTrip(request(user))
		return err == nil && res.StatusCode == 429 // of the server
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	take := func(user string, mode quota.Mode, cost int64) {
		c := quota.Charge{Rule: "api", Key: user, Limit: algorithms.GCRA(2, time.Hour), Cost: cost}
		must(other.store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{c}, Mode: mode}))
	}
	none := func(string) {}
	return []change{
		{"unban", by(here.guard), func(user string) { must(other.bans.Ban(t.Context(), "api", user, time.Hour)) },
			func(user string) {
				_, err := other.bans.Unban(t.Context(), "api", user)
				must(err)
			}},
		{"unpause", sent, none, func(user string) { must(other.limiter.Unpause(t.Context(), "api", user)) }},
		{"grant", by(here.handler), none, func(user string) { must(credit.Grant(t.Context(), other.store, "api", user, 1, time.Hour)) }},
		{"refund", by(here.handler), none, func(user string) { take(user, quota.ModeSpend, -1) }},
		{"reset", by(here.handler), none, func(user string) { take(user, quota.ModeForget, 1) }},
	}
}

// watched sends requests until the process here refuses the user and watches the refusal.
func (c *change) watched(t testing.TB, here *service, user string) {
	t.Helper()
	until := func(what string, done func(allowed bool) bool) {
		t.Helper()
		for begin := time.Now(); !done(c.allowed(user)); time.Sleep(100 * time.Microsecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: not %s after a minute: %+v", c.name, what, here.hybrid.Stats())
			}
		}
	}
	until("refused", func(allowed bool) bool { return !allowed })
	before := here.hybrid.Stats().Watched
	until("watched", func(bool) bool { return here.hybrid.Stats().Watched > before })
}

// TestTrackOperators: what an operator does in another process counts as soon as the server has
// reported it: a ban that is lifted, a pause that is ended, and granted units.
func TestTrackOperators(t *testing.T) {
	server := redistest.Server(t)
	here, other := newService(t, server.Addr()), newService(t, server.Addr())
	for _, c := range changes(t, here, other) {
		t.Run(c.name, func(t *testing.T) {
			c.begin(c.name)
			c.watched(t, here, c.name)
			before := here.hybrid.Stats()
			c.end(c.name)
			reported(t, here.hybrid, before)
			if !c.allowed(c.name) {
				t.Error("refused after the report, want allowed")
			}
		})
	}
}

// A delayed connection delays what is read and written by up to 1.5 ms, one time in three.
type delayed struct{ net.Conn }

func delay() {
	if rand.IntN(3) == 0 {
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
	}
}

func (c delayed) Read(b []byte) (int, error)  { n, err := c.Conn.Read(b); delay(); return n, err }
func (c delayed) Write(b []byte) (int, error) { delay(); return c.Conn.Write(b) }

// TestTrackStress: another process resets keys at about the time at which their refusals begin to be
// watched, and all connections are slow at random. No refusal from memory outlasts its reset.
func TestTrackStress(t *testing.T) {
	server := redistest.Server(t)
	o := redisstore.ClientOptions(watchTimeout, server.Addr()).Simple()
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return delayed{c}, err
	}
	open := func() quota.Store {
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		s, err := redisstore.New(rdb, redisstore.Options{Timeout: watchTimeout})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	other := open()
	hybrid := quota.Hybrid(open(), quota.HybridOptions{})
	take := func(store quota.Store, c quota.Charge, mode quota.Mode) bool {
		tx := quota.Transaction{Charges: []quota.Charge{c}, Mode: mode}
		if err := store.Take(context.Background(), &tx); err != nil {
			t.Error(err)
		}
		return tx.Allowed()
	}
	const workers, batch = 32, 50
	var stale, cached atomic.Int64
	n := rounds.N(1000, 100_000) / (workers * batch)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; i <= n && stale.Load() < 5; i++ {
				resets := map[quota.Charge]time.Time{} // when each key is to be reset, or was
				for k := range batch {
					c := quota.Charge{Rule: "r", Key: fmt.Sprint(w, i, k), Limit: algorithms.GCRA(1, time.Hour), Cost: 1}
					take(hybrid, c, quota.ModeForce)
					resets[c] = time.Now().Add(time.Duration(50+rand.IntN(100)) * time.Millisecond)
				}
				done := map[quota.Charge]bool{}
				for ; len(resets) > 0; time.Sleep(time.Millisecond) {
					for c, at := range resets {
						before := hybrid.Stats().Misses
						switch allowed := take(hybrid, c, quota.ModeSpend); {
						case allowed && done[c]:
							delete(resets, c)
						case !done[c] && time.Now().After(at):
							if hybrid.Stats().Misses == before {
								cached.Add(1)
							}
							take(other, c, quota.ModeForget)
							done[c], resets[c] = true, time.Now()
						case done[c] && time.Since(at) > time.Minute:
							stale.Add(1)
							delete(resets, c)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d keys were refused from memory when they were reset; %+v", cached.Load(), workers*batch*(n+1), hybrid.Stats())
	if stale.Load() > 0 {
		t.Errorf("%d refusals outlasted a reset by a minute", stale.Load())
	}
}
