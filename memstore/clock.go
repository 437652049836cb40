package memstore

import (
	"sync/atomic"
	"time"
)

// A clock tells the wall's time for half the price: it reads the monotonic
// clock, and counts from when it last read both. It does that again after a
// second, so that a wall clock that was set, or a machine that slept, is noticed
// within one.
type clock struct {
	both atomic.Pointer[reading]
}

type reading struct {
	time time.Time // with its monotonic part
	wall int64     // ns since 1970
}

// now returns µs since 1970.
func (c *clock) now() int64 {
	if r := c.both.Load(); r != nil {
		if since := time.Since(r.time); uint64(since) < uint64(time.Second) {
			return (r.wall + int64(since)) / 1000
		}
	}
	return c.read()
}

// bubbled reports whether a time was read in a bubble of testing/synctest: only there
// it has no monotonic part.
func (r *reading) bubbled() bool { return r.time == r.time.Round(0) }

// read reads both clocks, the wall's first. A thread that is held up between the
// two is late by as much ever after, so the best of three is taken.
func (c *clock) read() int64 {
	r := &reading{time: time.Now()}
	r.wall = r.time.UnixNano()
	for range 2 {
		again := time.Now()
		if wall := again.UnixNano(); wall-r.wall > int64(again.Sub(r.time)) {
			r = &reading{again, wall}
		}
	}
	// What was counted on another clock means nothing on this one: keys would be
	// refused for decades. The two kinds of clock can't be taken for one another,
	// however often a wall clock is set.
	if last := c.both.Load(); last != nil && (last.bubbled() != r.bubbled() || r.bubbled() && r.time.Before(last.time)) {
		panic("memstore: this store has counted outside this bubble of testing/synctest, on another clock: make it inside the bubble")
	}
	c.both.Store(r)
	return r.wall / 1000
}
