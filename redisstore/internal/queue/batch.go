package queue

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/internal/traced"
	"github.com/seed83679106/weir/quota"
)

// A Cmd is a command that go-redis never sends a second time, whatever its settings. A charge
// that is sent twice could be spent twice.
type Cmd struct{ *redis.Cmd }

// NewCmd returns a command with its arguments.
func NewCmd(ctx context.Context, args ...any) Cmd { return Cmd{redis.NewCmd(ctx, args...)} }

// NoRetry implements redis.Cmder.
func (Cmd) NoRetry() bool { return true }

// start sends waiting commands, as many as connections and the window allow.
func (q *Queue) start(now time.Time) {
	for q.runners < q.calls(now) {
		b := q.take(now)
		if b == nil {
			return
		}
		if q.runners == 0 {
			q.answered, q.lostThen = now, q.lost
		}
		q.runners++
		go q.run(b)
	}
	if q.queued > 0 {
		q.connect(now)
	}
}

// A batch is what a call sends.
type batch struct {
	asks     []*ask
	cmds     []Cmd     // of all asks
	underWay int       // how many commands of this process were under way when it was sent
	sent     time.Time // when it was sent
	began    time.Time // the same by the clock of the queue
}

// take removes the next batch from the queue. It refuses asks whose answers would be late. The
// batch is nil if nothing may be sent now.
func (q *Queue) take(now time.Time) *batch {
	if q.runners > 0 && float64(q.inFlight) >= q.window {
		return nil
	}
	b := &batch{}
	room := min(maxBatch, int(q.window)-q.inFlight) // the first ask needs no room
	if q.calls(now) >= MaxCalls/2 && float64(q.inFlight+q.queued) < q.window {
		room = min(room, (q.queued+1)/2) // the answers of smaller calls come sooner
	}
	for len(q.waiting) > 0 && (len(b.asks) == 0 || len(b.cmds)+len(q.waiting[0].cmds) <= room) {
		a := q.pop()
		switch {
		case a.over.Load():
		case q.late(a, 0, now):
			a.finish(quota.ErrBusy)
		default:
			b.asks, b.cmds = append(b.asks, a), append(b.cmds, a.cmds...)
		}
	}
	if len(b.asks) == 0 {
		return nil
	}
	q.inFlight += len(b.cmds)
	b.underWay, b.sent, b.began = q.inFlight, time.Now(), now
	return b
}

// context returns the context of the call, which never ends: see traced.Leader.
func (b *batch) context() context.Context {
	var leader traced.Leader
	for _, a := range b.asks {
		leader.Join(a.ctx)
	}
	return leader.Context(context.WithoutCancel(b.asks[0].ctx))
}

// run makes calls, one after the other, until no waiting command may be sent now.
func (q *Queue) run(b *batch) {
	growStack(0)
	for b != nil {
		ctx, cancel := context.WithTimeout(b.context(), q.timeout+Lateness)
		err := q.sendSafely(ctx, b.cmds)
		cancel()
		took := time.Since(b.sent)
		for _, a := range b.asks {
			a.finish(failure(a.cmds))
		}
		q.mu.Lock()
		now := q.now()
		q.inFlight -= len(b.cmds)
		q.learn(b, took, now, err)
		b = nil
		if q.runners <= q.calls(now) {
			b = q.take(now)
		}
		if b == nil {
			q.runners--
			q.start(now) // other asks may wait for a connection, or for room
		}
		q.mu.Unlock()
	}
}

// failure returns why commands have no answers, or nil if they have.
func failure(cmds []Cmd) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !IsAnswer(err) {
			return err
		}
	}
	return nil
}

// sendSafely returns a panic in a hook of the client as an error. On this goroutine the panic
// would end the process.
func (q *Queue) sendSafely(ctx context.Context, cmds []Cmd) error {
	panicked, err := panics.Call("redisstore: the client panicked", func() error { return q.send(ctx, cmds) })
	if panicked {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
}

// growStack makes the stack of a new goroutine 16 KB large at once. A call of the client needs
// more than 8 KB, for which the runtime would otherwise double and copy the stack three times.
//
//go:noinline
func growStack(i int) byte {
	var space [12 << 10]byte
	return space[i]
}

// send sends commands in one round trip. Afterwards each command has its answer or its error.
// send returns an error if a command got no answer from Redis.
func send(ctx context.Context, rdb redis.UniversalClient, cmds []Cmd) error {
	if len(cmds) == 1 {
		cmds[0].SetErr(rdb.Process(ctx, cmds[0]))
		return failure(cmds)
	}
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // only adds cmd to the pipeline
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err) // go-redis does not set the errors of the commands if AUTH fails
		}
	}
	return failure(cmds)
}

// IsAnswer reports whether err is an answer of Redis: an error reply.
func IsAnswer(err error) bool {
	answer := redis.Error(nil)
	return errors.As(err, &answer)
}
