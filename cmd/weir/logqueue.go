package main

import (
	"io"
	"sync/atomic"
	"time"
)

// A logQueue is a Writer that never blocks. Otherwise, requests would be delayed if nobody reads
// the log, for example if it is a full pipe. Lines wait in a queue until the underlying Writer
// takes them. If the queue is full, a line is dropped and counted.
type logQueue struct {
	lines   chan []byte
	dropped atomic.Int64
	done    chan struct{} // closed when all lines are written after close
}

// mostQueued is the maximum number of lines that wait. A line has a few hundred bytes.
const mostQueued = 4096

// newLogQueue returns a queue for w. It reports the number of dropped lines to unlogged, which must
// log this number to w.
func newLogQueue(w io.Writer, unlogged func(n int64)) *logQueue {
	q := &logQueue{lines: make(chan []byte, mostQueued), done: make(chan struct{})}
	go func() {
		defer close(q.done)
		for line := range q.lines {
			if line == nil { // of close
				return
			}
			w.Write(line)
			if n := q.dropped.Swap(0); n > 0 {
				unlogged(n)
			}
		}
	}()
	return q
}

// Write queues a line. It never fails.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- append(make([]byte, 0, len(line)), line...):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// close waits until the lines are written, but at most for d. Call it once.
func (q *logQueue) close(d time.Duration) {
	late := time.After(d)
	select {
	case q.lines <- nil:
		select {
		case <-q.done:
		case <-late:
		}
	case <-late:
	}
}
