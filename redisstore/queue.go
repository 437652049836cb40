package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/panics"
)

const (
	maxCalls     = 32                     // under way to one Redis; more would only be smaller
	maxBatch     = 128                    // commands of a call: about a millisecond of Redis
	minWindow    = 1                      // commands under way, however slow Redis is
	firstWindow  = 256                    // and before anything is known
	lateness     = 250 * time.Millisecond // by which an answer may miss its caller without costing a connection
	measureAfter = 5 * time.Second        // the length of the way is measured again
)

// A queue sends commands to one Redis, on goroutines of its own, so that a
// caller can leave on time and its connection still reads the late answer: what
// closes a connection costs the next caller a new one. The goroutines end when
// nothing waits.
//
// A command goes alone and at once while a connection is free, and otherwise
// with all that have come meanwhile. Calls use connections that are known to
// work; others are made beside them, in time of their own: see connect. If more waits than
// can be decided in time, the surplus is refused on arrival.
type queue struct {
	send    func(ctx context.Context, cmds []once) error // see sendTo
	timeout time.Duration                                // the store's
	most    int                                          // calls under way at once

	mu       sync.Mutex
	waiting  []*ask
	queued   int // commands waiting
	runners  int // calls under way
	inFlight int // commands under way

	open      int // connections that have answered and not failed since
	opening   int // attempts to connect
	attempted time.Time
	failed    time.Time // the last attempt, with failure
	failure   error

	answered time.Time     // the last call, or when the first of those under way was sent
	service  time.Duration // what a call takes, a moving average
	fastest  time.Duration // the fastest call since measured, about the way there and back
	before   time.Duration // the fastest in the time before
	measured time.Time
	window   float64   // commands that may be under way
	cut      time.Time // the window, the last time
}

// An ask is commands that wait for a call, in their order.
type ask struct {
	ctx  context.Context // ends when the caller leaves
	cmds []once
	err  error         // no answer
	done chan struct{} // closed once cmds have their answers, or err is set
	must bool          // Redis learns a script by it: it is sent even if it is late
}

var errStalled = fmt.Errorf("%w: Redis has stopped answering, and this was not sent", ErrTimeout)

// do sends commands in one call and returns when it is back or ctx ends. An
// error says that there was no answer; answers, errors among them, are in the
// commands. After an error they belong to the queue.
func (q *queue) do(ctx context.Context, cmds []once) error {
	a := &ask{ctx: ctx, cmds: cmds, done: make(chan struct{}), must: cmds[0].Name() == "eval"}
	if err := q.enter(a); err != nil {
		return err
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) enter(a *ask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.waiting) > 0 && q.waiting[0].ctx.Err() != nil {
		q.pop()
	}
	if err := q.refuse(a, now); err != nil {
		q.connect(now) // for those to come
		return err
	}
	q.waiting = append(q.waiting, a)
	q.queued += len(a.cmds)
	q.start(now)
	return nil
}

func (q *queue) pop() *ask {
	a := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.queued -= len(a.cmds)
	return a
}

// refuse says why a cannot be decided in time, if that is known already.
func (q *queue) refuse(a *ask, now time.Time) error {
	switch {
	case q.open == 0 && now.Sub(q.failed) < retryAfter:
		return q.failure
	case q.runners == 0 || q.runners < q.open && float64(q.inFlight) < q.window:
		return nil
	case now.Sub(q.answered) > q.timeout && (q.open+q.opening >= q.most || q.opening > 0 && now.Sub(q.attempted) > q.timeout):
		return errStalled
	}
	rounds := float64(q.queued) / min(q.window, float64(q.open*maxBatch))
	if end, ok := a.ctx.Deadline(); ok && !a.must && time.Duration((rounds+1.25)*float64(q.takes())) > end.Sub(now) {
		return weir.ErrBusy
	}
	return nil
}

// takes returns how long a call is expected to take. If calls are late, those
// that could be in time at their best are still sent: the window becomes smaller.
func (q *queue) takes() time.Duration { return min(q.service, q.timeout/2) }

