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
// The store has these layers, most of which come from package quota:
//
//	Fallback ─▶ Hybrid ─▶ Breaker ─▶ Coalesce ─▶ redisstore
//	    └─────▶ Share ─▶ memstore                  while Redis is down
//
// # Outages
//
// While Redis is down, each process enforces its share of every limit: the limit divided by
// Options.Replicas. To make requests fail during an outage instead, use [Store.WithoutFallback]. To
// enforce the whole limit in each process, use [Store.Undivided]. The store logs when an outage
// begins and when it ends.
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

	// Hybrid sets how many refusals each process caches. While a key exceeds its limit, cached
	// refusals save calls to Redis.
	Hybrid quota.HybridOptions

	// Breaker configures the circuit breaker. If its Logger is nil, the Logger below is used.
	Breaker quota.BreakerOptions

	// Logger logs when Redis fails, with the cause, and when it recovers. At start it also logs
	// each unsuitable client setting and, if Redis is misconfigured or not supported, everything
	// that is wrong or missing. nil means slog.Default().
	Logger *slog.Logger
}

// A Store is a quota.Store that uses Redis and falls back to memory while Redis is down. It is safe
// for concurrent use.
type Store struct {
	redis     *redisstore.Store
	breaker   *quota.BreakerStore
	hybrid    *quota.HybridStore
	primary   primary
	fallback  *quota.FallbackStore // around Share
	undivided *quota.FallbackStore
	checker   checker
}

// New returns a store that uses Redis through the client rdb and falls back to memory while Redis
// is down. It does not wait for Redis to be up. Create the client with redisstore.ClientOptions,
// which returns suitable settings. The caller must close rdb. New returns an error if rdb is nil,
// if Replicas is below 1, or if another option is invalid.
//
// New starts a goroutine that checks Redis until it is usable (see Err). Closing the store or rdb
// stops the goroutine.
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

// WithoutFallback returns a store like s, except that it does not fall back to memory. While Redis
// is down, its Take returns an error, and weir.Options.OnError determines what happens to the
// request.
func (s *Store) WithoutFallback() quota.Store { return s.primary }

// Undivided returns a store like s, except that it does not divide limits by Replicas while Redis
// is down, so each process then admits the whole limit. It is for callers that only read the counts
// and make their own decisions.
func (s *Store) Undivided() quota.Store { return s.undivided }

// Redis returns the underlying Redis store, without decorators. It is also an overrides.Keeper.
func (s *Store) Redis() *redisstore.Store { return s.redis }

// Stores returns every store within s that has metrics or keeps overrides. If you pass s to
// weirprom.New or weirotel.New, the metrics of these stores are exported.
func (s *Store) Stores() []quota.Store {
	return []quota.Store{s.redis, s.breaker, s.hybrid, s.fallback, s.undivided}
}
