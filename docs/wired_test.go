package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// A wired is a program as a user would write it from a page, with one mistake. It returns the
// error of its start, or what it serves.
type wired func(t *testing.T, log *slog.Logger) (http.Handler, error)

// limited returns a wired of one rule and limiter over memory.
func limited(rule weir.Rule) wired {
	return func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Logger: log, Rules: []weir.Rule{rule}})
		if err != nil {
			return nil, err
		}
		return l.Handler(http.NotFoundHandler()), nil
	}
}

// shared returns a wired with the stack of README's quick start over the Redis of o.
func shared(o func(t *testing.T) *redis.UniversalOptions) wired {
	return func(t *testing.T, log *slog.Logger) (http.Handler, error) {
		rdb := redis.NewUniversalClient(o(t))
		t.Cleanup(func() { rdb.Close() })
		store, err := stack.New(rdb, stack.Options{Replicas: 4, Logger: log})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { store.Close() })
		l, err := weir.New(store, weir.Options{Logger: log, Rules: []weir.Rule{perMinute("api")}})
		if err != nil {
			return nil, err
		}
		return l.Handler(http.NotFoundHandler()), nil
	}
}

func at(addr string) *redis.UniversalOptions { return redisstore.ClientOptions(time.Second, addr) }

func perMinute(name string) weir.Rule {
	return weir.Rule{Name: name, Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}}
}

// outgoing returns a wired whose handler calls a partner through Transport, over a store that
// returns err.
func outgoing(err error, o weir.TransportOptions) wired {
	return func(t *testing.T, log *slog.Logger) (http.Handler, error) {
		partner := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(partner.Close)
		store := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return err })
		l, err := weir.New(store, weir.Options{Logger: log, Rules: []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(50, time.Second)}}}})
		if err != nil {
			return nil, err
		}
		rt, err := l.Transport(o)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if res, err := (&http.Client{Transport: rt}).Get(partner.URL); err == nil {
				res.Body.Close()
			} else {
				w.WriteHeader(http.StatusBadGateway)
			}
		}), err
	}
}

