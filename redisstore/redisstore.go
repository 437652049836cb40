// Package redisstore keeps the state of rate limits in Redis, where several processes can share it.
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
//	)
//
//	func main() {
//		rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
//		store, err := redisstore.New(rdb, redisstore.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		limit := weir.Middleware(store, "files", weir.ByIP(), algorithms.GCRA(100, time.Minute))
//		http.Handle("/", limit(http.FileServer(http.Dir("public"))))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
// In production, use package stack, which adds a circuit breaker and an in-memory store for
// outages.
//
// # Calls
//
// A transaction with one key usually needs a single script call, however many limits it has. The
// script uses the clock of the Redis server. Every state in Redis has a TTL. A refused transaction
// writes nothing to Redis. See [Store] for the key names in Redis.
//
// # Errors
//
// Take returns [ErrTimeout] if Redis does not answer within Options.Timeout. If requests arrive
// faster than Redis can handle them, the error wraps [quota.ErrBusy]. If Redis is misconfigured or
// not supported, the error wraps [quota.ErrUnusable]. [Store.Probe] detects such misconfiguration
// before the first request arrives, and [Store.Warnings] lists unsuitable client settings.
//
// # Algorithms
//
// The store supports every algorithm in package algorithms, and any other algorithm that implements
// [Scripted].
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// Options are the options for New. The zero value is ready to use.
type Options struct {
	// Prefix is the first part of every key name in Redis; "" means "weir:". Programs that share a
	// Redis server but not their limits need different prefixes. A prefix must end with a separator
	// such as ":", so that "shop" with the rule "items" and "shopit" with the rule "ems" cannot use
	// the same keys: any character except letters, digits and the characters ".-_%". A prefix must
	// not contain braces, which delimit the hash tag.
	Prefix string

	// Timeout is how long a call to Take waits for Redis and the network, regardless of the
	// client's own settings; 0 means the timeout that was passed to ClientOptions, or 50 ms if the
	// client has other options. Time during which the process itself is suspended or overloaded
	// does not count.
	Timeout time.Duration

	// LockKeys is for Upstash, which by default locks the whole database while a script runs. With
	// LockKeys, scripts begin with the line #!lua flags=allow-key-locking, so Upstash locks only
	// the keys of a script (https://upstash.com/docs/redis/features/key-locking). Redis and Valkey
	// reject this line, so Take returns an error that wraps quota.ErrUnusable and names LockKeys.
	LockKeys bool

	// SendTime is for servers that do not allow the TIME command in scripts, such as ElastiCache
	// Serverless. With SendTime, the store calls TIME separately, about ten times a second while
	// requests arrive. It passes each script a time that lags behind the server's clock by about a
	// round trip, or by up to Timeout if the server is slow. In any interval, a key is therefore
	// charged at most what its limits admit in an interval that is two Timeouts longer. A caller
	// that waits for RetryAfter may have to wait for one more round trip. If the process is
	// suspended for more than half a second, or for more than Timeout if that is longer, Take
	// returns an error that wraps quota.ErrBusy. Set SendTime in all processes that share limits;
	// otherwise their states can expire too early.
	SendTime bool

	// NoTracking turns off CLIENT TRACKING, by which quota.Hybrid learns of changes by other
	// processes. Tracking needs an additional connection to each node, which tracks at most 4,096
	// keys. SendTime also turns tracking off.
	NoTracking bool
}

const (
	defaultPrefix  = "weir:"
	defaultTimeout = 50 * time.Millisecond
)

// ErrTimeout is the error that Take returns or wraps if Redis does not answer in time. The units
// may have been spent anyway. If a connection attempt has just failed, the returned error also
// wraps the error from that attempt. If Redis still answers other calls in time, or if this process
// is overloaded, the returned error also wraps quota.ErrBusy, so that the timeout does not count as
// an outage. ErrTimeout has a Timeout method that returns true. If the caller's own deadline has
// passed, Take instead returns the context's cause, usually context.DeadlineExceeded.
var ErrTimeout = queue.ErrTimeout

