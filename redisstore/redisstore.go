// Package redisstore keeps the states of rate limits in Redis, so that several processes can
// share the limits.
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
// In production use package stack, which puts a breaker, and a store in memory for outages,
// around this store.
//
// # Calls
//
// A transaction on one key is usually one call of one script, whatever the number of its
// limits. The script takes the time from the clock of Redis. Every value in Redis has a TTL,
// and a refused transaction writes nothing. [Store] says how the values are named.
//
// # Errors
//
// Take returns [ErrTimeout] if Redis and the network take longer than Options.Timeout. If more
// requests come than Redis can decide, it returns a [quota.ErrBusy], and if Redis cannot work
// as it is set up, a [quota.ErrUnusable]. [Store.Probe] finds the latter before a request
// needs the store, and [Store.Warnings] names settings of the client that work against it.
//
// # Algorithms
//
// The store runs the algorithms of package algorithms, and all others that are
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

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// Options are the options of New. The zero Options are ready to use.
type Options struct {
	// Prefix begins every key; "" means "weir:". Different programs that share one Redis
	// need different prefixes. A prefix must not contain a brace, because braces mark the
	// hash tag.
	Prefix string

	// Timeout is how long Redis and the network may take for one Take, whatever the client's
	// own settings; 0 means 50 ms. While the process itself is late, because it is stopped or
	// has too much to do, the time does not count.
	Timeout time.Duration

	// LockKeys is for Upstash, which runs a script under a lock of the whole database. With
	// LockKeys, scripts begin with #!lua flags=allow-key-locking, and Upstash locks only their keys
	// (https://upstash.com/docs/redis/features/key-locking). Redis and Valkey refuse this line: then
	// nothing is decided, and the error wraps quota.ErrUnusable and names LockKeys.
	LockKeys bool

	// SendTime is for servers that refuse the command TIME in scripts, such as ElastiCache
	// Serverless. With SendTime, the store calls TIME outside of scripts, about ten times a second
	// while it has requests, and sends scripts a time that the server's clock has already reached:
	// a round trip ago, or up to Timeout ago if the server is slow. In any time, a key is therefore
	// charged at most what its limits admit in this time and two Timeouts more. A caller that waits
	// for RetryAfter may find that it has to wait for another round trip. If the process is stopped
	// for more than half a second, or for Timeout if that is longer, Take returns a quota.ErrBusy.
	// Set SendTime in all processes that share limits, because only then values live long enough.
	SendTime bool
}

// lockKeys is the first line of scripts under Options.LockKeys.
const lockKeys = "#!lua flags=allow-key-locking\n"

const (
	defaultPrefix  = "weir:"
	defaultTimeout = 50 * time.Millisecond
)

// ErrTimeout is the error of Take if Redis has not answered in time. The transaction may
// have been decided, and may have spent its units. If an attempt to connect has just failed,
// errors.Is finds both ErrTimeout and the error of that attempt. If other answers come in
// time, or if the process itself is late, Redis is not down: errors.Is then finds both
// ErrTimeout and quota.ErrBusy. ErrTimeout has a method Timeout that returns true. It is not
// context.DeadlineExceeded, which is the error of a caller whose own deadline has passed.
var ErrTimeout = queue.ErrTimeout

// Store is a quota.Store. It is safe for concurrent use.
//
// Redis keeps at most two values for each rule and key: one for logs, and one for all other
// states. For rule "api" and key "192.0.2.1" the names of the values are:
//
//	weir:api:log:{.192.0.2.1}
//	weir:api:{.192.0.2.1}
//
// The key stands in the hash tag, between the braces. In a cluster all states of a key are
// therefore in one slot, and keys are spread over all nodes. A transaction with keys in
// different slots is all or nothing too, but its slots decide at different instants. Such a
// transaction never waits, whatever Within is, and in ModeAtMost Take returns
// errors.ErrUnsupported. While two such transactions compete for the last unit of a key,
// other requests may be refused, and a unit may be lost. A limit never admits more than it
// should.
type Store struct {
	rdb     redis.UniversalClient
	prefix  string
	timeout time.Duration

	queue   *server          // nil if keys may be on different nodes
	queues  sync.Map         // *redis.Client → func() *server, for the nodes
	located atomic.Bool      // the nodes of the cluster are known
	clock   func() time.Time // see server

	scripts  scripts
	dials    dials
	verdicts verdicts
}

