// Package stack provides a store for production use by several processes, which share limits in
// Redis. An in-memory store takes over while Redis is down.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/redis/go-redis/v9"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/redisstore"
//		"github.com/seed83679106/weir/redisstore/stack"
//	)
//
//	func main() {
//		rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
//		store, err := stack.New(rdb, stack.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		limit := weir.Middleware(store, "files", weir.ByIP(), algorithms.GCRA(100, time.Minute))
//		http.Handle("/", limit(http.FileServer(http.Dir("public"))))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
// # Layers
//
// The store has these layers, most of which come from package quota:
//
//	Fallback ─▶ Hybrid ─▶ Breaker ─▶ Coalesce ─▶ redisstore
//	    └─────▶ Share ─▶ memstore                  while Redis is down
//
// # Outages
//
// While Redis is down, each process enforces its share of every limit: the limit divided by the
// number of processes. The processes count each other (see Options.Replicas). To make requests fail
// during an outage instead, use [Store.WithoutFallback]. To enforce the whole limit in each
// process, use [Store.Undivided]. The store logs when an outage begins and when it ends.
//
// When Redis refuses a key, this process keeps at most its share of the units that Redis has left, so
// the key gains nothing when an answer of Redis is late. Under a sliding log or an anchored window,
// memory then has no more units for a whole Period, even if Redis would have had some earlier. A call
// with quota.ModeForget takes effect in Redis and in memory.
//
// # Start
//
// [New] succeeds even if Redis is down. The store then checks in the background whether Redis is
// usable. [Store.Err] returns the result, for example for a health check. [Store.Probe] runs a
// check immediately.
package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// Options are the options for New. The zero value is ready to use.
type Options struct {
	// Replicas is the number of processes that share Redis. While Redis is down, each process
	// enforces its share of each limit in memory: the limit divided by Replicas. If Replicas is too
	// small, the processes together admit more than the limit during an outage. For example, 8
	// processes with Replicas set to 4 admit twice the limit. If Replicas is too large, they admit
	// less.
	//
	// 0 means that the processes count each other: every 2 s, each store with the same
	// redisstore.Options.Prefix reports to Redis that it is in use. In an outage, a process uses
	// the largest number that it has counted in the last 10 s. Together, all processes that have
	// been running for 4 s when the outage begins therefore admit at most the limit, unless the
	// limit is smaller than the number of processes (see quota.Share). A process that starts during
	// the outage does not know the number of processes, so it enforces the whole limit: n such
	// processes additionally admit up to n times the limit. If that is too much, set Replicas to
	// the maximum number of processes. A process that has ended is counted for up to another
	// minute. During that time, shares are too small. Processes that share a Prefix but no rules do
	// not count each other.
	Replicas int

	// Agree contains settings, by name, that must be the same in all processes that share a Prefix,
	// such as a short digest of a secret. Anyone who can read Redis can read these settings. The
	// Logger receives a line if another process has had a different value of a setting for 40 s.
	Agree map[string]string

	// Redis configures the Redis store, such as its key prefix and its timeout.
	Redis redisstore.Options

	// Memory configures the in-memory store that takes over while Redis is down.
	Memory memstore.Options

	// Hybrid configures the cache of refusals in each process, which saves calls to Redis while a
	// key exceeds its limit.
	Hybrid quota.HybridOptions

	// Breaker configures the circuit breaker. If its Logger is nil, the breaker logs nothing,
	// because the store logs the same outages.
	Breaker quota.BreakerOptions

	// Effect is the text that log lines use for the effect of a Redis outage on requests; "" means
	// that requests are counted in memory. Set Effect if all requests use WithoutFallback.
	Effect string

	// Logger receives one line when Redis fails, at start or later, and one when Redis works again;
	// nil means slog.Default(). The first line contains the cause, the store that counts in the
	// meantime, this store's share of each limit, and advice. Other lines are about unsuitable
	// client settings (at start), and about lost counts and evicted keys (see quota.LossStats). If
	// Redis is misconfigured or not supported, a line with everything that is wrong or missing is
	// repeated every minute. The lines that go-redis writes about failed connections do not go to
	// the Logger; redis.SetLogger redirects them.
	Logger *slog.Logger
}

// A Store is a quota.Store that uses Redis and falls back to memory while Redis is down. It is safe
// for concurrent use.
type Store struct {
	redis     *redisstore.Store
	breaker   *quota.BreakerStore
	hybrid    *quota.HybridStore
	memory    *memstore.Store
	primary   primary
	fallback  parted // whose secondary store divides limits
	undivided parted
	checker   checker
}