// A Store is a quota.Store that keeps its states in Redis. It is safe for concurrent use.
//
// For each rule and key, Redis stores at most two values: one for logs and one for all other
// states. For example, the values for rule "api" and key "192.0.2.1" have these names:
//
//	weir:api:log:{.192.0.2.1}
//	weir:api:{.192.0.2.1}
//
// A rule with the name "log" is written as "%6cog", because the name of the rule's value could
// otherwise equal the name of a log under a longer prefix.
//
// The part between the braces is the hash tag. In a cluster, all states of a key are therefore in
// one slot, while different keys are spread over all nodes. A transaction whose keys are in
// different slots still spends either all of its charges or none, but may spend them at different
// instants. Such a transaction never waits, even if Within is set. While two such transactions
// compete for the last unit of a key, other requests may be refused and the unit may go unused, but
// no limit is exceeded.
type Store struct {
	rdb     redis.UniversalClient
	prefix  string
	timeout time.Duration

	noTracking bool

	queue   *server          // the queue for the only server; nil if keys may be on different nodes
	queues  sync.Map         // *redis.Client → func() *server, for the nodes
	conns   sync.Map         // *redis.Client → *queue.Conns, for the same clients
	located atomic.Bool      // the nodes of the cluster are known
	clock   func() time.Time // see server

	scripts   scripts
	dials     dialRecord
	selfTests sync.Map // maps the names of algorithms to a selfTestResult

	slow atomic.Int64 // the time, in ns since 1970, until which a Redis may be too slow: see Slow
}

// New returns a store that uses Redis through the client rdb. It does not wait for Redis to be up.
// The caller must close rdb. New returns an error if rdb is nil, if one of its addresses has no
// port, if the prefix contains a brace or does not end with a separator, or if the timeout is
// negative.
//
// Create the client with ClientOptions, which returns suitable settings. Other settings also work,
// but Warnings reports those that make the store slower or less reliable. New adds a hook to the
// client. The hook records why connections fail, so that errors can include the cause.
func New(rdb redis.UniversalClient, o Options) (*Store, error) {
	switch {
	case safe.Nil(rdb):
		return nil, errors.New("redisstore: the client is nil")
	case strings.ContainsAny(o.Prefix, "{}"):
		return nil, fmt.Errorf("redisstore: Prefix is %q; want a text without braces", o.Prefix)
	case o.Prefix != "" && (isPlain(o.Prefix[len(o.Prefix)-1]) || strings.HasSuffix(o.Prefix, "%")):
		return nil, fmt.Errorf(`redisstore: Prefix is %q; want a separator such as ":" at its end`, o.Prefix)
	case o.Timeout < 0:
		return nil, fmt.Errorf("redisstore: Timeout is %v; want at least 0", o.Timeout)
	}
	given := timeoutOf(optionsOf(rdb))
	if err := cmp.Or(period.CheckUnit("redisstore: Timeout", o.Timeout), period.CheckUnit("redisstore: the timeout of ClientOptions", given)); err != nil {
		return nil, err
	}
	if err := checkAddresses(rdb); err != nil {
		return nil, err
	}
	s := &Store{rdb: rdb, prefix: cmp.Or(o.Prefix, defaultPrefix), timeout: cmp.Or(o.Timeout, given, defaultTimeout), noTracking: o.NoTracking}
	s.scripts.time = calledTime
	if o.LockKeys {
		s.scripts.first = "#!lua flags=allow-key-locking\n"
	}
	if o.SendTime {
		s.scripts.time, s.clock = sentTime(lateness(s.timeout)), time.Now
	}
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		rdb.OnNewNode(s.watch)
		return s, nil
	case *redis.Ring:
		rdb.OnNewNode(s.watch)
		return s, nil
	case *redis.Client:
		s.watch(rdb)
	}
	s.queue = s.newQueue(rdb)
	return s, nil
}

