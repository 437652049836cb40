// Package queue sends the commands of many callers to one Redis. Do returns within the time
// budget of its caller, whatever Redis, the network and the client do. Three ideas are behind it:
//
//   - A window limits how many commands are in flight. It grows while answers are fast, and
//     shrinks while they take more than a third of the timeout. Commands that exceed the window
//     wait, and are sent together. If Redis cannot answer all of them in time, the queue refuses
//     further commands on arrival, which costs Redis nothing. See window.go.
//   - A caller that has been alone for a while sends its commands itself. See lone.go.
//   - A connection whose answer is late is kept, since a new one would be no faster. A caller can
//     therefore return before its call does: calls run on goroutines of the queue. They use only
//     connections that have worked, while connect makes new ones. See batch.go, connect.go.
//
// The clock of a budget stops while the process itself is late, so that a busy process does not
// look like a slow Redis. See clock.go, prompt.go. The goroutines of a queue end when no command
// waits. The page docs/queue.md has the reasons and the measurements.
package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
)

const (
	MaxCalls    = 32  // calls under way to one Redis; more would only have fewer commands each
	nearCalls   = 8   // calls under way to a near Redis; with more, nearly every command would go alone
	maxBatch    = 128 // commands in a call; Redis takes about a millisecond for so many
	minWindow   = 1   // commands under way, however slow Redis is
	firstWindow = 256 // commands under way before the first answer
	lone        = 16  // a caller must have been alone so often in a row to send its commands itself; among busy callers that is rare

	near     = 2 * time.Millisecond   // Redis is near if calls take less
	interval = 100 * time.Millisecond // after it, learn looks whether the round trip has become longer
	Lateness = 250 * time.Millisecond // a connection is kept if its answer is at most this late

	ConnectTime = time.Second            // for TCP, TLS, HELLO and AUTH together, unless Timeout is longer than 750 ms
	redialAfter = 200 * time.Millisecond // between attempts to connect, while as many are under way as connections are open
	retryAfter  = 20 * time.Millisecond  // from a failed attempt to the next, while no connection is open
)

// Options are the options of New.
type Options struct {
	Client  redis.UniversalClient // of one Redis, which may be a master behind Sentinels
	Timeout time.Duration         // the usual budget, above 0: the window is made for it

	// Explain, if it is not nil, gets the errors of attempts to connect to a Redis that has never
	// been of use, and returns what says more. Once it returns a quota.ErrUnusable, this is the
	// error of all callers. It may take its time.
	Explain func(error) error
}

// A Queue sends commands to one Redis. It is safe for concurrent use.
type Queue struct {
	send    func(ctx context.Context, cmds []Cmd) error // see the function send
	explain func(error) error                           // see Options
	timeout time.Duration                               // see Options
	most    int                                         // the most connections
	bounded bool                                        // send returns when its context ends

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
	inTime   time.Time     // when the last answer came within the timeout
	lostThen time.Duration // what the clock had lost at answered
	service  time.Duration // how long a call takes, a moving average
	trip     time.Duration // about the round trip: the time of the fastest call, or see learn
	window   float64       // how many commands may be under way
	cut      time.Time     // when the window last became smaller
	own      time.Duration // how long the last call took, without the time for which the process was late
	since    time.Time     // when the present interval began: see learn
	fastest  time.Duration // the time of the fastest call of the present interval
	quick    time.Duration // the time of the fastest call of the interval before

	idle int    // how many asks in a row have found the queue without any other
	asks []*ask // all that are not over, and some that are
	clock
}

// New returns a queue, which starts to make a connection. Redis need not be up.
func New(o Options) *Queue {
	q := &Queue{explain: o.Explain, timeout: o.Timeout, most: MaxCalls, window: firstWindow}
	if single, ok := o.Client.(*redis.Client); ok {
		c := single.Options()
		q.most, q.bounded = min(q.most, c.PoolSize), c.ContextTimeoutEnabled
		if !q.bounded {
			o.Client = single.WithTimeout(o.Timeout + Lateness)
		}
	}
	q.send = func(ctx context.Context, cmds []Cmd) error { return send(ctx, o.Client, cmds) }
	q.connect(q.now())
	return q
}

// An ask has the commands of one caller. They are sent in one call, in order.
type ask struct {
	ctx  context.Context // ends when the caller gives up
	cmds []Cmd
	end  time.Time     // when the queue gives up
	lost time.Duration // what the clock had lost when the ask came
	must bool          // send cmds even if they are late, because they load a script into Redis
	over atomic.Bool   // cmds have their answers, or err is set
	err  error         // why there is no answer
	at   time.Time     // when it was over
	done chan struct{} // closed once the ask is over
}

// finish ends an ask, unless it is over.
func (a *ask) finish(err error) {
	if a.over.CompareAndSwap(false, true) {
		a.err, a.at = err, time.Now()
		close(a.done)
	}
}

