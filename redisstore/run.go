package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// send makes Redis run the scripts of calls in order, usually in one round trip. It returns at
// the latest when ctx ends. The returned commands have the answers of Redis, errors included.
func (s *Store) send(ctx context.Context, calls ...*call) ([]queue.Cmd, error) {
	cmds := make([]queue.Cmd, len(calls))
	var node *server // nil for a call alone, and if it is unknown
	if len(calls) > 1 {
		node, _ = s.server(ctx, calls[0].key())
	}
	for i, c := range calls {
		// If the node may lack the script, a batch has the text of the script. With only its
		// hash, this call would fail, and the node would decide the later calls of the batch
		// before this call is sent again.
		if len(calls) == 1 || c.sentTo(node) || slices.ContainsFunc(calls[:i], func(of *call) bool { return of.script == c.script }) {
			cmds[i] = c.command(ctx, "evalsha", c.sha)
		} else {
			cmds[i] = c.command(ctx, "eval", c.text)
		}
	}
	for todo := cmds; len(todo) > 0; {
		err := s.inTime(func() error { return s.process(ctx, calls[0].key(), todo) })
		if err != nil {
			for _, c := range calls {
				c.sent.Clear()
			}
			return nil, err
		}
		todo = nil
		for i, c := range calls {
			if node != nil && !c.sentTo(node) {
				c.sent.Store(node, nil) // not earlier: another batch could overtake this one
			}
			switch err := cmds[i].Err(); {
			case redis.HasErrorPrefix(err, "NOSCRIPT"):
				cmds[i] = c.command(ctx, "eval", c.text)
			case redis.HasErrorPrefix(err, "TRYAGAIN"):
				// While a slot moves, a node may lack some keys of a call. The node then
				// runs no script.
				_ = queue.Await(ctx, func(context.Context) error { time.Sleep(time.Millisecond); return nil })
				cmds[i] = c.command(ctx, "evalsha", c.sha)
			default:
				continue
			}
			todo = append(todo, cmds[i])
		}
	}
	return cmds, nil
}

// sentTo reports whether a batch has sent the text to a node.
func (x *script) sentTo(node *server) bool {
	_, sent := x.sent.Load(node)
	return sent
}

// key returns the first key of c.
func (c *call) key() string { return c.args[3].(string) }

// command returns the command of c. It reuses the memory of the last command of c.
func (c *call) command(ctx context.Context, name, script string) queue.Cmd {
	c.args[0], c.args[1] = name, script
	cmd := queue.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// process sends commands to the node of key and returns when they have their answers. If
// ctx ends earlier, it returns an error.
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
			if err := queue.Await(ctx, func(ctx context.Context) error { return s.rdb.Process(ctx, cmd) }); !queue.IsAnswer(err) {
				return err
			}
		}
	}
	return nil
}

// redirected reports whether a node has answered that it cannot decide the key, because
// another node has the key or the cluster is down. A node with such an answer has spent
// nothing.
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

// newQueue returns the queue of a client of one node.
func (s *Store) newQueue(rdb redis.UniversalClient) *server {
	q := queue.New(queue.Options{Client: rdb, Timeout: s.timeout, Explain: (&mismatch{client: rdb}).explain})
	return &server{Queue: q, clock: s.clock, dials: &s.dials, late: lateness(s.timeout)}
}

func (s *Store) queueOf(node *redis.Client) *server {
	q, ok := s.queues.Load(node)
	if !ok {
		q, _ = s.queues.LoadOrStore(node, sync.OnceValue(func() *server { return s.newQueue(node) }))
	}
	return q.(func() *server)()
}

// beyondEdges returns the instant around which a script needs more edges, in µs since 1970.
// The result ok is false if err has another reason.
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
