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
	maxCalls     = 32                     // calls under way to one Redis; more calls would only be smaller
	maxBatch     = 128                    // commands of a call: about a millisecond of Redis
	minWindow    = 1                      // commands under way, however slow Redis is
	firstWindow  = 256                    // commands under way before the first answer
	lateness     = 250 * time.Millisecond // an answer may be so late without the loss of its connection
	measureAfter = 5 * time.Second        // the queue measures the round trip again
)

// A queue sends commands to one Redis, on goroutines of its own. A caller can therefore leave on
// time while its connection still reads the late answer; a closed connection would cost the
// next caller a new one. The goroutines end when no command waits.
//
// While a connection is free a command goes alone and at once. Otherwise it goes with all
// commands that have come in the meantime. Calls use connections that have worked before;
// connect makes others beside them, in time of their own. If more commands wait than Redis can
// decide in time, the queue refuses the surplus on arrival.
type queue struct {
	send    func(ctx context.Context, cmds []once) error // see sendTo
	timeout time.Duration                                // the store's
	most    int                                          // calls under way at once

	mu       sync.Mutex
	waiting  []*ask
	queued   int // commands waiting
	runners  int // calls under way
	inFlight int // commands under way

	open      int // connections that have answered, and have not failed since
	opening   int // attempts to connect
	attempted time.Time
	failed    time.Time // the last attempt, with failure
	failure   error

	answered time.Time     // the last answer, or when the first call under way was sent
	service  time.Duration // of a call, a moving average
	fastest  time.Duration // of a call since measured, about the round trip
	before   time.Duration // fastest of the time before
	measured time.Time
	window   float64   // commands that may be under way
	cut      time.Time // when the window last became smaller
}

// An ask is commands that wait for a call, in order.
type ask struct {
	ctx  context.Context // ends when the caller leaves
	cmds []once
	err  error         // why there is no answer
	done chan struct{} // closed once cmds have their answers, or err is set
	must bool          // it is sent even if it is late: it teaches Redis a script
}

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// do sends commands in one call and returns when they have their answers, or ctx ends. It
// returns an error if there was no answer; the commands then belong to the queue. Errors that
// Redis answers are in the commands.
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
		q.connect(now) // for the next callers
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

// refuse returns an error if the queue already knows that a cannot be decided in time.
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

// takes returns how long a call probably takes, at most half of the timeout: while calls are
// late the window becomes smaller, which makes them faster.
func (q *queue) takes() time.Duration { return min(q.service, q.timeout/2) }

// start sends waiting commands, as far as connections and the window allow.
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

// take removes the next batch of n commands from the queue. It refuses asks whose answers would
// be late.
func (q *queue) take(now time.Time) (batch []*ask, n int) {
	room := max(1, min(maxBatch, int(q.window)-q.inFlight))
	if q.open >= maxCalls/2 && float64(q.inFlight+q.queued) < q.window {
		room = max(1, min(room, (q.queued+1)/2)) // smaller calls are back sooner
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

// run makes calls until no command waits.
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
			q.start(now) // other asks may wait for a connection, or for room
		}
		began, underWay = now, q.inFlight
		q.mu.Unlock()
	}
}

// learn adapts the window to a call of n commands. underWay commands were under way when it was
// sent, and other processes may use this Redis too. If the call takes longer than the round
// trip and a third of the rest of the timeout, there were too many.
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
	case now.Sub(q.measured) > measureAfter: // the round trip may have changed, and only few commands show it
		q.window = max(minWindow, q.window/4)
		q.before, q.fastest, q.measured, q.cut = q.fastest, q.timeout, now, now
	case took <= good && float64(underWay) < q.window/2: // the window bounds nothing
	case took <= good:
		q.window = min(q.window+float64(n)/2*float64(good-took)/float64(good-way), maxCalls*maxBatch)
	case began.After(q.cut):
		q.window = max(minWindow, min(q.window, float64(underWay)*float64(good)/float64(took)))
		q.cut = now
	}
}

// call sends a batch. If Redis did not answer, it returns the error.
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

// sendSafely returns a panic in a hook of the client as an error. On this goroutine the panic
// would end the process.
func (q *queue) sendSafely(ctx context.Context, cmds []once) error {
	panicked, err := panics.Call("redisstore: the client panicked", func() error { return q.send(ctx, cmds) })
	if panicked {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return err
}