// TestWiredWrong: deployments that are wired as the pages say, but with a mistake, name the
// mistake: as an error at start, or in the log within 250 requests. The mistakes in the flags,
// the environment and the file of weir serve are in cmd/weir (TestUnknownVariables,
// TestReadiness, TestCheck).
func TestWiredWrong(t *testing.T) {
	tiers := map[string][]weir.Limit{"free": {algorithms.GCRA(100, time.Minute)}}
	tier := func(r *http.Request) weir.Policy { return weir.Limited(tiers[r.Header.Get("Tier")]...) }
	login := func(change func(*weir.Rule)) wired {
		r := weir.Rule{Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, time.Minute)}, Settle: weir.ChargeOnly(http.StatusUnauthorized)}
		change(&r)
		return limited(r)
	}
	for _, c := range []struct {
		deployment, mistake string
		wired               wired
		told                string // part of the error or the log
	}{
		{"quick start", "the limiter is in front of authentication", limited(weir.Rule{Name: "api", Key: weir.ByContext("account"), Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}),
			`key missing in each of the first 5 requests" rule=api effect="none of them was limited" likely="authentication runs after the limiter`},
		{"quick start", "the path value is read outside of the mux", limited(weir.Rule{Name: "item", Key: weir.ByPathValue("id"), Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}),
			`the path value is read outside of the mux`},
		{"quick start", "a key function that returns the empty key", limited(weir.Rule{Name: "api", Key: func(r *http.Request) (string, bool) { return r.Header.Get("X-User"), true }, Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}),
			`key empty" rule=api effect="all requests with an empty key share one quota"`},
		{"quick start", "a key function that returns the port of the peer, too", limited(weir.Rule{Name: "api", Key: func(r *http.Request) (string, bool) { return r.RemoteAddr, true }, Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}),
			`port of the peer in a key" rule=api effect="a client has a fresh quota with each connection"`},
		{"inflight", "a timeout handler inside the limiter", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			r := perMinute("exports")
			r.Limits = []weir.Limit{algorithms.InFlight(10, time.Minute)}
			l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Logger: log, Rules: []weir.Rule{r}})
			if err != nil {
				return nil, err
			}
			return l.Handler(http.TimeoutHandler(http.NotFoundHandler(), time.Second, "")), nil
		}, `TimeoutHandler inside a concurrency limit" rule=exports`},
		{"quick start", "a limiter and a store for each request", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				l, _ := weir.New(memstore.New(memstore.Options{}), weir.Options{Logger: log, Rules: []weir.Rule{perMinute("each")}})
				l.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
			}), nil
		}, `ten limiters of one rule made within a minute`},
		{"quick start", "two rules of one name", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			store, other := memstore.New(memstore.Options{}), perMinute("same")
			other.Limits = []weir.Limit{algorithms.GCRA(7, time.Minute)}
			h := http.NotFoundHandler()
			for _, r := range []weir.Rule{perMinute("same"), other} {
				l, err := weir.New(store, weir.Options{Logger: log, Rules: []weir.Rule{r}})
				if err != nil {
					return nil, err
				}
				h = l.Handler(h) // a Limiter that nothing refers to is not compared
			}
			return h, nil
		}, `the limits differ, and share their counts`},
		{"quick start", "a quota for all around a quota for each client", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			store := memstore.New(memstore.Options{})
			outer, err := weir.New(store, weir.Options{Logger: log, Rules: []weir.Rule{{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}}}})
			inner, err2 := weir.New(store, weir.Options{Logger: log, Rules: []weir.Rule{perMinute("inner")}})
			return outer.Handler(inner.Handler(http.NotFoundHandler())), errors.Join(err, err2)
		}, `one client can use up other_rule`},

		{"quick start", "every client is trusted as a proxy", limitedSafely(func() weir.Rule {
			r := perMinute("api")
			r.Key = weir.ByIP(netip.MustParsePrefix("0.0.0.0/0"))
			return r
		}), `0.0.0.0/0 trusts every client or many of them`},
		{"quick start", "a middleware in front believes every client's address", func(t *testing.T, log *slog.Logger) (http.Handler, error) {
			old := slog.Default() // ByIP logs there
			slog.SetDefault(log)
			t.Cleanup(func() { slog.SetDefault(old) })
			h, err := limited(perMinute("api"))(t, log)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.RemoteAddr = "198.51.100.7" // as chi's RealIP does
				h.ServeHTTP(w, r)
			}), err
		}, `address of the peer replaced`},
		{"quick start", "a period without a unit", limited(weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, 60_000)}}),
			`period of a limit below a millisecond`},

		{"Redis", "the number of replicas is negative", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			_, err := stack.New(redis.NewUniversalClient(at("localhost:1")), stack.Options{Replicas: -1, Logger: log})
			return http.NotFoundHandler(), err
		}, `Replicas is -1`},
		{"Redis", "a wrong password", shared(func(t *testing.T) *redis.UniversalOptions {
			server := redistest.Server(t)
			server.Do("CONFIG", "SET", "requirepass", "secret")
			o := at(server.Addr())
			o.Password = "sercet"
			return o
		}), `WRONGPASS`},
		{"Redis", "a right is missing", shared(func(t *testing.T) *redis.UniversalOptions {
			server := redistest.Server(t)
			for _, rules := range []string{"+@all", "-evalsha"} {
				server.Do("ACL", "SETUSER", "weir", "on", ">p", "~*", rules)
			}
			o := at(server.Addr())
			o.Username, o.Password = "weir", "p"
			return o
		}), `user \"weir\" lacks +evalsha`},
		{"Redis", "a server without scripts", shared(func(t *testing.T) *redis.UniversalOptions {
			return at(redistest.Fake(t, func(args []string) string {
				if strings.EqualFold(args[0], "TIME") {
					return "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"
				}
				return "-ERR unknown command '" + args[0] + "', with args beginning with: \r\n"
			}))
		}), `setup of Redis unusable until it is changed`},
		{"Redis", "nobody listens at the address", shared(func(*testing.T) *redis.UniversalOptions { return at("127.0.0.1:1") }),
			`connection refused`},

		{"tiers", "a misspelt tier", limited(weir.Rule{Name: "api", Key: weir.ByIP(), Policy: tier}),
			`the policy is zero, and the rule has no Limits`},
		{"tiers", "a limit named after the request", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			r, n := perMinute("api"), new(atomic.Int64)
			r.Policy = func(*http.Request) weir.Policy {
				return weir.Limited(algorithms.GCRA(5, time.Minute).Named(fmt.Sprint("request ", n.Add(1))))
			}
			return limited(r)(nil, log)
		}, `another limit in each of the first 200 requests" rule=api`},
		{"tiers", "a tier without a quota", limited(weir.Rule{Name: "api", Key: weir.ByIP(), Policy: func(*http.Request) weir.Policy { return weir.Limited(algorithms.GCRA(0, time.Minute)) }}),
			`quota is 0; want at least 1`},
		{"tiers", "an override that replaces nothing", limited(weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute), algorithms.FixedWindow(1000, time.Hour)},
			ForKey: func(string) weir.Policy { return weir.Limited(weir.Limit{Name: "dayly", Quota: 9}) }}),
			`policy of ForKey ignored" rule=api`},

		{"login", "a cost that is not known yet", login(func(r *weir.Rule) { r.Cost = func(*http.Request) int64 { return 0 } }),
			`cost 0 in each of the first 200 requests" rule=login effect="none of them was limited"`},
		{"quick start", "a cost in another unit than the limits", func(t *testing.T, log *slog.Logger) (http.Handler, error) {
			r := perMinute("upload")
			r.Cost = func(*http.Request) int64 { return 1 << 20 }
			return limited(r)(t, log)
		}, `cost above the capacity of a limit in each of the first 200 requests" rule=upload`},
		{"Redis", "both stores of a Fallback are the same", func(*testing.T, *slog.Logger) (h http.Handler, err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			store := memstore.New(memstore.Options{})
			quota.Fallback(store, store, quota.FallbackOptions{})
			return nil, nil
		}, `secondary is primary; want another store`},
		{"Redis", "memory is the primary of a Fallback", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			memory, redis := memstore.New(memstore.Options{}), weirtest.StoreFunc(memstore.New(memstore.Options{}).Take)
			quota.Fallback(memory, redis, quota.FallbackOptions{Logger: log})
			return http.NotFoundHandler(), nil
		}, `Fallback has a primary in memory`},
		{"Redis", "Breaker is around Fallback", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			memory, redis := memstore.New(memstore.Options{}), weirtest.StoreFunc(memstore.New(memstore.Options{}).Take)
			quota.Breaker(quota.Fallback(redis, memory, quota.FallbackOptions{Logger: log}), quota.BreakerOptions{Logger: log})
			return http.NotFoundHandler(), nil
		}, `Breaker is around Fallback, so it opens only if both stores fail`},
		{"Redis", "a time budget without a unit", func(*testing.T, *slog.Logger) (http.Handler, error) {
			_, err := redisstore.New(redis.NewUniversalClient(at("127.0.0.1:1")), redisstore.Options{Timeout: 50})
			return http.NotFoundHandler(), err
		}, `redisstore: Timeout is 50ns; want at least 1ms, such as 50*time.Millisecond`},

		{"waiting", "a leaky bucket in which no request waits", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			r := perMinute("jobs")
			r.Limits[0] = algorithms.LeakyBucket(20, 5, time.Second)
			return limited(r)(nil, log)
		}, `weir: leaky bucket without MaxWait" rule=jobs`},
		{"waiting", "a bound on waiting requests, none of which waits", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Logger: log, MaxWaiting: 500, Rules: []weir.Rule{perMinute("jobs")}})
			if err != nil {
				return nil, err
			}
			return l.Handler(http.NotFoundHandler()), nil
		}, `weir: option MaxWaiting without MaxWait" effect=`},
		{"login", "a penalty of a key that all clients share", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			r := perMinute("all")
			r.Key, r.Penalty = weir.Global(), &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
			return limited(r)(nil, log)
		}, `weir: penalty of a key that all clients share" rule=all`},

		{"waiting", "two limits of one period without a name", limited(weir.Rule{Name: "partner", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(200, time.Second), algorithms.GCRA(200, time.Second).WithBurst(20)}}),
			`two limits are named "1s"; name one of them, in Go with .Named`},
		{"quick start", "a developer tries the limiter in front of authentication", limited(weir.Rule{Name: "api", Key: weir.ByContext("account"), Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}),
			`key missing in each of the first 5 requests" rule=api`},
		{"quick start", "a trusted proxy sets another field", func(t *testing.T, log *slog.Logger) (http.Handler, error) {
			old := slog.Default() // ByIP logs there
			slog.SetDefault(log)
			t.Cleanup(func() { slog.SetDefault(old) })
			r := perMinute("api")
			r.Key = weir.ByIP(netip.MustParsePrefix("127.0.0.0/8"))
			h, err := limited(r)(t, log)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Set("X-Real-IP", "192.0.2.1")
				h.ServeHTTP(w, r)
			}), err
		}, `fields=X-Real-Ip effect="if there are several clients, they share one quota" likely="the proxy does not set X-Forwarded-For`},

		{"override", "Run is not called", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			live := overrides.NewLive(overrides.LiveOptions{Keeper: kept{}, Interval: 1, Logger: log})
			r := perMinute("api")
			r.ForKey = live.Of("api", nil)
			return limited(r)(nil, log)
		}, `overrides: request served before the overrides were read`},

		{"login", "the handler answers wrong passwords with another status", func(_ *testing.T, log *slog.Logger) (http.Handler, error) {
			r := perMinute("login")
			r.Settle = weir.ChargeOnly(http.StatusUnauthorized)
			l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Logger: log, Rules: []weir.Rule{r}})
			if err != nil {
				return nil, err
			}
			return l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })), nil
		}, `all units refunded in each of the first 200 requests" rule=login`},
		{"login", "a burst that does nothing", login(func(r *weir.Rule) { r.Limits[0] = r.Limits[0].WithBurst(2) }), `has no burst`},
		{"login", "a limit that never refuses", login(func(r *weir.Rule) {
			r.Settle = nil
			r.Limits = append(r.Limits, algorithms.SlidingLog(500, 30*time.Second))
		}), `never refuses a request that limit "1m" admits`},
		{"login", "a Settle that charges nothing", limitedSafely(func() weir.Rule {
			r := perMinute("login")
			r.Settle = weir.ChargeOnly()
			return r
		}), `ChargeOnly`},

		{"outbound", "the store is down", outgoing(weirtest.ErrDown, weir.TransportOptions{}), `request not decided" rule=partner err="dial tcp 127.0.0.1:6379: connection refused" cause=error passed=true`},
		{"outbound", "the store is busy", outgoing(quota.ErrBusy, weir.TransportOptions{}), `cause=busy passed=false`},
		{"outbound", "the store can never work", outgoing(quota.ErrUnusable, weir.TransportOptions{}), `level=ERROR msg="weir: request not decided" rule=partner`},
		{"outbound", "a pause without a unit", outgoing(nil, weir.TransportOptions{MaxPause: 30}), `weir: MaxPause is 30ns; want at least 1ms`},
		{"outbound", "a negative pause", outgoing(nil, weir.TransportOptions{MaxPause: -1}), `MaxPause`},
	} {
		t.Run(c.deployment+": "+c.mistake, func(t *testing.T) {
			var lines weirtest.Log
			h, err := c.wired(t, slog.New(slog.NewTextHandler(&lines, nil)))
			if err != nil {
				if !strings.Contains(err.Error(), c.told) {
					t.Errorf("got error %v, want one with %q", err, c.told)
				}
				return
			}
			server := httptest.NewServer(h)
			defer server.Close()
			for range 250 {
				if res, err := http.Get(server.URL); err == nil {
					res.Body.Close()
				}
			}
			for end := time.Now().Add(time.Minute); !strings.Contains(lines.String(), c.told); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("got the log %q after a minute, want %q", lines.String(), c.told)
				}
			}
		})
	}
}

