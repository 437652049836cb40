// Package stack puts together the store for production: limits that several processes share in
// Redis, with a store in memory that decides while Redis is down.
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
// The decorators are those of package quota, and each of them can also be used alone:
//
//	Fallback ─▶ Hybrid ─▶ Breaker ─▶ Coalesce ─▶ redisstore
//	    └─────▶ Share ─▶ memstore                  while Redis is down
//
// # Outages
//
// While Redis is down, each process admits its share of every limit: a limit divided by
// Replicas. [Store.WithoutFallback] fails instead, for rules that must never admit too much,
// and [Store.Undivided] keeps the whole limit in each process. The Logger gets a line when an
// outage begins and when it ends.
//
// # Start
//
// [New] works while Redis is down, and checks in the background whether Redis can decide.
// [Store.Err] has the result, for a health check. [Store.Probe] checks at once.
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

// Options are the options of New. All fields except Replicas may be zero.
type Options struct {
	// Replicas is the number of processes that share Redis, at least 1. While Redis is
	// down, each process decides in memory, under its share of each limit. If Replicas is
	// too small, the processes together admit more than the limit during an outage: all of
	// 8 processes with Replicas 4 admit twice the limit. If it is too large, they admit
	// less. Where the number changes, use the largest. There is no default, because 1
	// would be too small wherever a second process runs.
	Replicas int

	// Redis has the prefix of the keys in Redis, and the time that a decision may take.
	Redis redisstore.Options

	// Memory has the options of the store that decides while Redis is down.
	Memory memstore.Options

	// Hybrid says how many refusals are remembered, so that Redis is not asked about keys
	// that it refuses.
	Hybrid quota.HybridOptions

	// Breaker has the options of the breaker. If its Logger is nil, the Logger below is
	// used.
	Breaker quota.BreakerOptions

	// Logger gets a line when Redis fails, with the cause, and when it works again. At start
	// it gets a line for each setting of the client that works against the store, and one
	// with all that is wrong or missing if Redis cannot decide as it is set up. nil means
	// slog.Default().
	Logger *slog.Logger
}

// A Store is a quota.Store. It is safe for concurrent use.
type Store struct {
	redis     *redisstore.Store
	breaker   *quota.BreakerStore
	hybrid    *quota.HybridStore
	primary   primary
	fallback  *quota.FallbackStore // around Share
	undivided *quota.FallbackStore
	checker   checker
}

// New returns a store that decides in Redis, and in memory while Redis is down. The caller
// closes rdb, for which redisstore.ClientOptions has settings that suit a limiter. Redis
// need not be up yet. New returns an error if rdb is nil, if Replicas is below 1, or if
// another option is invalid.
//
// An outage of Redis admits no uncounted request. If requests must rather fail than be
// counted in memory, use WithoutFallback.
//
// New starts to check whether Redis can decide: see Err. The check ends once Redis can, when
// rdb is closed, or with Close.
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

// WithoutFallback returns the store without its memory: its Take returns the error of
// Redis. Options.OnError of a Limiter then says what becomes of a request that could not be
// decided.
func (s *Store) WithoutFallback() quota.Store { return s.primary }

// Undivided returns a store like s that does not divide limits by Replicas while Redis is
// down: each process then admits the whole limit. It suits callers that use only the counts,
// and decide themselves.
func (s *Store) Undivided() quota.Store { return s.undivided }

// Redis returns the store in Redis, without decorators. It also keeps overrides: see
// overrides.Keeper.
func (s *Store) Redis() *redisstore.Store { return s.redis }

// Stores returns the stores of which s is made and that have metrics or keep overrides. The
// metrics of packages weirprom and weirotel have those of s if New of that package gets s.
func (s *Store) Stores() []quota.Store {
	return []quota.Store{s.redis, s.breaker, s.hybrid, s.fallback, s.undivided}
}
