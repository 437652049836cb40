package queue

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClock: a clock goes as fast as the time while its timer is set, and stands still while
// the timer is overdue. It never goes back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{}
		begin := time.Now()
		check := func(when string, want time.Duration) {
			t.Helper()
			if got := c.now().Sub(begin); got != want {
				t.Errorf("%s: got %v, want %v", when, got, want)
			}
		}
		late := func() {} // a tick that has not run yet
		time.Sleep(time.Second)
		check("not started", time.Second)
		c.start(late)
		time.Sleep(beat)
		check("the timer is due", time.Second+beat)
		time.Sleep(40 * time.Millisecond)
		check("the timer is overdue", time.Second+beat+tolerant)
		c.stop()
		check("the tick has run", time.Second+beat+tolerant)
		c.start(late)
		time.Sleep(beat)
		c.stop()
		check("the next tick is in time", time.Second+2*beat+tolerant)
	})
}
