package redisstore

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// once is a command that go-redis does not send again, whatever its settings: a
// charge that was sent twice may be spent twice.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// send has Redis run the scripts of calls in order, in one round trip. It returns no later
// than ctx ends. What Redis answers, errors among it, is in the commands.
func (s *Store) send(ctx context.Context, calls ...*call) ([]once, error) {
	cmds := make([]once, len(calls))
	for i, c := range calls {
		// The first of several is sent as it is if Redis may lack it: were it found to be
		// missing, the calls behind it would be decided before.
		if len(calls) == 1 || c.sent.Swap(true) {
			cmds[i] = c.command(ctx, "evalsha", c.sha)
		} else {
			cmds[i] = c.command(ctx, "eval", c.text)
		}
	}
	for todo := cmds; len(todo) > 0; {
		if err := s.process(ctx, calls[0].args[3].(string), todo); err != nil {
			for _, c := range calls {
				c.sent.Store(false)
			}
			return nil, err
		}
		todo = nil
		for i, c := range calls {
			switch err := cmds[i].Err(); {
			case redis.HasErrorPrefix(err, "NOSCRIPT"):
				cmds[i] = c.command(ctx, "eval", c.text)
			case redis.HasErrorPrefix(err, "TRYAGAIN"):
				// While a slot moves, its node may have some keys of a call and not the
				// others. It has run nothing then.
				time.Sleep(time.Millisecond)
				cmds[i] = c.command(ctx, "evalsha", c.sha)
			default:
				continue
			}
			todo = append(todo, cmds[i])
		}
	}
	return cmds, nil
}

// command returns the command of c, in place of the one that c has sent before.
func (c *call) command(ctx context.Context, name, script string) once {
	c.args[0], c.args[1] = name, script
	cmd := once{redis.NewCmd(ctx, c.args...)}
	cmd.SetFirstKeyPos(3)
	return cmd
}

// process sends commands to the node of key and returns when they have their
// answers, or an error no later than ctx ends.
func (s *Store) process(ctx context.Context, key string, cmds []once) error {
	if s.queue != nil {
		return s.queue.do(ctx, cmds)
	}
	node, err := s.node(ctx, key)
	if err == nil {
		err = s.queueOf(node).do(ctx, cmds)
	}
	if err != nil {
		if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // go-redis by itself may take a minute to ask who the masters are
		}
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && redirected(err) {
			if err := await(ctx, func(ctx context.Context) error { return s.rdb.Process(ctx, cmd) }); !isAnswer(err) {
				return err
			}
		}
	}
	return nil
}

// redirected reports whether err says that another node decides, and that this
// one has done nothing.
func redirected(err error) bool {
	for _, prefix := range [...]string{"MOVED", "ASK", "READONLY", "CLUSTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// node returns the client of the node that has key. The first time it asks the
// cluster, in the client's own time.
func (s *Store) node(ctx context.Context, key string) (*redis.Client, error) {
	if s.located.Load() {
		return s.find(ctx, key)
	}
	found := make(chan *redis.Client, 1)
	if err := await(ctx, func(ctx context.Context) error {
		node, err := s.find(ctx, key)
		found <- node
		return err
	}); err != nil {
		return nil, err
	}
	s.located.Store(true)
	return <-found, nil
}

func (s *Store) find(ctx context.Context, key string) (*redis.Client, error) {
	if ring, ok := s.rdb.(*redis.Ring); ok {
		return ring.GetShardClientForKey(key)
	}
	return s.rdb.(*redis.ClusterClient).MasterForKey(ctx, key)
}

func (s *Store) queueOf(node *redis.Client) *queue {
	q, ok := s.queues.Load(node)
	if !ok {
		q, _ = s.queues.LoadOrStore(node, newQueue(node, s.timeout))
	}
	return q.(*queue)
}

// await runs f and returns when ctx ends at the latest. What f does then goes on,
// in a goroutine that ends with the client's own timeouts.
func await(ctx context.Context, f func(ctx context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- f(context.WithoutCancel(ctx)) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beyondEdges reports whether the script found that an instant lies beyond the
// calendar's edges that it was given, and which.
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
	return at, err == nil
}
