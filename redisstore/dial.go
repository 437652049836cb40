package redisstore

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// A dialRecord holds the reason why the last attempt to connect failed, so that the errors of
// requests can include the reason. The client itself may report a failure only after several
// attempts, long after the timeout.
type dialRecord struct {
	failed atomic.Pointer[failedDial] // the last failure; nil after a success
	made   atomic.Int64               // how many attempts have succeeded
}

type failedDial struct {
	err error
	at  time.Time
}

// If a timeout occurs within untilNextDial after a failed attempt to connect, the timeout error
// names that attempt as the cause. This time is longer than the half second after which go-redis
// tries again.
const untilNextDial = time.Second

// A dialHook is a hook for a node's client. It records whether attempts to connect fail, and
// registers new connections in conns.
type dialHook struct {
	*dialRecord
	conns *queue.Conns
}

// watch adds a hook to the client of a node.
func (s *Store) watch(node *redis.Client) {
	h := dialHook{&s.dials, queue.NewConns()}
	s.conns.Store(node, h.conns)
	node.AddHook(h)
}

// DialHook implements redis.Hook.
func (d dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.conns.Dial(func() (net.Conn, error) { return next(ctx, network, addr) })
		if err != nil {
			d.failed.Store(&failedDial{err, time.Now()})
		} else {
			d.failed.Store(nil)
			d.made.Add(1)
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook. It does nothing.
func (dialHook) ProcessHook(redis.ProcessHook) redis.ProcessHook { return nil }

// ProcessPipelineHook implements redis.Hook. It does nothing.
func (dialHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }

// timeout returns ErrTimeout with a cause. If an attempt to connect has just failed, the cause is
// the error of that attempt. Otherwise, the cause is err, which may be nil.
func (d *dialRecord) timeout(err error) error {
	if f := d.failed.Load(); f != nil && time.Since(f.at) < untilNextDial {
		err = f.err
	}
	if err == nil {
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrTimeout, err)
}