// The log enforces the quota in every second, and GCRA spreads out bursts. A limit is named after its
// period, so one of two limits of the same period needs a name.
var partner = weir.Rule{
	Name: "partner",
	Key:  weir.ByHeader("Host"),
	Limits: []weir.Limit{
		algorithms.SlidingLog(50, time.Second),
		algorithms.GCRA(50, time.Second).WithBurst(5).Named("pace"), // 5 at once, then one every 20.4 ms
	},
	Buffer: 20 * time.Millisecond, // by how much the delay to the partner varies
}

// TestPairOfLimits: the two limits of one period that docs/waiting.md recommends work as written:
// a burst of 5 is sent at once, and no second has more than 50.
func TestPairOfLimits(t *testing.T) {
	_, rule, _ := strings.Cut(read(t, "docs/waiting.md"), "\nvar partner = ")
	if rule, _, _ = strings.Cut(rule, "\n}\n"); rule == "" || !strings.Contains(read(t, "docs/wired_test.go"), "\nvar partner = "+rule+"\n}\n") {
		t.Errorf("docs/waiting.md has another rule than this test:\n%s", rule)
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{partner}})
		if err != nil {
			t.Fatal(err)
		}
		h, r := l.Handler(http.NotFoundHandler()), httptest.NewRequest("GET", "/", nil)
		var admitted []int
		sum := 0
		for range 1000 { // milliseconds
			n := 0
			for range 50 {
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code == http.StatusNotFound {
					n++
				}
			}
			admitted, sum = append(admitted, n), sum+n
			time.Sleep(time.Millisecond)
		}
		if admitted[0] != 5 || admitted[20] != 0 || admitted[21] != 1 || sum != 50 {
			t.Errorf("got %d at once, %d after 20 ms, %d after 21 ms and %d in a second, want 5, 0, 1 and 50", admitted[0], admitted[20], admitted[21], sum)
		}
	})
}

// kept is a Keeper without overrides.
type kept struct{ overrides.Keeper }

// limitedSafely is limited, for a rule whose making panics.
func limitedSafely(rule func() weir.Rule) wired {
	return func(t *testing.T, log *slog.Logger) (h http.Handler, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = errors.New(p.(string))
			}
		}()
		return limited(rule())(t, log)
	}
}
