package redisstore

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// dials remembers why the last attempt to connect failed, so that errors can say why. The
// client itself may report a failure only after several attempts, long after the timeout.
type dials struct {
	failed atomic.Pointer[failedDial] // the last failure; nil after a success
}

type failedDial struct {
	err error
	at  time.Time
}

// A failed attempt to connect explains the timeouts of the time untilNextDial after it. This
// time is longer than the half second after which go-redis tries again.
const untilNextDial = time.Second

// watch makes rdb report each attempt to connect to d.
func (d *dials) watch(rdb redis.UniversalClient) {
	add := func(node *redis.Client) { node.AddHook(d) }
	switch rdb := rdb.(type) {
	case *redis.Client:
		add(rdb)
	case *redis.ClusterClient:
		rdb.OnNewNode(add)
	case *redis.Ring:
		rdb.OnNewNode(add)
	}
}

// DialHook implements redis.Hook.
func (d *dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		switch {
		case err != nil:
			d.failed.Store(&failedDial{err, time.Now()})
		case d.failed.Load() != nil:
			d.failed.Store(nil)
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook. It does nothing.
func (d *dials) ProcessHook(redis.ProcessHook) redis.ProcessHook { return nil }

// ProcessPipelineHook implements redis.Hook. It does nothing.
func (d *dials) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }

// timeout returns ErrTimeout with its cause: a connection that has just failed, or else err,
// which may be nil.
func (d *dials) timeout(err error) error {
	if f := d.failed.Load(); f != nil && time.Since(f.at) < untilNextDial {
		return &noConnection{f.err}
	}
	if err == nil {
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrTimeout, err)
}

// A noConnection is an ErrTimeout whose cause is a connection that has failed.
type noConnection struct{ err error }

func (e *noConnection) Error() string {
	return fmt.Sprintf("redisstore: no connection in time: %v", e.err)
}
func (e *noConnection) Unwrap() []error { return []error{ErrTimeout, e.err} }
