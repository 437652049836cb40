package scene

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOutage sends 30 requests to three replicas while the store works and while it is down.
func TestOutage(t *testing.T) {
	for policy, want := range map[string]int{"open": 30, "closed": 0, "memory": 9} { // a third of 10 for each replica, rounded down
		synctest.Test(t, func(t *testing.T) {
			o := NewOutage(3, policy)
			passed := func() (n int) {
				for i := range 30 {
					status, asked := o.Request(i % 3)
					if status == 200 {
						n++
					}
					if asked == o.store.down {
						t.Errorf("%s: the store decided: %v", policy, asked)
					}
				}
				return n
			}
			if got := passed(); got != 10 {
				t.Errorf("%s: with the store %d passed, want 10", policy, got)
			}
			time.Sleep(10 * time.Second)
			o.Stop(true)
			if got := passed(); got != want {
				t.Errorf("%s: without the store %d passed, want %d", policy, got, want)
			}
			time.Sleep(10 * time.Second)
			o.Stop(false)
			if got := passed(); got < 10 || got > 20 {
				t.Errorf("%s: with the store again %d passed, want 10", policy, got)
			}
		})
	}
}
