package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// once is a command that go-redis does not send again, whatever its settings: a
// charge that was sent twice may be spent twice.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// run sends the script and returns its reply, or an error no later than ctx
// ends.
func (s *Store) run(ctx context.Context, c *call) (any, error) {
	for {
		reply, err := s.send(ctx, c, "evalsha", c.script.sha)
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			reply, err = s.send(ctx, c, "eval", c.script.text)
		}
		// While a slot moves, its node may have some keys of a call and not the
		// others. It has run nothing then.
		if err == nil || !redis.HasErrorPrefix(err, "TRYAGAIN") || sleep(ctx, time.Millisecond) != nil {
			return reply, err
		}
	}
}

func (s *Store) send(ctx context.Context, c *call, command, script string) (any, error) {
	cmd := newCommand(ctx, c, command, script)
	if err := s.process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Result()
}

func newCommand(ctx context.Context, c *call, command, script string) once {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	args = append(args, command, script, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	cmd := once{redis.NewCmd(ctx, append(args, c.args...)...)}
	cmd.SetFirstKeyPos(3)
	return cmd
}

// process runs a command and returns when ctx ends at the latest. A client that
// heeds ctx itself needs no help; for others the command goes on, in a goroutine
// that ends with the client's own timeouts, and what it brings is dropped.
func (s *Store) process(ctx context.Context, cmd once) error {
	if s.heeds {
		err := s.rdb.Process(ctx, cmd)
		s.failed(ctx, err)
		return err
	}
	done := make(chan error, 1)
	go func() { done <- s.rdb.Process(ctx, cmd) }()
	select {
	case err := <-done:
		s.failed(ctx, err)
		return err
	case <-ctx.Done():
		s.failed(ctx, ctx.Err())
		return ctx.Err()
	}
}

// failed asks a cluster who its masters are now, after an error that is not an
// answer. go-redis by itself may take a minute to ask.
func (s *Store) failed(ctx context.Context, err error) {
	if err == nil {
		return
	}
	if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
		if answer := redis.Error(nil); !errors.As(err, &answer) {
			cluster.ReloadState(ctx)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beyondEdges reports whether the script found that an instant lies beyond the
// calendar's edges that it was given, and which.
func beyondEdges(err error) (at int64, ok bool) {
	_, text, ok := strings.Cut(err.Error(), "WEIR edges ")
	if !ok {
		return 0, false
	}
	text, _, _ = strings.Cut(text, " ")
	at, err = strconv.ParseInt(text, 10, 64)
	return at, err == nil
}
