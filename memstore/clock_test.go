package memstore

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClock: the clock returns the time of the wall clock to the microsecond. It notices
// within a second that the wall clock was set forward or back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		for _, off := range []time.Duration{0, time.Hour, -time.Hour} {
			c.both.Store(&reading{time.Now(), time.Now().Add(off).UnixNano()})
			for _, d := range []time.Duration{0, 999_999_999, 1} {
				time.Sleep(d)
				want := time.Now().UnixMicro()
				if d == 1 {
					off = 0
				}
				if got := c.now() - want; got != off.Microseconds() {
					t.Errorf("%v later: got %d µs off, want %d", d, got, off.Microseconds())
				}
			}
		}
	})
}

func TestClockAllocates(t *testing.T) {
	var c clock
	if n := testing.AllocsPerRun(100, func() { c.now() }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

// TestClockOfBubble: a clock that was read outside a bubble of testing/synctest panics
// inside, and a clock that was read inside panics outside, because instants of one clock
// mean nothing on the other.
func TestClockOfBubble(t *testing.T) {
	refuses := func(c *clock) (refused bool) {
		defer func() { refused = recover() != nil }()
		c.now()
		return false
	}
	var outside, inside, unused clock
	outside.now()
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			if !refuses(&outside) {
				t.Error("read outside, then inside: want a panic each time")
			}
		}
		time.Sleep(time.Hour)
		inside.now()
	})
	synctest.Test(t, func(t *testing.T) {
		if !refuses(&inside) {
			t.Error("read in one bubble, then in another: want a panic")
		}
		if refuses(&unused) { // a clock that was never read can be used anywhere
			t.Error("made outside, first read inside: want no panic")
		}
	})
	if !refuses(&inside) {
		t.Error("read inside, then outside: want a panic")
	}
}
