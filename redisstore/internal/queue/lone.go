package queue

import (
	"context"
	"time"
)

// loneBatch returns a batch with the commands if the caller may send them itself, which saves two
// goroutine switches, and otherwise nil. The caller may send the commands if there have been no
// other callers for a while, and if Redis is fast and has answered within the last second. In
// addition, neither the client nor the caller's context may end the call before the budget is used
// up.
func (q *Queue) loneBatch(ctx context.Context, cmds []Cmd) *batch {
	if q.idle.Load() < lone || !q.bounded || ctx.Done() != nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	switch {
	case q.runners > 0 || q.queued > 0: // there is another caller
		return nil
	case q.open == 0 || now.Sub(q.answered) > time.Second || q.service > q.timeout/8: // Redis may be slow
		return nil
	}
	q.answered, q.lostThen = now, q.lost
	q.runners++
	q.inFlight += len(cmds)
	b := &batch{cmds: cmds, underWay: q.inFlight, sent: time.Now(), began: now}
	q.sent = append(q.sent, b)
	return b
}

// direct sends a batch in the caller's goroutine.
func (q *Queue) direct(ctx context.Context, b *batch, left time.Duration) error {
	sending, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := q.sendSafely(sending, b.cmds)
	took := time.Since(b.sent)
	spendBudget(ctx, left-took)
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	f := q.ended(b, err)
	q.runners--
	q.learn(b, took, now, err)
	q.start(now)
	switch {
	case err == nil:
		return nil
	case f != unknown && f != notHeard, f == unknown && took > left+beat: // the last condition: the deadline passed long ago
		return ErrLate
	case took >= left:
		return ErrTimeout
	}
	return failure(b.cmds)
}
