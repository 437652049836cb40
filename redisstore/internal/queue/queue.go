// Package queue sends the commands of many callers to one Redis. Do returns within the time
// budget of its caller, whatever Redis, the network and the client do. It is based on three
// ideas:
//
//   - A window limits how many commands are in flight. It grows while answers are fast, and
//     shrinks while they take more than a third of the timeout. Commands that exceed the window
//     wait, and are sent together. If Redis cannot answer all waiting commands in time, the
//     queue refuses further commands on arrival, which costs Redis nothing. See window.go.
//   - A caller that has been alone for a while sends its commands itself. See lone.go.
//   - A connection whose answer is late is kept, because a new one would be no faster. Calls
//     therefore run on goroutines of the queue, so that a caller can return before its call does.
//     Calls use only connections that have worked; connect opens new ones. See batch.go,
//     connect.go.
//
// The clock of a budget stops while the process itself is late, so that a busy process does not
// look like a slow Redis. See clock.go, prompt.go. The kernel shows which of the two is late: see
// conns.go. The goroutines of a queue end when no command waits. README.md contains the reasons and
// the measurements.
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
	MaxCalls    = 32  // calls in flight to one Redis; with more calls, each would only contain fewer commands
	nearCalls   = 8   // calls in flight to a near Redis; with more, nearly every command would be sent alone
	maxBatch    = 128 // commands in a call; Redis takes about a millisecond for 128
	minWindow   = 1   // commands in flight, however slow Redis is
	firstWindow = 256 // commands in flight before the first answer
	lone        = 16  // number of consecutive times that a caller must be alone before it sends its commands itself: see alone

	near     = 2 * time.Millisecond   // Redis is near if calls take less
	interval = 100 * time.Millisecond // how often learn checks whether the round trip has become longer
	Lateness = 250 * time.Millisecond // a connection is kept if its answer is at most this late

	crowdedFor  = time.Second            // the time for which calls do not yield, after yielding to other goroutines has taken longer than beat
	mostHeld    = time.Second            // an answer that the kernel has received is read within this time
	ConnectTime = time.Second            // for TCP, TLS, HELLO and AUTH together, unless Timeout is longer than 750 ms
	redialAfter = 200 * time.Millisecond // between attempts to connect, if as many connections are being opened as are open
	retryAfter  = 20 * time.Millisecond  // from a failed attempt to the next attempt, while no connection is open
)

// Options are the options of New.
type Options struct {
	Client  redis.UniversalClient // of one Redis, which may be a master behind Sentinels
	Conns   *Conns                // its connections; nil if they are not known
	Timeout time.Duration         // the usual budget, above 0: the window is adapted to it

	Slow *atomic.Int64 // a Redis may be too slow for Timeout until this time, in ns since 1970; 0 at first

	// Explain, if not nil, gets the error of an attempt to connect to a Redis that has never
	// answered, and returns a more detailed error. Once Explain returns a quota.ErrUnusable, all
	// callers get this error. Explain may block.
	Explain func(error) error
}

// A Queue sends commands to one Redis. It is safe for concurrent use.
type Queue struct {
	send    func(ctx context.Context, cmds []Cmd) error // see the function send
	explain func(error) error                           // see Options
	timeout time.Duration                               // see Options
	conns   *Conns                                      // see Options
	most    int                                         // maximum number of connections
	others  func(known int) bool                        // see Conns.fault
	bounded bool                                        // send returns when its context ends

	slowStore *atomic.Int64 // see Options.Slow

	mu sync.Mutex // guards all fields below
	backlog
	connections
	pace
	budgetClock
	slow slowness

	slowEnded  time.Time // when Redis was last found to be fast enough again
	quickCalls int       // how many calls in a row must be quick until Redis is no longer too slow: see slowUntil

	fault fault         // why calls had no answers at the last tick; unknown since the next answer
	held  time.Duration // total time for which fault has stopped the clock
	idle  int           // number of consecutive requests that have found the queue empty: see alone
}

