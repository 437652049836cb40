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
// look like a slow Redis. See clock.go, prompt.go. The kernel says which of them is late: conns.go. The goroutines of a queue end when no command
// waits. README.md has the reasons and the measurements.
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
	lone        = 16  // a caller must have been alone so often in a row to send its commands itself: see alone

	near     = 2 * time.Millisecond   // Redis is near if calls take less
	interval = 100 * time.Millisecond // after it, learn looks whether the round trip has become longer
	Lateness = 250 * time.Millisecond // a connection is kept if its answer is at most this late

	crowdedFor  = time.Second            // how long calls do not wait for other goroutines once these took longer than beat
	mostHeld    = time.Second            // an answer that the kernel has is read within this time
	ConnectTime = time.Second            // for TCP, TLS, HELLO and AUTH together, unless Timeout is longer than 750 ms
	redialAfter = 200 * time.Millisecond // between attempts to connect, if as many are under way as are open
	retryAfter  = 20 * time.Millisecond  // from a failed attempt to the next, while no connection is open
)

// Options are the options of New.
type Options struct {
	Client  redis.UniversalClient // of one Redis, which may be a master behind Sentinels
	Conns   *Conns                // its connections; nil if they are not known
	Timeout time.Duration         // the usual budget, above 0: the window is made for it

	Slow *atomic.Int64 // until then, in ns since 1970, a Redis may be too slow for Timeout; 0 at first

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
	conns   *Conns                                      // see Options
	most    int                                         // the most connections
	others  func(known int) bool                        // see Conns.fault
	bounded bool                                        // send returns when its context ends

	slowStore *atomic.Int64 // see Options.Slow

	mu sync.Mutex // of all that follows
	backlog
	connections
	pace
	budgetClock
	slow slowness

	slowEnded  time.Time // when Redis was last no longer too slow
	quickCalls int       // how many calls in a row must be quick until it is not: see slowUntil

	fault fault         // why calls had no answers at the last tick; unknown since the next answer
	held  time.Duration // by how much fault has held up the clock
	idle  int           // how many requests in a row have found the queue empty: see alone
}

// A backlog is what waits and what is under way.
type backlog struct {
	requests []*request // all that are not over, and some that are
	waiting  []*request
	sent     []*batch // the calls under way, the oldest first
	queued   int      // commands waiting
	runners  int      // calls under way
	inFlight int      // commands under way

	gathering *batch    // of the call that has no commands yet, or nil: see run
	crowded   time.Time // until then, calls do not wait for other goroutines
}

// New returns a queue, which starts to make a connection. Redis need not be up.
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

// A request has the commands of one caller. They are sent in one call, in order.
type request struct {
	ctx  context.Context // ends when the caller gives up
	cmds []Cmd
	end  time.Time     // when the queue gives up
	lost time.Duration // what the clock had lost when the request came
	held time.Duration // for how long the clock had been held
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

// refuse returns an error if the queue already knows that Redis cannot decide a request in time.
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

// surplus returns the error of a request that is not sent, because its answer would be late.
func (q *Queue) surplus() error {
	if q.fault == notHeard {
		return errStalled
	}
	return quota.ErrBusy
}

// silent reports whether Redis has not answered for a timeout, and no new connection can help
// before long.
func (q *Queue) silent(now time.Time) bool {
	late := q.opening > 0 && now.Sub(q.attempted) > q.timeout
	stopped := q.fault == notHeard || q.fault == unknown && now.Sub(q.answered) > q.timeout
	return stopped && (late || q.open+q.opening >= q.enough(now))
}

// late reports whether the answer of a request would be late if the request is sent after the given
// number of rounds of calls. A call counts as half of the timeout at most: while calls take
// longer, the window shrinks, so that later calls take less time.
func (q *Queue) late(a *request, rounds float64, now time.Time) bool {
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

// tick ends the requests whose time is over, and lets the clock go on while others are not. If the
// process is late, the clock stands still. If Redis is silent, it does not count.
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
			if !a.over.Load() { // else it has been answered since the last beat
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

// tooLate returns the error of a request whose time is over.
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

// whoseFault returns why the calls under way have no answers.
func (q *Queue) whoseFault() fault {
	n, sent := 0, time.Now()
	for n < len(q.sent) && time.Since(q.sent[n].sent) >= beat {
		sent = q.sent[0].sent
		n++
	}
	return q.conns.fault(n, sent, q.timeout, q.others)
}
