// Package stack builds the store for production. Several processes share their limits in Redis,
// and an in-memory store takes over while Redis is down.
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
//		"github.com/seed83679106/weir/stack"
//	)
//
//	func main() {
//		rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
//		store, err := stack.New(rdb, stack.Options{Replicas: 4}) // the number of processes that share Redis
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
// The decorators come from package quota, and each can also be used alone:
//
//	Fallback ─▶ Hybrid ─▶ Breaker ─▶ Coalesce ─▶ redisstore
//	    └─────▶ Share ─▶ memstore                  while Redis is down
//
// # Outages
//
// While Redis is down, each process enforces its share of every limit, which is the limit divided
// by Options.Replicas. For rules that must never exceed their limits, [Store.WithoutFallback]
// returns a store whose Take fails during an outage. The store that [Store.Undivided] returns
// enforces the whole limit in each process. The store logs when an outage begins and when it
// ends.
//
// # Start
//
// [New] succeeds even while Redis is down, and then checks in the background whether Redis is
// usable. [Store.Err] returns the result, so you can use it in a health check. [Store.Probe] runs
// a check immediately.
package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// Options are the options for New. Only Replicas is required.
type Options struct {
	// Replicas is the number of processes that share Redis, at least 1. While Redis is down, each
	// process enforces its share of each limit in memory. If Replicas is too small, the processes
	// together admit more than the limit during an outage. For example, 8 processes with Replicas
	// set to 4 admit twice the limit. If Replicas is too large, they admit less than the limit.
	// If the number of processes varies, use the largest. There is no default, because 1 would be
	// too small as soon as a second process runs.
	Replicas int

	// Redis configures the Redis store, such as its key prefix and its timeout.
	Redis redisstore.Options

	// Memory configures the in-memory store that takes over while Redis is down.
	Memory memstore.Options

	// Hybrid sets how many refusals each process remembers. Remembered refusals save calls to
	// Redis while a key exceeds its limit.
	Hybrid quota.HybridOptions

	// Breaker configures the circuit breaker. If its Logger is nil, the Logger below is used.
	Breaker quota.BreakerOptions

	// Logger logs when Redis fails, with the cause, and when it recovers. At start it also logs
	// each unsuitable client setting and, if Redis is misconfigured or not supported, everything
	// that is wrong or missing. nil means slog.Default().
	Logger *slog.Logger
}

// A Store is a quota.Store that uses Redis, and memory while Redis is down. It is safe for
// concurrent use.
type Store struct {
	redis     *redisstore.Store
	breaker   *quota.BreakerStore
	hybrid    *quota.HybridStore
	primary   primary
	fallback  *quota.FallbackStore // around Share
	undivided *quota.FallbackStore
	checker   checker
}

// New returns a store that uses Redis through rdb, and memory while Redis is down. It does not
// wait for Redis to be up. The caller closes rdb. Create rdb with redisstore.ClientOptions, which
// returns suitable settings. New returns an error if rdb is nil, if Replicas is below 1, or if
// another option is invalid.
//
// During a Redis outage, every request is still counted. If requests should fail rather than be
// counted in memory, use WithoutFallback.
//
// New starts a goroutine that checks Redis until it is usable (see Err). Close stops the
// goroutine, and so does closing rdb.
func New(rdb redis.UniversalClient, o Options) (*Store, error) {
	switch {
	case o.Replicas < 1:
		return nil, fmt.Errorf("stack: Replicas is %d; want the number of processes that share Redis", o.Replicas)
	case o.Hybrid.MaxKeys < 0:
		return nil, fmt.Errorf("stack: Hybrid.MaxKeys is %d; want at least 0", o.Hybrid.MaxKeys)
	case o.Memory.MaxKeys < 0:
		return nil, fmt.Errorf("stack: Memory.MaxKeys is %d; want at least 0", o.Memory.MaxKeys)
	case o.Breaker.Failures < 0:
		return nil, fmt.Errorf("stack: Breaker.Failures is %d; want at least 0", o.Breaker.Failures)
	case o.Breaker.Cooldown < 0:
		return nil, fmt.Errorf("stack: Breaker.Cooldown is %v; want at least 0", o.Breaker.Cooldown)
	case rdb == nil:
		return nil, errors.New("stack: the client is nil")
	}
	shared, err := redisstore.New(rdb, o.Redis)
	if err != nil {
		return nil, err
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Breaker.Logger = cmp.Or(o.Breaker.Logger, o.Logger)
	for _, w := range shared.Warnings() {
		o.Logger.Warn("stack: setting of the Redis client works against the store", "text", w)
	}
	s := &Store{redis: shared, checker: checker{probe: shared.Probe, logger: o.Logger}}
	s.checker.ctx, s.checker.cancel = context.WithCancel(context.Background())
	s.checker.err.Store(&errUnchecked)
	s.breaker = quota.Breaker(quota.Coalesce(shared), o.Breaker)
	s.hybrid = quota.Hybrid(s.breaker, o.Hybrid)
	memory := memstore.New(o.Memory)
	s.primary = primary{s.hybrid, &s.checker}
	logged := quota.FallbackOptions{Logger: o.Logger}
	s.fallback = quota.Fallback(s.primary, quota.Share(memory, o.Replicas), logged)
	s.undivided = quota.Fallback(s.primary, memory, logged)
	s.checker.check()
	return s, nil
}

// Take implements quota.Store.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error { return s.fallback.Take(ctx, t) }

// WithoutFallback returns a store like s that does not use memory while Redis is down: its Take
// returns the error from Redis. The Limiter's Options.OnError then determines what happens to the
// request.
func (s *Store) WithoutFallback() quota.Store { return s.primary }

// Undivided returns a store like s that does not divide limits by Replicas while Redis is down,
// so each process admits the whole limit. It suits callers that only read the counts and make
// their own decisions.
func (s *Store) Undivided() quota.Store { return s.undivided }

// Redis returns the underlying Redis store, without decorators. It also implements
// overrides.Keeper.
func (s *Store) Redis() *redisstore.Store { return s.redis }

// Stores returns the component stores of s that have metrics or keep overrides. If you pass s to
// weirprom.New or weirotel.New, the metrics of these stores are exported.
func (s *Store) Stores() []quota.Store {
	return []quota.Store{s.redis, s.breaker, s.hybrid, s.fallback, s.undivided}
}