// A backlog contains the commands that wait and those that are in flight.
type backlog struct {
	requests []*request // all requests that are not over, and some that are
	waiting  []*request
	sent     []*batch // the calls in flight, oldest first
	queued   int      // commands waiting
	runners  int      // calls in flight
	inFlight int      // commands in flight

	gathering *batch    // the batch for which commands are gathered, or nil: see run
	crowded   time.Time // until then, calls do not yield to other goroutines
}

// New returns a queue, which starts to open a connection. Redis need not be up.
func New(o Options) *Queue {
	q := &Queue{explain: o.Explain, conns: o.Conns, timeout: o.Timeout, most: MaxCalls, slowStore: o.Slow, pace: pace{window: firstWindow}}
	q.others = func(int) bool { return true }
	if single, ok := o.Client.(*redis.Client); ok {
		c := single.Options()
		q.most, q.bounded = min(q.most, c.PoolSize), true
		q.others = func(known int) bool {
			s := single.PoolStats()
			return int(s.TotalConns) > known || s.IdleConns == 0 && int(s.TotalConns) >= c.PoolSize
		}
		if !c.ContextTimeoutEnabled {
			bounded := single.WithTimeout(o.Timeout + Lateness)
			bounded.Options().ContextTimeoutEnabled = true // of the copy only
			o.Client = bounded
		}
	}
	q.send = func(ctx context.Context, cmds []Cmd) error { return send(ctx, o.Client, cmds) }
	q.connect(q.now())
	return q
}

// A request contains the commands of one caller, which are sent in one call, in order.
type request struct {
	ctx  context.Context // ends when the caller gives up
	cmds []Cmd
	end  time.Time     // when the queue gives up
	lost time.Duration // by how much the clock was late when the request arrived
	held time.Duration // for how long the clock had been stopped when the request arrived
	must bool          // send cmds even if they are late, because they load a script into Redis
	over atomic.Bool   // cmds have their answers, or err is set
	err  error         // why there is no answer
	at   time.Time     // when it was over
	done chan struct{} // closed once the request is over
}

// finish ends a request, unless it is over.
func (a *request) finish(err error) {
	if a.over.CompareAndSwap(false, true) {
		a.err, a.at = err, time.Now()
		close(a.done)
	}
}

// ErrTimeout is returned to a caller whose budget ran out before the answer arrived.
var ErrTimeout error = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string { return "redisstore: no answer in time" }
func (timeoutError) Timeout() bool { return true }

