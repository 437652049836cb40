package queue

import "time"

// A pace holds what the queue knows about the speed of Redis.
type pace struct {
	window float64   // how many commands may be in flight
	cut    time.Time // when the window last became smaller

	answered time.Time     // when the last answer arrived, or the first call in flight was sent
	lostThen time.Duration // budgetClock.lost at the time answered
	inTime   time.Time     // when the last answer arrived within the timeout
	service  time.Duration // how long a call takes, as a moving average: see learn
	trip     time.Duration // an estimate of the round trip: usually the time of the fastest call (see learn)
	quickAt  time.Time     // when the last call that was not slow ended: see learn
	own      time.Duration // how long the last call took, without the time for which the process was late

	since   time.Time     // when the current interval began: see learn
	fastest time.Duration // the time of the fastest call in the current interval
	quick   time.Duration // the time of the fastest call in the previous interval
}

// learn adapts the window after a call that took the given time. A call is slow if, without the
// time for which the process was late, it took longer than the round trip plus a third of the rest
// of the timeout. Too many commands were then in flight, perhaps from other processes. A single
// slow call is ignored, because perhaps only its goroutine was late. Slow calls are also ignored
// while other calls are quick. In this case, Redis has paused for a moment, perhaps because the
// operating system suspended it, and a smaller window would not have helped. For the same reason, a
// call contributes to service at most twice the average plus 1 ms.
//
// If even the fastest call of an interval is slow although the window shrinks, the round trip has
// probably become longer. In this case, learn raises q.trip to the time of that call, but to at
// most half of the timeout. This bound is needed because the reason may be load from other
// processes: if all of them enlarged their windows, every answer would be late.
func (q *Queue) learn(b *batch, took time.Duration, now time.Time, err error) {
	own := max(0, min(took, now.Sub(b.began))) // tick may have set the clock back

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
		q.judge(len(b.cmds), took, took > own, now)
		q.service += (min(own, 2*q.service+time.Millisecond) - q.service) / 8
		q.fastest = min(q.fastest, took)
		if now.Sub(q.since) > interval {
			if q.fastest > q.good() {
				q.trip = min(q.fastest, q.timeout/2)
			}
			q.quick, q.fastest, q.since = q.fastest, took, now
		}
		q.trip = min(q.trip, took)
	}
	q.resize(b, own, now, err)
}

// resize adapts the window after a call that took the time own without the time for which the
// process was late.
func (q *Queue) resize(b *batch, own time.Duration, now time.Time, err error) {
	good := q.good()
	if own < good && err == nil {
		q.quickAt = now
	}
	both := min(own, q.own)
	q.own = own
	switch {
	case own < good && err != nil: // a failure does not show how much Redis can handle
	case own < good && float64(b.underWay) < q.window/2: // the window did not limit the commands
	case own < good:
		q.window = min(q.window+float64(len(b.cmds))/2*float64(good-own)/float64(good-q.trip), MaxCalls*maxBatch)
	case both >= good && now.Sub(q.quickAt) >= q.timeout && b.began.After(q.cut):
		q.window = max(minWindow, min(q.window, float64(b.underWay)*float64(good)/float64(both)))
		q.cut = now
	}
}

func (q *Queue) good() time.Duration { return q.trip + (q.timeout-q.trip)/3 }
