package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// connectTime is the longest time that TCP, TLS, HELLO and AUTH may take together, unless
	// Timeout is longer than 750 ms.
	connectTime = time.Second

	// redialAfter is the shortest time from one attempt to connect to the next, while at
	// least as many attempts are under way as connections are open.
	redialAfter = 200 * time.Millisecond

	// retryAfter is the shortest time from a failed attempt to connect to the next attempt,
	// while no connection is open.
	retryAfter = 20 * time.Millisecond
)

func newQueue(rdb redis.UniversalClient, timeout time.Duration) *queue {
	most := maxCalls
	var differ mismatch
	bounded := false
	if single, ok := rdb.(*redis.Client); ok {
		o := single.Options()
		differ.client = o
		most = min(most, o.PoolSize)
		bounded = o.ContextTimeoutEnabled
		if !o.ContextTimeoutEnabled {
			rdb = single.WithTimeout(timeout + lateness)
		}
	}
	return &queue{send: sendTo(rdb), timeout: timeout, most: most, bounded: bounded, window: firstWindow, mismatch: differ}
}

// sendTo returns a function that sends commands in one round trip. Afterwards each command
// has its answer or its error. The function returns an error if a command got no answer
// from Redis.
func sendTo(rdb redis.UniversalClient) func(ctx context.Context, cmds []once) error {
	return func(ctx context.Context, cmds []once) (err error) {
		if len(cmds) == 1 {
			if err = rdb.Process(ctx, cmds[0]); isAnswer(err) {
				return nil
			}
			return err
		}
		pipe := rdb.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd) // only adds cmd to the pipeline
		}
		_, failure := pipe.Exec(ctx)
		for _, cmd := range cmds {
			e := cmd.Err()
			if e == nil && cmd.Val() == nil && failure != nil {
				cmd.SetErr(failure) // go-redis does not set the errors of the commands if AUTH fails
			}
			if e != nil && !isAnswer(e) {
				err = e
			}
		}
		return err
	}
}

// warm starts to make a connection, so that the first command finds one.
func (q *queue) warm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.connect(q.now())
}

// connect starts to make one more connection. It does nothing if enough connections are open
// or under way, or if it is too early for another attempt: see redialAfter and retryAfter.
func (q *queue) connect(now time.Time) {
	switch {
	case q.open+q.opening >= q.enough(now),
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

// dial sends the command TIME, which needs a connection. Usually all connections that the
// queue knows are in use, so that the client makes a new one.
func (q *queue) dial() {
	ctx, cancel := context.WithTimeout(context.Background(), max(connectTime, q.timeout+lateness))
	defer cancel()
	cmd := once{redis.NewCmd(ctx, "time")}
	err := q.sendSafely(ctx, []once{cmd})
	if answer := cmd.Err(); redis.HasErrorPrefix(answer, "WRONGPASS") || redis.HasErrorPrefix(answer, "NOAUTH") {
		err = answer
	}
	if err != nil {
		err = q.explain(err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.opening--
	if err == nil {
		q.open++
		q.start(now)
		return
	}
	q.failed, q.failure = now, err
	if q.open == 0 {
		q.failAll()
	}
}

// failAll tells all callers that wait why there is no connection.
func (q *queue) failAll() {
	for len(q.waiting) > 0 {
		q.pop().finish(q.failure)
	}
}

// isAnswer reports whether err is an answer of Redis: an error reply.
func isAnswer(err error) bool {
	answer := redis.Error(nil)
	return errors.As(err, &answer)
}
