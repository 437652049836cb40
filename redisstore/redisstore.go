// Package redisstore keeps the states of rate limits in Redis, so that several processes can
// share the limits. A transaction on one key is usually one call of one script, whatever the
// number of its limits. The script takes the time from the clock of Redis.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// Options are the options of New. The zero Options are ready to use.
type Options struct {
	// Prefix begins every key; "" means "weir:". Different programs that share one Redis
	// need different prefixes. A prefix must not contain a brace, because braces mark the
	// hash tag.
	Prefix string

	// Timeout is the longest that one Take may last, whatever the client's own settings; 0
	// means 50 ms.
	Timeout time.Duration
}

const (
	defaultPrefix  = "weir:"
	defaultTimeout = 50 * time.Millisecond
)

// ErrTimeout is the error of Take if Redis has not answered in time. The transaction may
// have been decided, and may have spent its units. If an attempt to connect has just failed,
// errors.Is finds both ErrTimeout and the error of that attempt.
var ErrTimeout = errors.New("redisstore: no answer in time")

// Store is a weir.Store. It is safe for concurrent use.
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
// transaction never waits, whatever Within is, and with Delay or AtMost Take returns
// errors.ErrUnsupported. While two such transactions compete for the last unit of a key,
// other requests may be refused, and a unit may be lost. A limit never admits more than it
// should.
type Store struct {
	rdb       redis.UniversalClient
	prefix    string
	timeout   time.Duration
	multiSlot bool // keys may be on different nodes

	queue   *queue      // nil if multiSlot
	queues  sync.Map    // *redis.Client → *queue, if multiSlot
	located atomic.Bool // the nodes of the cluster are known

	scripts scripts
	dials   dials
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
		return nil, fmt.Errorf("redisstore: prefix %q contains a brace", o.Prefix)
	case o.Timeout < 0:
		return nil, fmt.Errorf("redisstore: timeout %v is below 0", o.Timeout)
	}
	s := &Store{rdb: rdb, prefix: o.Prefix, timeout: o.Timeout}
	if s.prefix == "" {
		s.prefix = defaultPrefix
	}
	if s.timeout == 0 {
		s.timeout = defaultTimeout
	}
	switch rdb.(type) {
	case *redis.ClusterClient, *redis.Ring:
		s.multiSlot = true
	default:
		s.queue = newQueue(rdb, s.timeout)
		s.queue.warm()
	}
	s.dials.watch(rdb)
	return s, nil
}

// Take implements weir.Store. It returns ErrTimeout, weir.ErrBusy, and the errors of ctx,
// of Redis, of the network and of Transaction.Validate. If ctx ends, Take returns at once.
func (s *Store) Take(ctx context.Context, t *weir.Transaction) error {
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
	budget, cancel := context.WithTimeoutCause(ctx, s.timeout, ErrTimeout)
	defer cancel()
	if err := s.take(budget, t); err != nil {
		return s.timeoutCause(ctx, budget, err)
	}
	return nil
}

// timeoutCause turns a timeout into an error that names its cause: the caller's context, the
// store's Timeout, a client whose own timeout is shorter, or a failed connection. It explains
// other errors as say does.
func (s *Store) timeoutCause(ctx, budget context.Context, err error) error {
	if budget.Err() != nil {
		if cause := context.Cause(budget); cause != ErrTimeout {
			return cause
		}
		return s.dials.timeout(nil)
	}
	timeout := net.Error(nil)
	if !errors.Is(err, redis.ErrPoolTimeout) && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return say(err)
	}
	end, _ := budget.Deadline()
	if caller, ok := ctx.Deadline(); ok && !caller.After(end) && time.Until(end) <= 0 {
		return context.DeadlineExceeded // the connection has noticed the caller's deadline before ctx did
	}
	return s.dials.timeout(err)
}

// key returns the name of the value that keeps the state of a charge. The key of the charge
// stands last, in the hash tag. The dot before the key is there because an empty hash tag
// would not count.
func (s *Store) key(c *weir.Charge) string {
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

// fault returns an error that names the rule and the limit of a charge. It names neither the key
// nor the value: both may be secret, and errors are logged.
func fault(c *weir.Charge, what string) error {
	return fmt.Errorf("redisstore: rule %q: limit %q (%s): %s", c.Rule, c.Limit.StoredName(), c.Limit.Algorithm.Name(), what)
}
