package queue

import "time"

// A budgetClock measures the time that Redis and the network have used. It stops while the process
// is late, that is, suspended, not scheduled, or busy with garbage collection. While the clock
// runs, it sets one timer after another. If a timer is overdue, the clock stops until the timer
// fires.
//
// A budgetClock is not safe for concurrent use.
type budgetClock struct {
	timer *time.Timer
	due   time.Time     // when the timer is due; zero if the clock is not running
	lost  time.Duration // the total delay of the timers
}

const (
	beat     = 5 * time.Millisecond // from one timer to the next
	tolerant = 2 * time.Millisecond // a timer that is at most this late counts as punctual; even in an idle process, timers are up to 1 ms late
)

// now returns the time of the clock, which lags behind the real time by about as long as the
// process has been late.
func (c *budgetClock) now() time.Time {
	now := time.Now()
	if !c.due.IsZero() {
		now = now.Add(-max(0, now.Sub(c.due)-tolerant))
	}
	return now.Add(-c.lost)
}

// start sets the timer, which calls tick in a separate goroutine. If the clock is already running,
// start does nothing.
func (c *budgetClock) start(tick func()) {
	if !c.due.IsZero() {
		return
	}
	c.due = time.Now().Add(beat)
	if c.timer == nil {
		c.timer = time.AfterFunc(beat, tick)
	} else {
		c.timer.Reset(beat)
	}
}

// When the timer has fired, tick calls stop.
func (c *budgetClock) stop() {
	c.lost += max(0, time.Since(c.due)-tolerant)
	c.due = time.Time{}
}
