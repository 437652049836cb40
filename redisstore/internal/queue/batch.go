package queue

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/traced"
)

// A Cmd is a command that go-redis never sends a second time, whatever the client's settings. A
// charge that is sent twice could be spent twice.
type Cmd struct{ *redis.Cmd }

// NewCmd returns a command with the given arguments.
func NewCmd(ctx context.Context, args ...any) Cmd { return Cmd{redis.NewCmd(ctx, args...)} }

// NoRetry implements redis.Cmder.
func (Cmd) NoRetry() bool { return true }

// start starts a goroutine that sends waiting commands, if a connection is free and the window has
// room. Only one goroutine at a time gathers commands: see run.
func (q *Queue) start(now time.Time) {
	if b := q.gathering; b != nil && (b.yields && q.queued >= maxBatch || time.Since(b.sent) > beat) {
		q.gathered(b) // another goroutine replaces the one that gathers for b, which returns when it is next scheduled
		q.runners--
	}
	if q.mayCall() && q.runners < q.maxCalls(now) {
		if q.runners == 0 {
			q.answered, q.lostThen = now, q.lost
		}
		q.runners++
		go q.run(q.gather(now))
	}
	if q.queued > 0 && q.gathering == nil {
		q.connect(now)
	}
}

// A batch contains the commands that one call sends.
type batch struct {
	requests []*request
	cmds     []Cmd     // the commands of all requests
	underWay int       // how many of the queue's commands were in flight when the batch was sent
	sent     time.Time // when the batch was sent; before that, when its goroutine began to gather commands
	began    time.Time // the same time by the queue's clock
	yields   bool      // the goroutine yields to others before sending the batch: see run
}

func (q *Queue) mayCall() bool {
	return q.queued > 0 && q.gathering == nil && float64(q.inFlight) < q.window
}

// gather returns an empty batch, which already counts as sent. If the batch's goroutine is not
// scheduled, the process therefore counts as late.
func (q *Queue) gather(now time.Time) *batch {
	b := &batch{sent: time.Now(), began: now}
	b.yields = q.idle.Load() <= lone && q.queued < maxBatch && b.sent.After(q.crowded)
	q.gathering, q.sent = b, append(q.sent, b)
	return b
}

// gathered records that commands are no longer gathered for b, which is still empty. The batch b is
// the last element of q.sent, because no other call begins while commands are gathered.
func (q *Queue) gathered(b *batch) {
	if b.yields && time.Since(b.sent) > beat {
		q.crowded = time.Now().Add(crowdedFor)
	}
	q.gathering, q.sent = nil, q.sent[:len(q.sent)-1]
}

// fill moves waiting commands into a batch, and refuses requests whose answers would be late. It
// returns false if nothing may be sent now.
func (q *Queue) fill(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gathering != b { // see start
		return false
	}
	q.gathered(b)
	now := q.now()
	if q.mayCall() && q.runners <= q.maxCalls(now) {
		q.take(b, now)
	}
	if len(b.requests) == 0 {
		q.runners--
	}
	q.start(now) // other requests may be waiting for a connection, or for room in the window
	return len(b.requests) > 0
}

func (q *Queue) take(b *batch, now time.Time) {
	room := min(maxBatch, int(q.window)-q.inFlight) // the first request is sent even if there is no room
	if q.maxCalls(now) >= MaxCalls/2 && float64(q.inFlight+q.queued) < q.window {
		room = min(room, (q.queued+1)/2) // smaller calls are answered sooner
	}
	for len(q.waiting) > 0 && (len(b.requests) == 0 || len(b.cmds)+len(q.waiting[0].cmds) <= room) {
		a := q.pop()
		switch {
		case a.over.Load():
		case q.isLate(a, 0, now):
			a.finish(q.surplus())
		default:
			b.requests, b.cmds = append(b.requests, a), append(b.cmds, a.cmds...)
		}
	}
	if len(b.requests) > 0 {
		q.inFlight += len(b.cmds)
		b.underWay, b.sent, b.began = q.inFlight, time.Now(), now
		q.sent = append(q.sent, b)
	}
}

