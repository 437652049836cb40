package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// send makes Redis run the scripts of evals in order, usually in one round trip. It returns when
// ctx ends or earlier. The returned commands contain the answers from Redis, including errors.
//
// If the node lacks a script, the eval is sent again, and later evals overtake it, although they may
// charge the same key. Several evals are therefore sent with the texts of their scripts, unless the
// node has had all of these scripts a moment ago: then it has either all of them or, if it has just
// lost its scripts, none. A node that removes scripts one by one (Redis 7.4) begins with the one that
// it has not run for the longest time.
func (s *Store) send(ctx context.Context, evals ...*eval) ([]queue.Cmd, error) {
	var node *server // nil if there is only one eval or the node is unknown
	texts := false
	if len(evals) > 1 {
		node, _ = s.server(ctx, evals[0].key())
		texts = slices.ContainsFunc(evals, func(e *eval) bool { return time.Since(e.usedOn(node)) > confirmed })
	}
	cmds, sent := make([]queue.Cmd, len(evals)), map[*script]bool{}
	for i, e := range evals {
		if texts && !sent[e.script] {
			cmds[i], sent[e.script] = e.command(ctx, "eval", e.text), true
		} else {
			cmds[i] = e.command(ctx, "evalsha", e.sha)
		}
	}
	err := sendAgain(ctx, evals, cmds, func(cmds []queue.Cmd) error {
		return s.inTime(func() error { return s.process(ctx, evals[0].key(), cmds) })
	})
	for _, e := range evals {
		switch {
		case err != nil:
			e.sent.Clear()
		case node != nil && time.Since(e.usedOn(node)) > confirmed/4:
			e.sent.Store(node, time.Now()) // only now, because another batch could have overtaken this one
		}
	}
	return cmds, err
}

// sendAgain sends the commands of evals by the given function, and again those that a node could not
// run. The context must have a budget.
func sendAgain(ctx context.Context, evals []*eval, cmds []queue.Cmd, send func([]queue.Cmd) error) error {
	for todo := cmds; len(todo) > 0; {
		if err := send(todo); err != nil {
			return err
		}
		todo = nil
		for i, e := range evals {
			switch err := cmds[i].Err(); {
			case err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
				cmds[i] = e.command(ctx, "eval", e.text)
			case err != nil && redis.HasErrorPrefix(err, "TRYAGAIN"):
				// While a slot moves, a node may have only some of the keys of an eval. It then
				// runs no script.
				if err := queue.Await(ctx, func(context.Context) error { time.Sleep(time.Millisecond); return nil }); err != nil {
					return err
				}
				cmds[i] = e.command(ctx, "evalsha", e.sha)
			default:
				continue
			}
			todo = append(todo, cmds[i])
		}
	}
	return nil
}

// For this time after a batch has found its scripts on a node, the node is not expected to lack some
// of them: see send.
const confirmed = time.Second

// usedOn returns when a batch last found that a node has the script, or the zero time.
func (x *script) usedOn(node *server) time.Time {
	if at, ok := x.sent.Load(node); ok {
		return at.(time.Time)
	}
	return time.Time{}
}

// key returns the name of the first value that e accesses.
func (e *eval) key() string { return e.args[3].(string) }

