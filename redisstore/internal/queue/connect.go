package queue

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A connections value counts the connections of the queue, and holds the result of the last attempt
// to connect.
type connections struct {
	open      int // connections that have answered and have not failed since then
	opening   int // attempts to connect that are in progress
	attempted time.Time
	failed    time.Time // when the last attempt to connect failed
	failure   error     // why that attempt failed
}

// connect starts to open another connection. If enough connections are open or being opened, or if
// it is too early for another attempt (see redialAfter and retryAfter), connect does nothing.
func (q *Queue) connect(now time.Time) {
	switch {
	case q.open+q.opening >= q.maxConns(now),
		q.opening > 0 && q.opening >= q.open && now.Sub(q.attempted) < redialAfter:
		return
	case q.open == 0 && now.Sub(q.failed) < retryAfter:
		if q.opening == 0 {
			q.failAll()
		}
		return
	}
	q.opening++
	q.attempted = now
	go q.dial()
}

// dial sends the command TIME. Usually all open connections are in use, so the client opens a new
// one for it. If the client has idle ones that the network has forgotten, dial closes them, too.
func (q *Queue) dial() {
	ctx, cancel := context.WithTimeout(context.Background(), max(ConnectTime, q.timeout+Lateness))
	defer cancel()
	cmd, sent := NewCmd(ctx, "time"), time.Now()
	err := q.sendSafely(ctx, []Cmd{cmd})
	if answer := cmd.Err(); redis.HasErrorPrefix(answer, "WRONGPASS") || redis.HasErrorPrefix(answer, "NOAUTH") {
		err = answer
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil && q.explain != nil && q.answered.IsZero() {
		q.mu.Unlock()
		err = q.explain(err)
		q.mu.Lock()
	}
	now := q.now()
	q.opening--
	if err == nil {
		q.open++
		q.start(now)
		return
	}
	if timedOut(err) {
		q.unanswered(sent)
	}
	q.failed, q.failure = now, err
	if q.open == 0 {
		q.failAll()
	}
}

// failAll ends all waiting requests with the reason why there is no connection.
func (q *Queue) failAll() {
	for len(q.waiting) > 0 {
		q.pop().finish(q.failure)
	}
}
