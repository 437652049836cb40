package memstore

import (
	"sync/atomic"
	"time"
)

// A clock returns the wall-clock time twice as fast as time.Now. It keeps a reading of the wall
// clock and the monotonic clock. For a second, it reads only the monotonic clock and adds the
// elapsed time to the reading. Then it reads both clocks again. Within a second, it therefore
// notices that the wall clock was set or that the machine was suspended.
type clock struct {
	both atomic.Pointer[reading]
}

type reading struct {
	time time.Time // including the monotonic clock reading
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

// bubbled reports whether the time was read in a testing/synctest bubble. Only such a time has no
// monotonic clock reading.
func (r *reading) bubbled() bool { return r.time == r.time.Round(0) }

// read reads both clocks, the wall clock first. If the thread is paused between the two, c is slow
// by the length of the pause, until the next reading. Therefore read makes three readings and keeps
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
	// A state that was written with one clock has no meaning with another: keys could be refused
	// for decades. A step of the wall clock outside a bubble causes no panic, because a reading
	// shows whether it was made in a bubble.
	if last := c.both.Load(); last != nil && (last.bubbled() != r.bubbled() || r.bubbled() && r.time.Before(last.time)) {
		panic("memstore: this store has counted on another clock, outside or inside a bubble of testing/synctest: each bubble needs a separate store")
	}
	c.both.Store(r)
	return r.wall / 1000
}