// start sends what waits, as far as connections and the window allow.
func (q *queue) start(now time.Time) {
	for q.runners < q.open {
		batch, n := q.take(now)
		if n == 0 {
			return
		}
		if q.runners == 0 {
			q.answered = now
		}
		q.runners++
		go q.run(batch, n, q.inFlight, now)
	}
	if q.queued > 0 {
		q.connect(now)
	}
}

// take removes the next batch from the line, and n commands are under way. It
// sends no ask that would come back late.
func (q *queue) take(now time.Time) (batch []*ask, n int) {
	room := max(1, min(maxBatch, int(q.window)-q.inFlight))
	if q.open >= maxCalls/2 && float64(q.inFlight+q.queued) < q.window {
		room = max(1, min(room, (q.queued+1)/2)) // the next call is soon back, and those to come find one sooner
	}
	if q.runners > 0 && float64(q.inFlight) >= q.window {
		return nil, 0
	}
	for len(q.waiting) > 0 && (n == 0 || n+len(q.waiting[0].cmds) <= room) {
		a := q.pop()
		if a.ctx.Err() != nil {
			continue
		}
		if end, ok := a.ctx.Deadline(); ok && !a.must && end.Sub(now) < q.takes()*5/4 {
			a.err = weir.ErrBusy
			close(a.done)
			continue
		}
		batch = append(batch, a)
		n += len(a.cmds)
	}
	q.inFlight += n
	return batch, n
}

// run makes calls until nothing waits.
func (q *queue) run(batch []*ask, n, underWay int, began time.Time) {
	for n > 0 {
		err := q.call(batch)
		now := time.Now()
		for _, a := range batch {
			close(a.done)
		}
		q.mu.Lock()
		q.inFlight -= n
		q.learn(n, underWay, began, now, err)
		n = 0
		if q.runners <= q.open {
			batch, n = q.take(now)
		}
		if n == 0 {
			q.runners--
			q.start(now) // others may wait for a connection, or room
		}
		began, underWay = now, q.inFlight
		q.mu.Unlock()
	}
}

// learn keeps account of a call of n commands, sent when so many were under way.
// Their number decides how long a call takes, at a Redis that other processes may
// use too: if it takes more than a third of what the way there and back leaves,
// there were too many.
func (q *queue) learn(n, underWay int, began, now time.Time, err error) {
	took := now.Sub(began)
	if err != nil { // the connection is lost
		q.open = max(0, q.open-1)
	} else {
		q.answered = now
		if q.service == 0 {
			q.service, q.fastest, q.before = took, took, took
		}
		q.service += (took - q.service) / 8
		q.fastest = min(q.fastest, took)
	}
	way := min(q.before, q.fastest)
	good := way + (q.timeout-way)/3
	switch {
	case q.queued == 0 && took <= good:
	case now.Sub(q.measured) > measureAfter: // the way may have changed: only few commands show its length
		q.window = max(minWindow, q.window/4)
		q.before, q.fastest, q.measured, q.cut = q.fastest, q.timeout, now, now
	case took <= good && float64(underWay) < q.window/2: // it bounds nothing
	case took <= good:
		q.window = min(q.window+float64(n)/2*float64(good-took)/float64(good-way), maxCalls*maxBatch)
	case began.After(q.cut):
		q.window = max(minWindow, min(q.window, float64(underWay)*float64(good)/float64(took)))
		q.cut = now
	}
}

// call has Redis answer a batch and returns what kept it from that.
func (q *queue) call(batch []*ask) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), q.timeout+lateness)
	defer cancel()
	cmds := batch[0].cmds
	if len(batch) > 1 {
		cmds = nil
		for _, a := range batch {
			cmds = append(cmds, a.cmds...)
		}
	}
	err := q.sendSafely(ctx, cmds)
	if err == nil {
		return nil
	}
	for _, a := range batch {
		for _, cmd := range a.cmds {
			if e := cmd.Err(); e != nil && !isAnswer(e) {
				a.err = e
			}
		}
	}
	return err
}

// sendSafely turns a panic in a hook of the client into an error: on this
// goroutine it would end the process.
func (q *queue) sendSafely(ctx context.Context, cmds []once) error {
	panicked, err := panics.Call("redisstore: the client panicked", func() error { return q.send(ctx, cmds) })
	if panicked {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
}