// ended records that a call is over. If no answer arrived in time, ended returns the reason.
func (q *Queue) ended(b *batch, err error) fault {
	q.sent = slices.DeleteFunc(q.sent, func(other *batch) bool { return other == b })
	q.inFlight -= len(b.cmds)
	if !timedOut(err) {
		q.fault = unknown
		return unknown
	}
	return q.unanswered(b.sent)
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return err != nil && (errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &t) && t.Timeout())
}

// unanswered returns the reason why a call, sent at the given time, got no answer in time.
func (q *Queue) unanswered(sent time.Time) fault {
	// The third argument is less than the timeout, because timers fire a little late.
	f := q.conns.fault(1, sent, q.timeout-q.timeout/4, q.others)
	if f == notHeard || f == neither || f == tooSoon {
		q.open = min(q.open, q.conns.drop(sent)) // the network may have forgotten all connections of the same age
	}
	return f
}

// finish ends the requests of a batch with their answers, or with the reason why there are none.
func (b *batch) finish(f fault) {
	for _, a := range b.requests {
		err := failure(a.cmds)
		if err != nil && f != unknown && f != notHeard {
			err = ErrLate
		}
		a.finish(err)
	}
}

// context returns the context for the call, which is never done: see traced.Leader.
func (b *batch) context() context.Context {
	var leader traced.Leader
	for _, a := range b.requests {
		leader.Join(a.ctx)
	}
	return leader.Context(context.WithoutCancel(b.requests[0].ctx))
}

// run makes calls, one after the other, until no waiting command may be sent now. Before each call,
// it yields to other runnable goroutines, because some of them may be callers whose commands then
// need no separate call. It yields twice, so that callers that become runnable during the first
// time can run, too. If the caller is alone, run does not yield. If yielding has taken a long time
// because other goroutines use all processors, run stops yielding for a while.
func (q *Queue) run(b *batch) {
	growStack(0)
	for b != nil {
		for n := 0; b.yields && n < 2; n++ {
			runtime.Gosched()
		}
		if !q.fill(b) {
			return
		}
		ctx, cancel := context.WithTimeout(b.context(), q.timeout+Lateness)
		err := q.sendSafely(ctx, b.cmds)
		cancel()
		took := time.Since(b.sent)
		if err == nil { // before taking the lock, so that the callers do not wait for it
			b.finish(unknown)
		}
		q.mu.Lock()
		now := q.now()
		if f := q.ended(b, err); err != nil {
			b.finish(f)
		}
		q.learn(b, took, now, err)
		if q.mayCall() && q.runners <= q.maxCalls(now) {
			b = q.gather(now)
		} else {
			b = nil
			q.runners--
			q.start(now)
		}
		q.mu.Unlock()
	}
}

// failure returns the reason why commands have no answers, or nil if all have answers.
func failure(cmds []Cmd) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !IsAnswer(err) {
			return err
		}
	}
	return nil
}

// sendSafely sends commands, and converts a panic in a hook of the client to an error, because a
// panic in this goroutine would end the process.
func (q *Queue) sendSafely(ctx context.Context, cmds []Cmd) error {
	panicked, err := safe.Call("redisstore: the client panicked", func() error { return q.send(ctx, cmds) })
	if panicked {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
}

// growStack grows the stack of a new goroutine to 16 KB in one step. A call to the client needs
// more than 8 KB. Without growStack, the runtime would double and copy the stack three times.
//
//go:noinline
func growStack(i int) byte {
	var space [12 << 10]byte
	return space[i]
}

// send sends commands in one round trip, and sets the answer or the error of each command. If a
// command got no answer from Redis, send returns an error. If drop has closed the connection,
// nothing was sent, so send tries another connection.
func send(ctx context.Context, rdb redis.UniversalClient, cmds []Cmd) error {
	err := sendOnce(ctx, rdb, cmds)
	for errors.Is(err, errDropped) && ctx.Err() == nil {
		for _, cmd := range cmds {
			cmd.SetErr(nil)
		}
		err = sendOnce(ctx, rdb, cmds)
	}
	return err
}

func sendOnce(ctx context.Context, rdb redis.UniversalClient, cmds []Cmd) error {
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
			cmd.SetErr(err) // if AUTH fails, go-redis does not set the errors of the commands
		}
	}
	return failure(cmds)
}

// IsAnswer reports whether err is an error reply from Redis.
func IsAnswer(err error) bool {
	answer := redis.Error(nil)
	return errors.As(err, &answer)
}
