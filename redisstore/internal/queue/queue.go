// Package queue sends the commands of many callers to one Redis. Do returns within the caller's
// time budget, whatever Redis, the network and the client do. The package is based on three ideas:
//
//   - A window limits how many commands are in flight. The window grows while answers are fast, and
//     shrinks while answers take more than a third of the timeout. Commands that exceed the window
//     wait, and are sent together. If Redis cannot answer all waiting commands in time, the queue
//     refuses further commands immediately, which costs Redis nothing. See window.go.
//   - A caller that has been the only one for a while sends its commands itself. See lone.go.
//   - A connection whose answer is late is kept, because a new one would be no faster. Calls
//     therefore run in goroutines of the queue, so that a caller can return before the call does.
//     Calls use only connections that have worked; the method connect opens new ones. See batch.go
//     and connect.go.
//
// The clock that measures budgets stops while the process itself is late, that is, suspended or
// overloaded. A busy process therefore does not look like a slow Redis. See clock.go and prompt.go.
// The kernel shows whether Redis or the process is late: see conns.go. The goroutines of a queue
// end when no command waits. README.md contains the reasons and the measurements.
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
	MaxCalls    = 32  // maximum number of calls in flight to one Redis; more calls would only contain fewer commands each
	nearCalls   = 8   // the same for a near Redis; with more calls, almost every command would be sent alone
	maxBatch    = 128 // maximum number of commands in a call; Redis takes about a millisecond for 128
	minWindow   = 1   // minimum window, however slow Redis is
	firstWindow = 256 // window before the first answer
	lone        = 16  // after this many consecutive requests without other callers, a caller sends its commands itself: see loneBatch

	near     = 2 * time.Millisecond   // Redis is near if calls take less
	interval = 100 * time.Millisecond // how often learn checks whether the round trip has become longer
	Lateness = 250 * time.Millisecond // a connection is kept if its answer is at most this late

	crowdedFor  = time.Second            // how long calls do not yield to other goroutines after yielding has taken longer than beat
	mostHeld    = time.Second            // an answer that the kernel has received is read within this time
	ConnectTime = time.Second            // timeout for TCP, TLS, HELLO and AUTH together, unless Timeout is longer than 750 ms
	redialAfter = 200 * time.Millisecond // time between attempts to connect, if at least as many connections are being opened as are open
	retryAfter  = 20 * time.Millisecond  // time from a failed attempt to the next one, while no connection is open
)

// Options are the options of New.
type Options struct {
	Client  redis.UniversalClient // a client of one Redis, which may be a master behind Sentinels
	Conns   *Conns                // the client's connections; nil if they are not known
	Timeout time.Duration         // the usual budget, which must be positive; the window is adapted to it

	Slow *atomic.Int64 // time, in ns since 1970, until which a Redis may be too slow for Timeout; 0 at first

	// Explain, if not nil, is called with the error of an attempt to connect to a Redis that has
	// never answered, and returns a more detailed error. If that error is a quota.ErrUnusable, all
	// callers get it. Explain may block.
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
	bounded bool                                        // send returns when its context is done

	slowStore *atomic.Int64 // see Options.Slow

	idle atomic.Int32 // how many consecutive requests have found the queue empty; changed only by enter

	mu sync.Mutex // guards all fields below
	backlog
	connections
	pace
	budgetClock
	slow slowDetector

	slowEnded  time.Time // when Redis was last found to be fast enough again
	quickCalls int       // how many consecutive calls must be quick until Redis is no longer too slow: see slowUntil

	fault fault         // why calls had no answers at the last tick; unknown after the next answer
	held  time.Duration // the total time for which the clock was stopped because of fault
}

// A backlog contains the commands that are waiting or in flight.
type backlog struct {
	requests []*request // all requests that are not over, and some that are over
	waiting  []*request
	sent     []*batch // the calls in flight, oldest first
	queued   int      // how many commands are waiting
	runners  int      // how many calls are in flight
	inFlight int      // how many commands are in flight

	gathering *batch    // the batch for which commands are gathered, or nil: see run
	crowded   time.Time // calls do not yield to other goroutines until this time
}

// New returns a queue, and starts to open a connection. Redis need not be up.
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
			bounded.Options().ContextTimeoutEnabled = true // changes only the copy
			o.Client = bounded
		}
	}
	q.send = func(ctx context.Context, cmds []Cmd) error { return send(ctx, o.Client, cmds) }
	q.connect(q.now())
	return q
}

// A request contains the commands of one caller, which are sent in one call, in order.
type request struct {
	ctx  context.Context // done when the caller gives up
	cmds []Cmd
	end  time.Time     // when the queue gives up
	lost time.Duration // by how much the clock lagged behind when the request arrived
	held time.Duration // Queue.held when the request arrived
	must bool          // send cmds even if the answers will be late, because cmds load a script into Redis
	over atomic.Bool   // cmds have their answers, or err is set
	err  error         // why there is no answer
	at   time.Time     // when the request was over
	done chan struct{} // closed once the request is over
}