// ErrLate is returned to a caller whose answer did not arrive in time although other answers did,
// or because the process was late. In this case, Redis or the process is overloaded, but nothing
// shows that Redis is down.
var ErrLate = fmt.Errorf("%w under load: %w", ErrTimeout, quota.ErrBusy)

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// Do sends commands in one call, in order, and returns when they have their answers or when ctx
// ends. If Redis answers a command with an error, the command has that error. If there was no
// answer, Do returns an error, and the caller must not use the commands again. The error is
// ErrTimeout, quota.ErrBusy if Redis or the process is overloaded, the error of ctx, or the
// reason why there is no connection. If the error is quota.ErrBusy but not ErrTimeout, the
// commands were not sent.
//
// The context must come from WithBudget. The queue measures the budget with its own clock, so Do
// may return later if the process is late. If the caller's own context ends, Do returns at once.
func (q *Queue) Do(ctx context.Context, cmds []Cmd) error {
	left := LeftOf(ctx)
	if left <= 0 {
		return ErrTimeout
	}
	if b := q.alone(ctx, cmds); b != nil {
		return q.direct(ctx, b, left)
	}
	a := &request{ctx: ctx, cmds: cmds, done: make(chan struct{}), must: cmds[0].Name() == "eval"}
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

func (q *Queue) enter(a *request, left time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	a.end, a.lost, a.held = now.Add(left), q.lost, q.held
	for len(q.waiting) > 0 && q.waiting[0].over.Load() {
		q.pop()
	}
	if err := q.refuse(a, now); err != nil {
		q.slow.failed++
		q.connect(now) // helps only the next callers
		return err
	}
	q.waiting, q.requests = append(q.waiting, a), append(q.requests, a)
	q.queued += len(a.cmds)
	q.budgetClock.start(q.tick)
	q.start(now)
	return nil
}

func (q *Queue) pop() *request {
	a := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.queued -= len(a.cmds)
	return a
}

// refuse returns an error if the queue already knows that Redis cannot answer a request in time.
func (q *Queue) refuse(a *request, now time.Time) error {
	switch {
	case q.open == 0 && now.Sub(q.failed) < retryAfter:
		return q.failure
	case q.runners == 0 || q.runners < q.calls(now) && float64(q.inFlight) < q.window:
		return nil
	case q.silent(now):
		if q.fault == unknown && q.lost-q.lostThen > beat {
			return quota.ErrBusy
		}
		return errStalled
	}
	rounds := float64(q.queued) / min(q.window, float64(q.calls(now)*maxBatch))
	if q.late(a, rounds, now) {
		return q.surplus()
	}
	return nil
}

// surplus returns the error for a request that is not sent because its answer would be late.
func (q *Queue) surplus() error {
	if q.fault == notHeard {
		return errStalled
	}
	return quota.ErrBusy
}

// silent reports whether Redis has not answered for a whole timeout, and no new connection
// can help soon.
func (q *Queue) silent(now time.Time) bool {
	late := q.opening > 0 && now.Sub(q.attempted) > q.timeout
	stopped := q.fault == notHeard || q.fault == unknown && now.Sub(q.answered) > q.timeout
	return stopped && (late || q.open+q.opening >= q.enough(now))
}

// late reports whether the answer to a request would be late if the request were sent after the
// given number of rounds of calls. For this estimate, a call takes at most half of the timeout:
// while calls take longer than that, the window shrinks, so later calls take less time.
func (q *Queue) late(a *request, rounds float64, now time.Time) bool {
	left := a.end.Sub(now)
	if end, ok := a.ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return !a.must && time.Duration((rounds+1.25)*float64(min(q.service, q.timeout/2))) > left
}

// enough returns the maximum number of connections that the queue needs. A near Redis needs few.
// However, if Redis has not answered for a while, its connections may be dead, so the queue needs
// new ones.
func (q *Queue) enough(now time.Time) int {
	if q.quick < near && now.Sub(q.answered) < q.timeout/4 {
		return min(q.most, nearCalls)
	}
	return q.most
}

// calls returns how many calls may be in flight.
func (q *Queue) calls(now time.Time) int { return min(q.open, q.enough(now)) }

// tick ends the requests whose time is over, and keeps the clock running while there are other
// requests. The clock stops while the process is late, but not while Redis is silent.
func (q *Queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.budgetClock.stop()
	if q.fault = q.whoseFault(); q.fault == isLate {
		q.lost += beat
		q.held += beat
	}
	now := q.now()
	q.requests = slices.DeleteFunc(q.requests, func(a *request) bool {
		stopped := q.fault == notHeard && !time.Now().Before(a.end.Add(a.lost))
		if stopped || q.held-a.held > mostHeld || !now.Before(a.end) && q.fault != tooSoon {
			if !a.over.Load() { // otherwise it has been answered since the last beat
				a.finish(q.tooLate(a))
			}
		}
		return a.over.Load()
	})
	if len(q.requests) > 0 {
		q.budgetClock.start(q.tick)
		if q.gathering != nil {
			q.start(now)
		}
	}
}

// tooLate returns the error for a request whose time is over.
func (q *Queue) tooLate(a *request) error {
	q.slow.failed++
	switch {
	case q.answered.IsZero() && errors.Is(q.failure, quota.ErrUnusable): // see Options.Explain
		return q.failure
	case q.fault == notHeard, q.fault == unknown && !q.inTime.After(a.end.Add(-q.timeout)) && q.lost-a.lost <= beat:
		if q.slow.err != nil {
			return q.slow.err
		}
		return ErrTimeout
	}
	return ErrLate
}

// whoseFault returns why the calls in flight have no answers.
func (q *Queue) whoseFault() fault {
	n, sent := 0, time.Now()
	for n < len(q.sent) && time.Since(q.sent[n].sent) >= beat {
		sent = q.sent[0].sent
		n++
	}
	return q.conns.fault(n, sent, q.timeout, q.others)
}
