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
	maxCalls    = 32                     // calls under way to one Redis; more would only have fewer commands each
	nearCalls   = 8                      // calls under way to a near Redis; with more, nearly every command would go alone
	near        = 2 * time.Millisecond   // Redis is near if calls take less
	maxBatch    = 128                    // commands in a call; Redis takes about a millisecond for so many
	minWindow   = 1                      // commands under way, however slow Redis is
	firstWindow = 256                    // commands under way before the first answer
	lateness    = 250 * time.Millisecond // a connection is kept if its answer is at most this late
)

// A queue sends commands to one Redis, on goroutines of its own. A caller can therefore
// give up in time while its connection still waits for the late answer. If the connection
// were closed instead, the next caller would need a new one. The goroutines end when no
// command waits.
//
// A command is sent alone and at once if a connection is free, the window has room, and not
// too many calls are under way. Otherwise the command waits, and is sent together with other
// commands that have come in the meantime. Calls use only connections that have worked
// before, while connect makes new ones. If more commands wait than Redis can decide in time,
// the queue refuses further commands on arrival.
type queue struct {
	send    func(ctx context.Context, cmds []once) error // see sendTo
	timeout time.Duration                                // the store's Timeout
	most    int                                          // the most connections

	mu       sync.Mutex
	waiting  []*ask
	queued   int // commands waiting
	runners  int // calls under way
	inFlight int // commands under way

	open      int // connections that have answered, and have not failed since
	opening   int // attempts to connect
	attempted time.Time
	failed    time.Time // when the last attempt to connect failed
	failure   error     // why that attempt failed

	answered time.Time     // when the last answer came, or the first call under way was sent
	service  time.Duration // how long a call takes, a moving average
	trip     time.Duration // about the round trip: the time of the fastest call, or see learn
	window   float64       // how many commands may be under way
	cut      time.Time     // when the window last became smaller
}

// An ask has the commands of one caller. They are sent in one call, in order.
type ask struct {
	ctx  context.Context // ends when the caller gives up
	cmds []once
	err  error         // why there is no answer
	done chan struct{} // closed once cmds have their answers, or err is set
	must bool          // send cmds even if they are late, because they load a script into Redis
}

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// do sends commands in one call and returns when they have their answers, or ctx ends. If
// there was no answer, do returns an error, and the caller must not use the commands again.
// If Redis answers a command with an error, the command has that error.
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
		q.connect(now) // helps only the next callers
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

// refuse returns an error if the queue already knows that Redis cannot decide an ask in time.
func (q *queue) refuse(a *ask, now time.Time) error {
	switch {
	case q.open == 0 && now.Sub(q.failed) < retryAfter:
		return q.failure
	case q.runners == 0 || q.runners < q.calls(now) && float64(q.inFlight) < q.window:
		return nil
	case now.Sub(q.answered) > q.timeout && (q.open+q.opening >= q.enough(now) || q.opening > 0 && now.Sub(q.attempted) > q.timeout):
		return errStalled
	}
	rounds := float64(q.queued) / min(q.window, float64(q.calls(now)*maxBatch))
	if q.late(a, rounds, now) {
		return weir.ErrBusy
	}
	return nil
}

// late reports whether the answer of an ask would be late if the ask is sent after the given
// number of rounds of calls. A call counts as half of the timeout at most: while calls take
// longer, the window shrinks, so that later calls take less time.
func (q *queue) late(a *ask, rounds float64, now time.Time) bool {
	end, ok := a.ctx.Deadline()
	return ok && !a.must && time.Duration((rounds+1.25)*float64(min(q.service, q.timeout/2))) > end.Sub(now)
}

// enough returns how many connections the queue needs at most. A near Redis needs few. But if
// it has not answered for a while, its connections may be dead, and the queue needs others.
func (q *queue) enough(now time.Time) int {
	if q.service < near && now.Sub(q.answered) < q.timeout/4 {
		return min(q.most, nearCalls)
	}
	return q.most
}

// calls returns how many calls may be under way.
func (q *queue) calls(now time.Time) int { return min(q.open, q.enough(now)) }

