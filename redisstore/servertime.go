package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// With Options.SendTime, a script gets the time as its last argument, which sentTime removes from
// ARGV. This time is a lower bound on the server's clock, and the bounds of two processes differ.
// If the newest state is later than this time, the script uses the time of that state: the server's
// clock had reached it when the state was written. The time of a reservation, however, lies in the
// future. A value with a reservation therefore also contains the time at which the value was
// written, and the script uses that time. Thus no decision is made at a time ahead of the server's
// clock. The time may be behind the clock by up to late: see lateness. Values are kept for that
// much longer, because a late script must still find the units that had been spent at the time in
// its argument.
func sentTime(late time.Duration) string {
	return fmt.Sprintf(`local t = {string.match(table.remove(ARGV), '(.*)(......)')}
local now, slack_ms = t[1] * 1e6 + t[2], %d
local function catch_up(at)
  now, t = at, {string.match(string.format('%%.0f', at), '(.*)(......)')}
end
`, late.Milliseconds())
}

// Without Options.SendTime, calledTime replaces the result of sentTime. Both define the variables
// t, the time in the format of TIME, and now, the same time in µs, as a float even in Lua 5.4. TTLs
// are extended by slack_ms, a number of ms, because the times of processes differ. Only sentTime
// defines catch_up.
const calledTime = `local t = redis.call('TIME')
local now, slack_ms, catch_up = t[1] * 1e6 + t[2], 0
`

// lateness returns the maximum time by which a decision may be behind the server's clock: the
// timeout of the last TIME command plus the timeout of the script. It is at least a second, because
// the queue accepts later answers if the process is late. The reply to TIME and the reply to the
// script may each take half of this time. A reply that takes longer is not used.
func lateness(timeout time.Duration) time.Duration {
	return max(time.Second, 2*timeout+10*time.Millisecond)
}

const (
	refreshAfter = 100 * time.Millisecond // after this time, TIME is sent after the next commands, in the same batch
	refreshFirst = 2 * time.Second        // after this time, and on a new connection, TIME is sent before the next commands
	drift        = 1000                   // the clocks of process and server drift apart by at most 1 µs in this many µs
)

// A server represents one Redis server and holds the queue of commands for the server. With
// Options.SendTime, it also holds a lower bound on the time of the server's clock. When the reply
// to TIME has arrived, the server's clock shows the time in the reply or a later time. From then
// on, the bound advances with the process's clock, minus the possible drift between the two clocks.
// Any reply may raise the bound. A reply lowers the bound only if it shows that the server's clock
// is behind the bound, because the clock was set back or another server answers.
type server struct {
	*queue.Queue
	clock func() time.Time // the clock of the process, which has no jumps; nil without Options.SendTime
	dials *dialRecord
	late  time.Duration // see lateness

	mu       sync.Mutex
	bound    int64     // µs since 1970
	at       time.Time // when the process learned the bound
	known    bool      // a reply has arrived since the last error
	sent     time.Time // when TIME was last sent
	answered time.Time // when the last reply to TIME arrived
	made     int64     // how many connections had been made when that reply arrived
}

// Do is like Queue.Do. With Options.SendTime, it sets the last argument of each command to the
// time.
func (s *server) Do(ctx context.Context, cmds []queue.Cmd) error {
	if s.clock == nil {
		return s.Queue.Do(ctx, cmds)
	}
	s.mu.Lock()
	now := s.clock()
	first := !s.known || now.Sub(s.answered) > refreshFirst || s.made != s.dials.made.Load()
	again := now.Sub(s.sent) > refreshAfter
	if again {
		s.sent = now // only one caller sends TIME
	}
	s.mu.Unlock()
	again = again && !first
	for first {
		learned, err := s.queryTime(ctx, nil)
		if err != nil {
			return err
		}
		first = !learned
	}
	bound := s.time()
	for _, cmd := range cmds {
		cmd.Args()[len(cmd.Args())-1] = bound
	}
	if again {
		_, err := s.queryTime(ctx, cmds)
		return err
	}
	return s.send(ctx, cmds)
}

// send sends commands. After an error, the bound is unknown, because another server may have taken
// over.
func (s *server) send(ctx context.Context, cmds []queue.Cmd) error {
	err := s.Queue.Do(ctx, cmds)
	if err != nil && !errors.Is(err, quota.ErrBusy) && ctx.Err() == nil {
		s.mu.Lock()
		s.known = false
		s.mu.Unlock()
	}
	return err
}

// queryTime sends commands, followed by TIME. It returns false if the reply to TIME is too old to
// be used, for example because the process was suspended in the meantime. If there are no commands,
// queryTime returns an error reply to TIME. Otherwise it ignores such a reply, because TIME will
// soon be sent again.
func (s *server) queryTime(ctx context.Context, cmds []queue.Cmd) (learned bool, err error) {
	made, sent, cmd := s.dials.made.Load(), s.clock(), queue.NewCmd(ctx, "time")
	if err := s.send(ctx, append(slices.Clip(cmds), cmd)); err != nil {
		return false, err
	}
	received := s.clock()
	µs, err := readTime(cmd)
	switch {
	case err == nil && received.Sub(sent) <= s.late/2:
		return s.learn(µs, made, sent, received), nil
	case len(cmds) == 0:
		return false, err
	}
	return false, nil
}

// readTime parses the reply to TIME, with the same bounds as eval.read.
func readTime(cmd queue.Cmd) (µs int64, err error) {
	now, err := cmd.Int64Slice()
	switch answer := cmd.Err(); {
	case answer != nil && answer != redis.Nil:
		return 0, answer
	case err != nil || len(now) != 2 || now[0] <= 0 || now[0] >= 1<<33 || now[1] < 0 || now[1] >= 1e6:
		return 0, errors.New("redisstore: the reply of TIME can't be read")
	}
	return now[0]*1e6 + now[1], nil
}

// learn records that the server's clock showed the given time, in µs, at some instant between sent
// and received, which is the current time. If TIME has been answered on a newer connection in the
// meantime, learn returns false.
func (s *server) learn(µs, made int64, sent, received time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	trip := received.Sub(sent).Microseconds()
	switch bound := s.boundAt(received); {
	case made < s.made:
		return false
	case !s.known, made > s.made, bound < µs, bound > µs+trip+trip/drift+1:
		s.bound, s.at = µs, received
	}
	s.known, s.answered, s.made = true, received, made
	return true
}

func (s *server) time() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boundAt(s.clock())
}

func (s *server) boundAt(now time.Time) int64 {
	µs := max(0, now.Sub(s.at).Microseconds())
	return s.bound + µs - (µs+drift-1)/drift
}

// inTime runs f, which sends scripts. With Options.SendTime, inTime returns an error if f takes so
// long that the decisions may be older than other processes expect.
func (s *Store) inTime(f func() error) error {
	if s.clock == nil {
		return f()
	}
	sent := s.clock()
	if err := f(); err != nil || s.clock().Sub(sent) <= lateness(s.timeout)/2 {
		return err
	}
	return queue.ErrLate
}

// setEarliest sets the time of a command that a node has redirected to a lower bound on the clocks
// of all nodes that have recently answered.
func (s *Store) setEarliest(cmd queue.Cmd) {
	last := &cmd.Args()[len(cmd.Args())-1]
	s.queues.Range(func(_, of any) bool {
		node := of.(func() *server)()
		node.mu.Lock()
		defer node.mu.Unlock()
		if now := s.clock(); node.known && now.Sub(node.answered) < time.Minute {
			*last = min((*last).(int64), node.boundAt(now))
		}
		return true
	})
}
