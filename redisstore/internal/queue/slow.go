package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A slowDetector detects that Redis is too slow for the timeout: Redis answers, but so late that
// many requests get no answer in time. Load from this process is not the reason, because the window
// would then shrink until the fastest calls take less than two thirds of the timeout (see learn).
// Answers that arrive after the timeout are ignored, because Redis may have been down.
type slowDetector struct {
	since   time.Time     // all calls since then have taken more than two thirds of the timeout
	last    time.Time     // when the last of these calls was answered
	fastest time.Duration // how long the fastest of these calls took
	decided int           // how many commands these calls contained
	failed  int           // how many requests have got no answer in time since then

	err     *slowError // not nil while Redis is too slow
	quick   int        // how many consecutive calls have since taken less than half of the timeout
	checked time.Time  // when Slow last began to send commands
}

const (
	slowAfter = 5 * time.Second        // Redis counts as too slow after calls have been slow for this long
	slowGap   = 3 * time.Second        // longest time between two slow calls; longer than a breaker stays open
	slowShare = 20                     // at least one request in this many must get no answer in time
	slowUntil = 5                      // quick calls until Redis is no longer too slow; doubled if Redis becomes too slow within slowAgain
	slowMost  = 64 * slowUntil         // maximum number of these quick calls after doubling
	slowAgain = time.Minute            // within this time, Redis may be too slow again because requests were sent to it again
	slowCheck = 200 * time.Millisecond // time between two commands of Slow
)

// A slowError reports that Redis is too slow for the timeout.
type slowError struct{ takes, timeout time.Duration }

func (e *slowError) Error() string {
	return fmt.Sprintf("redisstore: even the fastest answers of Redis take %v, too long for the Timeout of %v",
		e.takes.Round(time.Millisecond), e.timeout)
}
func (e *slowError) Timeout() bool   { return true }
func (e *slowError) Unwrap() []error { return []error{ErrTimeout, quota.ErrSlow} }

// Slow returns an error while Redis is too slow for the timeout. A caller that sends no commands
// because of this error must keep calling Slow. From time to time, Slow then sends a few commands
// to find out whether Redis is fast enough again.
func (q *Queue) Slow() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.slow
	if s.err == nil {
		return nil
	}
	now := time.Now()
	if s.checked.After(q.answered) && now.Sub(q.answered) > slowGap { // Redis no longer answers at all
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

// endSlow records that Redis is no longer too slow.
func (q *Queue) endSlow() { q.slow, q.slowEnded = slowDetector{}, time.Now() }

// judge records how long a call of n commands took, and whether the process was late during the
// call. If the process was late, Redis may have answered earlier, so the call counts only if it was
// quick nevertheless.
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
		*s = slowDetector{}
		return
	case took >= q.timeout || late:
		return
	case now.Sub(s.last) > slowGap:
		*s = slowDetector{since: now, fastest: took}
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
