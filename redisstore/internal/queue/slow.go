package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A slowness finds out that Redis is too slow for the timeout: it answers, but so late that many requests
// get no answer in time. If the reason is the load of this process, the window becomes smaller until the
// fastest calls take less than two thirds of the timeout: see learn. Answers that come after the timeout show
// nothing: Redis may have been down.
type slowness struct {
	since   time.Time     // all calls since then have taken more than two thirds of the timeout
	last    time.Time     // when the last of them was answered
	fastest time.Duration // how long the fastest of them took
	decided int           // commands in these calls
	failed  int           // requests since then that were not decided

	err     *slowError // not nil while Redis is too slow
	quick   int        // how many calls in a row have then taken less than half of the timeout
	checked time.Time  // when Slow last sent a command to find out
}

const (
	slowAfter = 5 * time.Second        // until Redis is too slow
	slowGap   = 3 * time.Second        // between two calls; a breaker opens for less
	slowShare = 20                     // one request in so many is not decided
	slowUntil = 5                      // quick calls, and twice as many each time within slowAgain
	slowMost  = 64 * slowUntil         // quick calls at most
	slowAgain = time.Minute            // if Redis is too slow again within this time, the reason may be who came back
	slowCheck = 200 * time.Millisecond // between two commands of Slow
)

// A slowError says that Redis is too slow for the timeout.
type slowError struct{ takes, timeout time.Duration }

func (e *slowError) Error() string {
	return fmt.Sprintf("redisstore: even the fastest answers of Redis take %v, too long for the Timeout of %v",
		e.takes.Round(time.Millisecond), e.timeout)
}
func (e *slowError) Timeout() bool   { return true }
func (e *slowError) Unwrap() []error { return []error{ErrTimeout, quota.ErrSlow} }

// Slow returns an error while Redis is too slow for the timeout. A caller that then sends nothing calls
// Slow instead, which sends a few commands now and then to find out when that is over.
func (q *Queue) Slow() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.slow
	if s.err == nil {
		return nil
	}
	now := time.Now()
	if s.checked.After(q.answered) && now.Sub(q.answered) > slowGap { // it no longer answers at all
		q.endSlow()
		return nil
	}
	q.slowStore.Store(now.Add(slowAgain).UnixNano())
	if now.Sub(s.checked) >= slowUntil*slowCheck {
		s.checked = now
		go func() {
			for range slowUntil {
				ctx := WithBudget(context.Background(), q.timeout)
				_ = q.Do(ctx, []Cmd{NewCmd(ctx, "time")})
				time.Sleep(slowCheck)
			}
		}()
	}
	return s.err
}

// endSlow notes that Redis is no longer too slow.
func (q *Queue) endSlow() { q.slow, q.slowEnded = slowness{}, time.Now() }

// judge notes that a call of n commands took so long, and whether the process was late meanwhile. Then it
// may have taken less, and shows something only if it was quick nevertheless.
func (q *Queue) judge(n int, took time.Duration, late bool, now time.Time) {
	s := &q.slow
	if s.err != nil {
		if s.quick++; 2*took >= q.timeout {
			s.quick = 0
		}
		if s.quick == q.quickCalls {
			q.endSlow()
		}
		return
	}
	switch {
	case 3*took <= 2*q.timeout:
		*s = slowness{}
		return
	case took >= q.timeout || late:
		return
	case now.Sub(s.last) > slowGap:
		*s = slowness{since: now, fastest: took}
	}
	s.last, s.fastest, s.decided = now, min(s.fastest, took), s.decided+n
	if now.Sub(s.since) >= slowAfter && s.failed*slowShare >= s.decided {
		s.err = &slowError{s.fastest, q.timeout}
		q.slowStore.Store(time.Now().Add(slowAgain).UnixNano())
		if q.quickCalls = min(2*q.quickCalls, slowMost); time.Since(q.slowEnded) > slowAgain {
			q.quickCalls = slowUntil
		}
	}
}
