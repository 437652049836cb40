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
	c.both.Store(r)
	return r.wall / 1000
}