// Take implements quota.Store. It can return ErrTimeout, quota.ErrBusy, or an error from ctx,
// Redis, the network or Transaction.Validate. If Redis is misconfigured or not supported, the
// error wraps quota.ErrUnusable and names what is wrong. Take returns as soon as ctx is done.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if len(t.Charges) == 0 {
		t.Decide(time.Now().UnixMicro(), nil)
		return nil
	}
	shared := quota.BudgetOf(ctx)
	left := shared.Left(s.timeout)
	if left <= 0 {
		return errUsedUp
	}
	budget := queue.WithBudget(ctx, left)
	err := s.take(budget, t)
	shared.Spend(left - queue.LeftOf(budget))
	if err == nil {
		return nil
	}
	if err = s.timeoutCause(ctx, s.classify(budget, t, err)); 2*left < s.timeout && errors.Is(err, ErrTimeout) {
		return errUsedUp // a timeout after so short a time would say nothing about Redis
	}
	return err
}

// Slow returns an error that wraps quota.ErrSlow while a server that has a key of t is too slow for
// the Timeout. This is the case if, for 5 s, each of the server's answers has taken more than two
// thirds of the Timeout, and at least one request in twenty got no decision. The server no longer
// counts as too slow after five calls in a row have taken less than half of the Timeout. This
// number doubles each time that the server becomes too slow again within a minute. Take calls a
// slow server nevertheless. A caller that does not call Take because of this error, such as package
// stack, must keep calling Slow, which then sends the command TIME from time to time.
func (s *Store) Slow(ctx context.Context, t *quota.Transaction) error {
	if until := s.slow.Load(); until == 0 || until < time.Now().UnixNano() {
		return nil
	}
	for i := range t.Charges {
		node, err := s.server(queue.WithBudget(ctx, s.timeout), s.key(&t.Charges[i]))
		if err != nil {
			return nil
		}
		if err := node.Slow(); err != nil {
			return err
		}
	}
	return nil
}

var errUsedUp = fmt.Errorf("%w: %w", ErrTimeout, quota.ErrUsedUp)

// timeoutCause turns a timeout into an error that names the cause: the caller's context, the
// store's Timeout, a client whose own timeout is shorter, or a failed connection. For other errors,
// timeoutCause returns the result of explain.
func (s *Store) timeoutCause(ctx context.Context, err error) error {
	timeout := net.Error(nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, quota.ErrUnusable), errors.Is(err, quota.ErrSlow):
		return err
	case err == ErrTimeout:
		return s.dials.timeout(nil)
	case errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return s.dials.timeout(err)
	}
	return s.explain(err)
}

// key returns the name of the value that keeps the state of a charge. The charge's key comes last,
// in the hash tag. A dot precedes the key, because Redis ignores an empty hash tag.
func (s *Store) key(c *quota.Charge) string {
	b := append(make([]byte, 0, 128), s.prefix...)
	if c.Rule == "log" {
		b = append(b, "%6cog"...) // see Store
	} else {
		b = appendEscaped(b, c.Rule)
	}
	if isLog(c.Limit.Algorithm) {
		b = append(b, ":log"...)
	}
	b = append(append(b, ":{."...), storedkey.Of(c.Key)...)
	return string(append(b, '}'))
}

// appendEscaped appends a name. It escapes all bytes except letters, digits and the
// characters ".-_", so that different lists of names never lead to the same key.
func appendEscaped(b []byte, name string) []byte {
	for i := range len(name) {
		if c := name[i]; isPlain(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02x", c)
		}
	}
	return b
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}

const unreadable = "its state in Redis can't be read, or has a number that is no integer below 2^53"

// A fault is the error for a charge that Redis has not evaluated although Redis has answered. It
// names the rule and the limit, but neither the key nor the value, because both may be secret and
// errors are logged.
type fault struct{ where, what string }

func (f *fault) Error() string { return f.where + ": " + f.what }

func faultOf(c *quota.Charge, what string) error {
	where := fmt.Sprintf("redisstore: rule %q: limit %q (%s)", c.Rule, c.Limit.Label(), c.Limit.Algorithm.Name())
	return &fault{where, what}
}