// finish ends a request that is not over yet.
func (a *request) finish(err error) {
	if a.over.CompareAndSwap(false, true) {
		a.err, a.at = err, time.Now()
		close(a.done)
	}
}

// ErrTimeout is returned to a caller if the budget is used up before the answer arrives.
var ErrTimeout error = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string { return "redisstore: no answer in time" }
func (timeoutError) Timeout() bool { return true }

// ErrLate is returned to a caller if the answer did not arrive in time although other answers did,
// or if the process was late. Redis or the process is then overloaded, but nothing shows that Redis
// is down.
var ErrLate = fmt.Errorf("%w under load: %w", ErrTimeout, quota.ErrBusy)

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// Do sends commands in one call, in order, and returns when all are answered or ctx is done. If
// Redis answers a command with an error, Do sets that error in the command. If a command got no
// answer, Do returns an error, and the caller must not use the commands again. The error is
// ErrTimeout, quota.ErrBusy if Redis or the process is overloaded, the error of ctx, or the reason
// why there is no connection. If the error is quota.ErrBusy but not ErrTimeout, the commands were
// not sent.
//
// The context must come from WithBudget. The queue measures the budget by its own clock, so Do may
// return later if the process is late. If the caller's own context is done, Do returns immediately.
func (q *Queue) Do(ctx context.Context, cmds []Cmd) error {
	left := LeftOf(ctx)
	if left <= 0 {
		return ErrTimeout
	}
	if b := q.loneBatch(ctx, cmds); b != nil {
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
	spendBudget(ctx, left-a.at.Sub(entered))
	return a.err
}

func (q *Queue) enter(a *request, left time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	a.end, a.lost, a.held = now.Add(left), q.lost, q.held
	if q.idle.Add(1); q.runners > 0 || q.queued > 0 {
		q.idle.Store(0)
	}
	for len(q.waiting) > 0 && q.waiting[0].over.Load() {
		q.pop()
	}
	if err := q.refuse(a, now); err != nil {
		q.slow.failed++
		q.connect(now) // a new connection helps only later callers
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
	case q.runners == 0 || q.runners < q.maxCalls(now) && float64(q.inFlight) < q.window:
		return nil
	case q.isSilent(now):
		if q.fault == unknown && q.lost-q.lostThen > beat {
			return quota.ErrBusy
		}
		return errStalled
	}
	rounds := float64(q.queued) / min(q.window, float64(q.maxCalls(now)*maxBatch))
	if q.isLate(a, rounds, now) {
		return q.surplus()
	}
	return nil
}

// surplus returns the error for a request that is not sent because the answer would be late.
func (q *Queue) surplus() error {
	if q.fault == notHeard {
		return errStalled
	}
	return quota.ErrBusy
}

// isSilent reports whether Redis has not answered for a whole timeout and a new connection cannot
// help soon.
func (q *Queue) isSilent(now time.Time) bool {
	late := q.opening > 0 && now.Sub(q.attempted) > q.timeout
	stopped := q.fault == notHeard || q.fault == unknown && now.Sub(q.answered) > q.timeout
	return stopped && (late || q.open+q.opening >= q.maxConns(now))
}

// isLate reports whether the answer to a request would be late if the request were sent after the
// given number of rounds of calls. The estimate assumes that a call takes at most half of the
// timeout: while calls take longer, the window shrinks, and later calls take less time.
func (q *Queue) isLate(a *request, rounds float64, now time.Time) bool {
	left := a.end.Sub(now)
	if end, ok := a.ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return !a.must && time.Duration((rounds+1.25)*float64(min(q.service, q.timeout/2))) > left
}

// maxConns returns the maximum number of connections that the queue needs. For a near Redis, a few
// suffice. However, if Redis has not answered for a while, the connections may be dead, so the
// queue needs new ones.
func (q *Queue) maxConns(now time.Time) int {
	if q.quick < near && now.Sub(q.answered) < q.timeout/4 {
		return min(q.most, nearCalls)
	}
	return q.most
}

// maxCalls returns how many calls may be in flight.
func (q *Queue) maxCalls(now time.Time) int { return min(q.open, q.maxConns(now)) }

// tick ends the requests whose time is over, and keeps the clock running while any requests are
// left. The clock stops while the process is late, but not while Redis is silent.
func (q *Queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.budgetClock.stop()
	if q.fault = q.whoseFault(); q.fault == processLate {
		q.lost += beat
		q.held += beat
	}
	now := q.now()
	q.requests = slices.DeleteFunc(q.requests, func(a *request) bool {
		stopped := q.fault == notHeard && !time.Now().Before(a.end.Add(a.lost))
		if stopped || q.held-a.held > mostHeld || !now.Before(a.end) && q.fault != tooSoon {
			if !a.over.Load() { // if it is over, it has been answered since the last tick
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

// whoseFault returns the reason why the calls in flight have no answers.
func (q *Queue) whoseFault() fault {
	n, sent := 0, time.Now()
	for n < len(q.sent) && time.Since(q.sent[n].sent) >= beat {
		sent = q.sent[0].sent
		n++
	}
	return q.conns.fault(n, sent, q.timeout, q.others)
}
