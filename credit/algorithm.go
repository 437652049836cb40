package credit

import (
	"time"

	"github.com/seed83679106/weir"
)

// credit is the algorithm that counts granted units. In its state, A is how many granted
// units are left, and B is when they end, in µs since 1970. A negative cost grants units
// for the period of the limit. Cancel gives back units that were spent and leaves B as it
// is.
type credit struct{}

// retry is the RetryAfter if too few units are left, because nobody knows when more will
// be granted. During that time, weir.Hybrid refuses the key without asking its store.
const retry = time.Second

func (credit) Name() string   { return "credit" }
func (credit) String() string { return "credit" }

func (credit) Take(s weir.State, l *weir.Limit, now, cost int64) (weir.State, weir.Decision) {
	at := max(now, s.At)
	left, until := s.A, s.B
	if until <= at {
		left, until = 0, 0
	}
	ahead := time.Duration(at-now) * time.Microsecond
	d := weir.Decision{Allowed: true}
	switch {
	case cost > 0 && (left < cost || at > now):
		d.Allowed, d.RetryAfter = false, ahead
		if left < cost {
			d.RetryAfter += retry
		}
	case cost != 0:
		if left = min(left-max(cost, -weir.MaxTicks), weir.MaxTicks); cost < 0 {
			until = max(until, at+l.Period.Microseconds())
		}
		s = state(at, left, until)
	}
	if d.ResetAfter = ahead; left > 0 {
		d.ResetAfter = time.Duration(until-now) * time.Microsecond
	}
	if at == now {
		d.Remaining = left
	} else {
		d.NextAfter = ahead
	}
	return s, d
}

// state returns a state in which units are left until the instant until. If no units are
// left, the state keeps At, because the last unit may be reserved for a later instant.
func state(at, left, until int64) weir.State {
	if left == 0 {
		return weir.State{At: at, Until: at}
	}
	return weir.State{At: at, A: left, B: until, Until: until}
}

// Cancel implements weir.Canceler: it gives back n units, if their time is not over.
func (credit) Cancel(s weir.State, _ *weir.Limit, now, _, n int64) weir.State {
	if at := max(now, s.At); s.B > at {
		return state(at, min(s.A+n, weir.MaxTicks), s.B)
	}
	return s
}

// Lua returns the same arithmetic as a script, for redisstore.Scripted.
func (credit) Lua() string {
	return `local most = 1125899906842624 -- 2^50
local function take(at, left, ends, till, now, cost, quota, period)
  if ends <= now then left, ends = 0, 0 end
  if cost > left then return 1000000 end
  left = math.min(left - math.max(cost, -most), most)
  if cost < 0 then ends = math.max(ends, now + period) end
  if left == 0 then return 0, now, 0, 0, now end
  return 0, now, left, ends, ends
end
local function cancel(at, left, ends, till, now, of, n)
  now = math.max(now, at)
  if ends > now then return now, math.min(left + n, most), ends, ends end
end
`
}