// ErrTimeout is the error of a caller whose budget was over before the answer came.
var ErrTimeout error = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string { return "redisstore: no answer in time" }
func (timeoutError) Timeout() bool { return true }

// ErrLate is the error of a caller whose answer does not come in time while other answers do,
// or while the process is late. Redis or the process has too much to do then, and nothing
// shows that Redis is down.
var ErrLate = fmt.Errorf("%w under load: %w", ErrTimeout, quota.ErrBusy)

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// Do sends commands in one call, in order, and returns when they have their answers, or ctx
// ends. If Redis answers a command with an error, the command has that error. If there was no
// answer, Do returns an error, and the caller must not use the commands again: ErrTimeout,
// quota.ErrBusy if Redis or the process has too much to do, the error of ctx, or why there is no
// connection. After quota.ErrBusy without ErrTimeout the commands were not sent.
//
// The context must come from WithBudget. The queue keeps to the budget by its own clock, so Do may
// return later if the process is late. If the caller's own context ends, Do returns at once.
func (q *Queue) Do(ctx context.Context, cmds []Cmd) error {
	left := leftOf(ctx)
	if left <= 0 {
		return ErrTimeout
	}
	if b := q.alone(ctx, cmds); b != nil {
		return q.direct(ctx, b, left)
	}
	a := &ask{ctx: ctx, cmds: cmds, done: make(chan struct{}), must: cmds[0].Name() == "eval"}
	if err := q.enter(a, left); err != nil {
		return err
	}
	entered := time.Now()
	select {
	case <-a.done:
	case <-ctx.Done():
		a.finish(ctx.Err())
		<-a.done
	}
	spend(ctx, left-a.at.Sub(entered))
	return a.err
}

func (q *Queue) enter(a *ask, left time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	a.end, a.lost = now.Add(left), q.lost
	for len(q.waiting) > 0 && q.waiting[0].over.Load() {
		q.pop()
	}
	if err := q.refuse(a, now); err != nil {
		q.connect(now) // helps only the next callers
		return err
	}
	q.waiting, q.asks = append(q.waiting, a), append(q.asks, a)
	q.queued += len(a.cmds)
	q.clock.start(q.tick)
	q.start(now)
	return nil
}

func (q *Queue) pop() *ask {
	a := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.queued -= len(a.cmds)
	return a
}

// refuse returns an error if the queue already knows that Redis cannot decide an ask in time.
func (q *Queue) refuse(a *ask, now time.Time) error {
	switch {
	case q.open == 0 && now.Sub(q.failed) < retryAfter:
		return q.failure
	case q.runners == 0 || q.runners < q.calls(now) && float64(q.inFlight) < q.window:
		return nil
	case now.Sub(q.answered) > q.timeout && (q.open+q.opening >= q.enough(now) || q.opening > 0 && now.Sub(q.attempted) > q.timeout):
		if q.lost-q.lostThen > beat {
			return quota.ErrBusy
		}
		return errStalled
	}
	rounds := float64(q.queued) / min(q.window, float64(q.calls(now)*maxBatch))
	if q.late(a, rounds, now) {
		return quota.ErrBusy
	}
	return nil
}

// late reports whether the answer of an ask would be late if the ask is sent after the given
// number of rounds of calls. A call counts as half of the timeout at most: while calls take
// longer, the window shrinks, so that later calls take less time.
func (q *Queue) late(a *ask, rounds float64, now time.Time) bool {
	left := a.end.Sub(now)
	if end, ok := a.ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return !a.must && time.Duration((rounds+1.25)*float64(min(q.service, q.timeout/2))) > left
}

// enough returns how many connections the queue needs at most. A near Redis needs few. But if
// it has not answered for a while, its connections may be dead, and the queue needs others.
func (q *Queue) enough(now time.Time) int {
	if q.quick < near && now.Sub(q.answered) < q.timeout/4 {
		return min(q.most, nearCalls)
	}
	return q.most
}

// calls returns how many calls may be under way.
func (q *Queue) calls(now time.Time) int { return min(q.open, q.enough(now)) }

// tick ends the asks whose time is over, and lets the clock go on while others are not.
func (q *Queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clock.stop()
	now := q.now()
	q.asks = slices.DeleteFunc(q.asks, func(a *ask) bool {
		switch {
		case now.Before(a.end):
		case q.answered.IsZero() && errors.Is(q.failure, quota.ErrUnusable): // see Options.Explain
			a.finish(q.failure)
		case q.inTime.After(a.end.Add(-q.timeout)), q.lost-a.lost > beat:
			a.finish(ErrLate)
		default:
			a.finish(ErrTimeout)
		}
		return a.over.Load()
	})
	if len(q.asks) > 0 {
		q.clock.start(q.tick)
	}
}