// start sends waiting commands, as many as connections and the window allow.
func (q *queue) start(now time.Time) {
	for q.runners < q.calls(now) {
		batch, cmds := q.take(now)
		if len(batch) == 0 {
			return
		}
		if q.runners == 0 {
			q.answered = now
		}
		q.runners++
		go q.run(batch, cmds, q.inFlight, now)
	}
	if q.queued > 0 {
		q.connect(now)
	}
}

// take removes the next batch from the queue, and returns its commands too. It refuses asks
// whose answers would be late.
func (q *queue) take(now time.Time) (batch []*ask, cmds []once) {
	if q.runners > 0 && float64(q.inFlight) >= q.window {
		return nil, nil
	}
	room := min(maxBatch, int(q.window)-q.inFlight) // the first ask needs no room
	if q.calls(now) >= maxCalls/2 && float64(q.inFlight+q.queued) < q.window {
		room = min(room, (q.queued+1)/2) // the answers of smaller calls come sooner
	}
	for len(q.waiting) > 0 && (len(batch) == 0 || len(cmds)+len(q.waiting[0].cmds) <= room) {
		a := q.pop()
		switch {
		case a.ctx.Err() != nil:
		case q.late(a, 0, now):
			a.err = weir.ErrBusy
			close(a.done)
		default:
			batch, cmds = append(batch, a), append(cmds, a.cmds...)
		}
	}
	q.inFlight += len(cmds)
	return batch, cmds
}

// run makes calls, one after the other, until no waiting command may be sent now.
func (q *queue) run(batch []*ask, cmds []once, underWay int, began time.Time) {
	growStack(0)
	for len(batch) > 0 {
		err := q.call(batch, cmds)
		now := time.Now()
		for _, a := range batch {
			close(a.done)
		}
		q.mu.Lock()
		q.inFlight -= len(cmds)
		q.learn(len(cmds), underWay, began, now, err)
		batch = nil
		if q.runners <= q.calls(now) {
			batch, cmds = q.take(now)
		}
		if len(batch) == 0 {
			q.runners--
			q.start(now) // other asks may wait for a connection, or for room
		}
		began, underWay = now, q.inFlight
		q.mu.Unlock()
	}
}

// learn adapts the window after a call of n commands. The number underWay is how many
// commands of this process were under way when the call was sent. If the call took longer
// than the round trip plus a third of the rest of the timeout, too many commands were under
// way, perhaps commands of other processes.
//
// With the smallest window, only one call is under way. If even this call takes that long, the
// round trip has probably become longer: learn raises trip to the time of the call, but to at
// most half of the timeout. Perhaps other processes load Redis instead, and if all of them
// then made their windows larger, every answer would be late.
func (q *queue) learn(n, underWay int, began, now time.Time, err error) {
	took := now.Sub(began)
	if err != nil { // the connection is lost
		q.open = max(0, q.open-1)
	} else {
		q.answered = now
		if q.service == 0 {
			q.service, q.trip = took, took
		}
		q.service += (took - q.service) / 8
		q.trip = min(q.trip, took)
	}
	good := q.trip + (q.timeout-q.trip)/3
	switch {
	case took < good && err != nil: // a failure shows nothing of how much Redis can decide
	case took < good && float64(underWay) < q.window/2: // the window did not limit the commands
	case took < good:
		q.window = min(q.window+float64(n)/2*float64(good-took)/float64(good-q.trip), maxCalls*maxBatch)
	case !began.After(q.cut):
	case q.window > minWindow:
		q.window = max(minWindow, min(q.window, float64(underWay)*float64(good)/float64(took)))
		q.cut = now
	case err == nil:
		q.trip = max(q.trip, min(took, q.timeout/2))
	}
}

// call sends the commands of a batch. It returns an error if Redis did not answer.
func (q *queue) call(batch []*ask, cmds []once) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), q.timeout+lateness)
	defer cancel()
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

// growStack makes the stack of a new goroutine 16 KB large at once, because a call of the
// client needs more than 8 KB. Otherwise the runtime would double the stack three times while
// the client calls ever more functions, and would copy the whole stack each time.
//
//go:noinline
func growStack(i int) byte {
	var space [12 << 10]byte
	return space[i]
}