// New returns a store that uses rdb. The caller closes rdb. Redis need not be up yet. New
// returns an error if rdb is nil, if the prefix contains a brace, or if the timeout is
// negative.
//
// ClientOptions returns settings of a client that suit a limiter. Other settings work too,
// but see Warnings. New adds a hook to rdb that notes why connections fail, so that errors
// can say why.
func New(rdb redis.UniversalClient, o Options) (*Store, error) {
	switch {
	case rdb == nil:
		return nil, errors.New("redisstore: the client is nil")
	case strings.ContainsAny(o.Prefix, "{}"):
		return nil, fmt.Errorf("redisstore: Prefix is %q; want a text without braces", o.Prefix)
	case o.Timeout < 0:
		return nil, fmt.Errorf("redisstore: Timeout is %v; want at least 0", o.Timeout)
	}
	s := &Store{rdb: rdb, prefix: cmp.Or(o.Prefix, defaultPrefix), timeout: cmp.Or(o.Timeout, defaultTimeout)}
	if o.LockKeys {
		s.scripts.first = lockKeys
	}
	if o.SendTime {
		s.scripts.time, s.clock = sendTime(lateness(s.timeout)), time.Now
	}
	watch := func(node *redis.Client) { node.AddHook(&s.dials) }
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		rdb.OnNewNode(watch)
		return s, nil
	case *redis.Ring:
		rdb.OnNewNode(watch)
		return s, nil
	case *redis.Client:
		watch(rdb)
	}
	s.queue = s.newQueue(rdb)
	return s, nil
}

// Take implements quota.Store. It returns ErrTimeout, quota.ErrBusy, and the errors of ctx,
// of Redis, of the network and of Transaction.Validate. If Redis can never decide as it is set
// up, the error wraps quota.ErrUnusable and says what is wrong. If ctx ends, Take returns at
// once.
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
	budget := queue.WithBudget(ctx, s.timeout)
	if err := s.take(budget, t); err != nil {
		return s.timeoutCause(ctx, s.judge(budget, t, err))
	}
	return nil
}

// timeoutCause turns a timeout into an error that names its cause: the caller's context, the
// store's Timeout, a client whose own timeout is shorter, or a failed connection. It explains
// other errors as say does.
func (s *Store) timeoutCause(ctx context.Context, err error) error {
	timeout := net.Error(nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, quota.ErrUnusable):
		return err
	case err == ErrTimeout:
		return s.dials.timeout(nil)
	case errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return s.dials.timeout(err)
	}
	return s.say(err)
}

// key returns the name of the value that keeps the state of a charge. The key of the charge
// stands last, in the hash tag. The dot before the key is there because an empty hash tag
// would not count.
func (s *Store) key(c *quota.Charge) string {
	b := appendEscaped(append(make([]byte, 0, 128), s.prefix...), c.Rule)
	if isLog(c.Limit.Algorithm) {
		b = append(b, ":log"...)
	}
	b = append(append(b, ":{."...), storedkey.Of(c.Key)...)
	return string(append(b, '}'))
}

// appendEscaped appends a name. It escapes all bytes but letters, digits and the characters
// ".-_", so that different lists of names never give the same key.
func appendEscaped(b []byte, name string) []byte {
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02x", c)
		}
	}
	return b
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}

const unreadable = "its state in Redis can't be read, or has a number that is no integer below 2^53"

// A fault is the error of a charge that Redis has not decided, although it answers. It names the
// rule and the limit, but neither the key nor the value: both may be secret, and errors are
// logged.
type fault struct{ where, what string }

func (f *fault) Error() string { return f.where + ": " + f.what }

func faultOf(c *quota.Charge, what string) error {
	return &fault{fmt.Sprintf("redisstore: rule %q: limit %q (%s)", c.Rule, c.Limit.StoredName(), c.Limit.Algorithm.Name()), what}
}
