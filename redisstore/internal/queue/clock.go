package queue

import "time"

// A budgetClock measures the time that Redis and the network have used. It stops while the process
// is late, that is, stalled: suspended, not scheduled, or busy with garbage collection. While the
// clock runs, it sets one timer after another. If a timer is overdue, the clock stands still until
// the timer fires.
//
// A budgetClock has no lock.
type budgetClock struct {
	timer *time.Timer
	due   time.Time     // when the timer is due; zero if the clock does not run
	lost  time.Duration // the total delay of the timers
}

const (
	beat     = 5 * time.Millisecond // from one timer to the next
	tolerant = 2 * time.Millisecond // a timer that is at most this late counts as punctual; in an idle process, a timer is up to 1 ms late
)

// now returns the time on the clock. It lags behind the real time by about as much as the process
// has been late.
func (c *budgetClock) now() time.Time {
	now := time.Now()
	if !c.due.IsZero() {
		now = now.Add(-max(0, now.Sub(c.due)-tolerant))
	}
	return now.Add(-c.lost)
}

// start sets the timer, which calls tick on a separate goroutine. It does nothing if the clock
// runs already.
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

// stop is called by tick when the timer has fired.
func (c *budgetClock) stop() {
	c.lost += max(0, time.Since(c.due)-tolerant)
	c.due = time.Time{}
}
