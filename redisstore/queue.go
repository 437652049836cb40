package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/quota"
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
	bounded bool                                         // send returns when its context ends

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
	mismatch            // of the client and the server

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

// An ask has the commands of one caller. They are sent in one call, in order.
type ask struct {
	ctx  context.Context // ends when the caller gives up
	cmds []once
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

// errLate is the error of a caller whose answer does not come in time while other answers do,
// or while the process is late. Redis or the process has too much to do then, and nothing
// shows that Redis is down.
var errLate = fmt.Errorf("%w under load: %w", ErrTimeout, quota.ErrBusy)

var errStalled = fmt.Errorf("%w: Redis has stopped answering, so the question was not sent", ErrTimeout)

// do sends commands in one call and returns when they have their answers, or ctx ends. If
// there was no answer, do returns an error, and the caller must not use the commands again.
// If Redis answers a command with an error, the command has that error.
//
// The context is a budget. The queue keeps to it by its own clock, so do may return later if
// the process is late. If the caller's own context ends, do returns at once.
func (q *queue) do(ctx context.Context, cmds []once) error {
	left := leftOf(ctx)
	if left <= 0 {
		return ErrTimeout
	}
	if b := q.alone(ctx, cmds); b != nil {
		return q.mismatchOr(q.direct(ctx, b, left))
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
	if a.err != nil {
		return q.mismatchOr(a.err)
	}
	return nil
}

// lone is how many asks in a row must have been alone before the next one that is alone is sent
// by its caller. Among several busy callers, so many are practically never alone.
const lone = 16

// alone returns a batch of the commands if the caller may send them itself, which saves two
// switches between goroutines: nobody else has asked lately, Redis has just answered and is fast,
// and neither the caller nor the client may end before or after the budget. Otherwise it returns
// nil.
func (q *queue) alone(ctx context.Context, cmds []once) *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.runners > 0 || q.queued > 0 {
		q.idle = 0
		return nil
	}
	now := q.now()
	if q.idle++; q.idle <= lone || !q.bounded || q.open == 0 || now.Sub(q.answered) > time.Second || q.service > q.timeout/8 || ctx.Done() != nil {
		return nil
	}
	q.answered, q.lostThen = now, q.lost
	q.runners++
	q.inFlight += len(cmds)
	return &batch{cmds: cmds, underWay: q.inFlight, sent: time.Now(), began: now}
}

// direct sends a batch on the goroutine of its caller.
func (q *queue) direct(ctx context.Context, b *batch, left time.Duration) error {
	sending, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := q.sendSafely(sending, b.cmds)
	took := time.Since(b.sent)
	spend(ctx, left-took)
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.inFlight -= len(b.cmds)
	q.runners--
	q.learn(b, took, now, err)
	q.start(now)
	switch {
	case err == nil:
		return nil
	case took > left+beat: // the deadline has passed long ago, so the process was late
		return errLate
	case took >= left:
		return ErrTimeout
	}
	return failure(b.cmds)
}

func (q *queue) enter(a *ask, left time.Duration) error {
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
func (q *queue) late(a *ask, rounds float64, now time.Time) bool {
	left := a.end.Sub(now)
	if end, ok := a.ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return !a.must && time.Duration((rounds+1.25)*float64(min(q.service, q.timeout/2))) > left
}

// enough returns how many connections the queue needs at most. A near Redis needs few. But if
// it has not answered for a while, its connections may be dead, and the queue needs others.
func (q *queue) enough(now time.Time) int {
	if q.quick < near && now.Sub(q.answered) < q.timeout/4 {
		return min(q.most, nearCalls)
	}
	return q.most
}

// calls returns how many calls may be under way.
func (q *queue) calls(now time.Time) int { return min(q.open, q.enough(now)) }

// start sends waiting commands, as many as connections and the window allow.
func (q *queue) start(now time.Time) {
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
	cmds     []once    // of all asks
	underWay int       // how many commands of this process were under way when it was sent
	sent     time.Time // when it was sent
	began    time.Time // the same by the clock of the queue
}

// take removes the next batch from the queue. It refuses asks whose answers would be late. The
// batch is nil if nothing may be sent now.
func (q *queue) take(now time.Time) *batch {
	if q.runners > 0 && float64(q.inFlight) >= q.window {
		return nil
	}
	b := &batch{}
	room := min(maxBatch, int(q.window)-q.inFlight) // the first ask needs no room
	if q.calls(now) >= maxCalls/2 && float64(q.inFlight+q.queued) < q.window {
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

// run makes calls, one after the other, until no waiting command may be sent now.
func (q *queue) run(b *batch) {
	growStack(0)
	for b != nil {
		err := q.call(b)
		took := time.Since(b.sent)
		for _, a := range b.asks {
			if err == nil {
				a.finish(nil)
			} else {
				a.finish(failure(a.cmds))
			}
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

// interval is the time after which learn looks whether the round trip has become longer.
const interval = 100 * time.Millisecond

// learn adapts the window after a call that took so long. If even without the time for which
// the process was late the call took longer than the round trip plus a third of the rest of
// the timeout, too many commands were under way, perhaps commands of other processes. A single
// such call shows nothing: perhaps only its goroutine was late.
//
// If even the fastest call of an interval takes that long, although the window shrinks, the
// round trip has probably become longer: learn raises trip to the time of that call, but to at
// most half of the timeout. Perhaps other processes load Redis instead, and if all of them
// then made their windows larger, every answer would be late.
func (q *queue) learn(b *batch, took time.Duration, now time.Time, err error) {
	own := min(took, now.Sub(b.began))
	if err != nil { // the connection is lost
		q.open = max(0, q.open-1)
	} else {
		q.answered, q.lostThen = now, q.lost
		if q.since.IsZero() {
			q.service, q.trip, q.fastest, q.quick, q.since = own, took, took, took, now
		}
		if own < q.timeout {
			q.inTime = now
		}
		q.service += (own - q.service) / 8
		q.fastest = min(q.fastest, took)
		if now.Sub(q.since) > interval {
			if q.fastest > q.good() {
				q.trip = min(q.fastest, q.timeout/2)
			}
			q.quick, q.fastest, q.since = q.fastest, took, now
		}
		q.trip = min(q.trip, took)
	}
	good := q.good()
	both := min(own, q.own)
	q.own = own
	switch {
	case own < good && err != nil: // a failure shows nothing of how much Redis can decide
	case own < good && float64(b.underWay) < q.window/2: // the window did not limit the commands
	case own < good:
		q.window = min(q.window+float64(len(b.cmds))/2*float64(good-own)/float64(good-q.trip), maxCalls*maxBatch)
	case both >= good && b.began.After(q.cut):
		q.window = max(minWindow, min(q.window, float64(b.underWay)*float64(good)/float64(both)))
		q.cut = now
	}
}

func (q *queue) good() time.Duration { return q.trip + (q.timeout-q.trip)/3 }

// tick ends the asks whose time is over, and lets the clock go on while others are not.
func (q *queue) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clock.stop()
	now := q.now()
	q.asks = slices.DeleteFunc(q.asks, func(a *ask) bool {
		switch {
		case now.Before(a.end):
		case q.inTime.After(a.end.Add(-q.timeout)), q.lost-a.lost > beat:
			a.finish(errLate)
		default:
			a.finish(ErrTimeout)
		}
		return a.over.Load()
	})
	if len(q.asks) > 0 {
		q.clock.start(q.tick)
	}
}

// call sends the commands of a batch. It returns an error if Redis did not answer.
func (q *queue) call(b *batch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.asks[0].ctx), q.timeout+lateness)
	defer cancel()
	return q.sendSafely(ctx, b.cmds)
}

// failure returns why commands have no answers after a call that failed, or nil if they have.
func failure(cmds []once) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !isAnswer(err) {
			return err
		}
	}
	return nil
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
