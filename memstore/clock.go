package memstore

import (
	"sync/atomic"
	"time"
)

// A clock returns the time of the wall clock, in half the time that time.Now takes. It keeps one
// reading of the wall clock and of the monotonic clock. For a second after that reading, it reads
// only the monotonic clock, and adds the time that has passed. Then it reads both clocks again, so
// within a second it notices that the wall clock was set or that the machine was suspended.
type clock struct {
	both atomic.Pointer[reading]
}

type reading struct {
	time time.Time // with its monotonic part
	wall int64     // ns since 1970
}

// now returns the time in µs since 1970.
func (c *clock) now() int64 {
	if r := c.both.Load(); r != nil {
		if since := time.Since(r.time); uint64(since) < uint64(time.Second) {
			return (r.wall + int64(since)) / 1000
		}
	}
	return c.read()
}

// bubbled reports whether the time was read in a bubble of testing/synctest: only such a
// time has no monotonic part.
func (r *reading) bubbled() bool { return r.time == r.time.Round(0) }

// read reads both clocks, the wall clock first. If the thread is paused between the two, c is late
// by the length of the pause until the next reading. Therefore read makes three readings and keeps
// the one with the shortest pause.
func (c *clock) read() int64 {
	r := &reading{time: time.Now()}
	r.wall = r.time.UnixNano()
	for range 2 {
		again := time.Now()
		if wall := again.UnixNano(); wall-r.wall > int64(again.Sub(r.time)) {
			r = &reading{again, wall}
		}
	}
	// A state that was written on one clock has no meaning on another: keys could be
	// refused for decades. Because a reading shows whether it was made in a bubble, a step
	// of the wall clock outside a bubble causes no panic.
	if last := c.both.Load(); last != nil && (last.bubbled() != r.bubbled() || r.bubbled() && r.time.Before(last.time)) {
		panic("memstore: this store has counted on another clock, outside or inside a bubble of testing/synctest: each bubble needs a separate store")
	}
	c.both.Store(r)
	return r.wall / 1000
}