// New returns a store that uses Redis through the client rdb and falls back to memory while Redis
// is down. It does not wait for Redis to be up. Create the client with redisstore.ClientOptions,
// which returns suitable settings. The caller must close rdb. New returns an error if rdb is nil,
// or if an option is invalid.
//
// New starts a goroutine that checks Redis until Redis is usable (see Err). It also starts a timer,
// by which the store reports to other processes that it is in use and what the limits of its rules
// are. It logs a warning if another process has had different limits for a rule for at least 40 s,
// so that a rollout is probably not the reason. Closing the store or rdb stops both.
func New(rdb redis.UniversalClient, o Options) (*Store, error) {
	switch {
	case o.Replicas < 0:
		return nil, fmt.Errorf("stack: Replicas is %d; want at least 0", o.Replicas)
	case o.Hybrid.MaxKeys < 0:
		return nil, fmt.Errorf("stack: Hybrid.MaxKeys is %d; want at least 0", o.Hybrid.MaxKeys)
	case o.Memory.MaxKeys < 0:
		return nil, fmt.Errorf("stack: Memory.MaxKeys is %d; want at least 0", o.Memory.MaxKeys)
	case o.Breaker.Failures < 0:
		return nil, fmt.Errorf("stack: Breaker.Failures is %d; want at least 0", o.Breaker.Failures)
	case o.Breaker.Cooldown < 0:
		return nil, fmt.Errorf("stack: Breaker.Cooldown is %v; want at least 0", o.Breaker.Cooldown)
	case safe.Nil(rdb):
		return nil, errors.New("stack: the client is nil")
	}
	shared, err := redisstore.New(rdb, o.Redis)
	if err != nil {
		return nil, err
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	for _, w := range shared.Warnings() {
		o.Logger.Warn("stack: setting of the Redis client works against the store", "text", w,
			"fix", "make the client with redisstore.ClientOptions")
	}
	s := &Store{redis: shared, memory: memstore.New(o.Memory), checker: checker{
		probe: shared.Probe, eval: rdb.Eval, do: rdb.Do, outages: outageLog{logger: o.Logger, loud: sparse.Gate{Every: time.Minute}, foreign: sparse.Gate{Every: slowAgain}},
	}}
	s.checker.ctx, s.checker.cancel = context.WithCancel(context.Background())
	s.checker.err.Store(&errUnchecked)
	p := &s.checker.processes
	s.breaker = s.checker.outages.breaker(mirrored{quota.Coalesce(shared), shared, p}, o.Breaker)
	o.Hybrid.Logger = cmp.Or(o.Hybrid.Logger, o.Logger)
	s.hybrid = quota.Hybrid(s.breaker, o.Hybrid)
	s.primary = primary{s.hybrid, &s.checker}
	p.heartbeat, p.compare, p.given, p.agree, p.memory = shared.Heartbeat, shared.CompareLimits, o.Replicas, o.Agree, s.memory
	s.checker.outages.effect, p.outage = p.effect, s.checker.outages.ongoing
	if o.Effect != "" {
		s.checker.outages.effect = func() string { return o.Effect }
	}
	p.start(s.checker.ctx, o.Logger)
	unlessSlow := unlessSlow{s.primary, shared}
	s.fallback = parted{s.checker.outages.fallback(unlessSlow, p), shared, s.breaker}
	s.undivided = parted{s.checker.outages.fallback(unlessSlow, s.memory), shared, s.breaker}
	s.checker.check()
	return s, nil
}

// Take implements quota.Store.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error { return s.fallback.Take(ctx, t) }

// Watch implements optional.Watcher.
func (s *Store) Watch(c quota.Charge, done func(d quota.Decision, current func() bool)) bool {
	return s.hybrid.Watch(c, done)
}

// WithoutFallback returns a store like s, except that it does not fall back to memory. While Redis
// is down, the returned store's Take method returns an error, and weir.Options.OnError determines
// what happens to the request.
func (s *Store) WithoutFallback() quota.Store { return alone{s.primary, s} }

// alone is the store that WithoutFallback returns.
type alone struct {
	primary
	of *Store
}

// Stores returns the stores within a, for metrics and package admin.
func (a alone) Stores() []quota.Store {
	return []quota.Store{a.of.redis, &a.of.checker.processes, a.of.breaker, a.of.hybrid}
}

// Undivided returns a store like s, except that it does not divide limits while Redis is down, so
// each process then enforces the whole limit. Use it if you only read the counts and make your own
// decisions.
func (s *Store) Undivided() quota.Store { return s.undivided }

// Redis returns the underlying Redis store, without decorators. This store is also an
// overrides.Keeper.
func (s *Store) Redis() *redisstore.Store { return s.redis }

// Stores returns those of the stores within s that have metrics or keep overrides. If you pass s to
// weirprom.New or weirotel.New, the metrics of these stores are exported.
func (s *Store) Stores() []quota.Store {
	return append(alone{of: s}.Stores(), s.memory, s.fallback.FallbackStore, s.undivided.FallbackStore)
}