// command returns the command of e. It reuses the memory of the previous command of e.
func (e *eval) command(ctx context.Context, name, script string) queue.Cmd {
	e.args[0], e.args[1] = name, script
	cmd := queue.NewCmd(ctx, e.args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// runTimeout is the maximum duration of a call to run. No request waits for these calls.
const runTimeout = 2 * time.Second

var errUnreadable = errors.New("the reply can't be read")

// run runs a script that evaluates no charges. Such scripts read or save overrides, or report a
// process and the process's limits. The script gets a key, which consists of the store's prefix and
// the given name, and a last argument that becomes the time if Options.SendTime is set. The reply
// is parsed by read.
func (s *Store) run(ctx context.Context, name, lua string, read func(queue.Cmd) error, args ...any) error {
	key, lua := s.prefix+name, s.scripts.prologue()+lua
	budget := queue.WithBudget(ctx, runTimeout)
	cmd := queue.NewCmd(budget, append(append([]any{"eval", lua, 1, key}, args...), "")...)
	err := s.process(budget, key, []queue.Cmd{cmd})
	if err == nil { // after an error, the queue may still use cmd
		err = read(cmd)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("redisstore: %s: %w", key, s.timeoutCause(ctx, quoteLine(lua, name, err)))
}

// process sends commands to the node that has key, and returns when all commands are answered. If
// ctx ends earlier, process returns an error.
func (s *Store) process(ctx context.Context, key string, cmds []queue.Cmd) error {
	if s.queue != nil {
		return s.queue.Do(ctx, cmds)
	}
	node, err := s.server(ctx, key)
	if err == nil {
		err = node.Do(ctx, cmds)
	}
	if err != nil {
		if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // without this, go-redis may take a minute to look for new masters
		}
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && redirected(err) {
			if s.clock != nil {
				s.setEarliest(cmd)
			}
			err := queue.Await(ctx, func(ctx context.Context) error { return s.rdb.Process(ctx, cmd) })
			if !queue.IsAnswer(err) {
				return err
			}
		}
	}
	return nil
}

// redirected reports whether a node has answered that it cannot evaluate a charge, because another
// node has the key or the cluster is down. A node that answers in this way has spent nothing.
func redirected(err error) bool {
	for _, prefix := range [...]string{"MOVED", "ASK", "READONLY", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// server returns the queue of the node that has key.
func (s *Store) server(ctx context.Context, key string) (*server, error) {
	if s.queue != nil {
		return s.queue, nil
	}
	node, err := s.node(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.queueOf(node), nil
}

// node returns the client of the node that has key. The first call looks up the nodes of
// the cluster, within the client's own timeouts.
func (s *Store) node(ctx context.Context, key string) (*redis.Client, error) {
	if !s.located.Load() {
		if err := queue.Await(ctx, func(ctx context.Context) error { _, err := s.find(ctx, key); return err }); err != nil {
			return nil, err
		}
		s.located.Store(true)
	}
	return s.find(ctx, key)
}

func (s *Store) find(ctx context.Context, key string) (*redis.Client, error) {
	if ring, ok := s.rdb.(*redis.Ring); ok {
		return ring.GetShardClientForKey(key)
	}
	return s.rdb.(*redis.ClusterClient).MasterForKey(ctx, key)
}

// newQueue returns the queue for a client of a single node.
func (s *Store) newQueue(rdb redis.UniversalClient) *server {
	var conns *queue.Conns // nil for a client whose hook was added too late
	if known, ok := s.conns.Load(rdb); ok {
		conns = known.(*queue.Conns)
	}
	q := queue.New(queue.Options{Client: rdb, Conns: conns, Timeout: s.timeout, Slow: &s.slow, Explain: (&mismatch{client: rdb}).explain})
	return &server{Queue: q, clock: s.clock, dials: &s.dials, late: lateness(s.timeout)}
}

func (s *Store) queueOf(node *redis.Client) *server {
	q, ok := s.queues.Load(node)
	if !ok {
		q, _ = s.queues.LoadOrStore(node, sync.OnceValue(func() *server { return s.newQueue(node) }))
	}
	return q.(func() *server)()
}

// If err shows that a script needs more edges, beyondEdges returns the instant around which they
// are needed, in µs since 1970. Otherwise, ok is false.
func beyondEdges(err error) (at int64, ok bool) {
	if err == nil {
		return 0, false
	}
	_, text, ok := strings.Cut(err.Error(), "WEIR edges ")
	if !ok {
		return 0, false
	}
	text, _, _ = strings.Cut(text, " ")
	at, err = strconv.ParseInt(text, 10, 64)
	return at, err == nil && -1<<53 < at && at < 1<<53
}
