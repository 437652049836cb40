package weir

import (
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A ban is an algorithm that keeps the bans of a key. In its state, At is when the last ban
// began, A is when it ends, and B is how many bans strikes have begun, up to 32. A charge
// begins a ban. The cost of the charge is the length of a first ban in µs. Each ban lasts
// twice as long as the one before, and at most the period of the limit. During a ban no
// other ban begins, so concurrent strikes begin only one ban. A charge of cost 0 gets the
// rest of the ban as NextAfter.
type ban struct{}

const (
	// A ban is remembered for 32 periods, and its length doubles at most 32 times.
	repeats = 32

	// byHand is the Burst of the limit if an operator bans a key. The cost is then the
	// length of the ban, and B does not change.
	byHand = 1

	// asked is the Burst of the limit if a charge only asks whether the key is banned. A
	// ban then refuses the charge, and the charge changes nothing.
	asked = 2
)

func banLimit(most time.Duration) Limit {
	return Limit{Name: banName, Algorithm: ban{}, Quota: 1, Period: most}
}

func (ban) Name() string   { return "ban" }
func (ban) String() string { return "ban" }

// Refusing implements quota.Unpayable.
func (ban) Refusing(c quota.Charge) quota.Charge {
	c.Cost, c.Limit.Burst = 1, asked
	return c
}

func (b ban) Take(s quota.State, l *Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

func (ban) Step(s *quota.State, d *quota.Decision, l *Limit, now, cost int64) {
	at, most := max(now, s.At), l.Period.Microseconds()
	end, n := s.A, s.B
	if end+repeats*most <= at {
		end, n = 0, 0
	}
	wait := at - now
	if l.Burst != byHand {
		wait = max(end, at) - now
	}
	*d = quota.Decision{Allowed: cost <= 0 || wait == 0}
	switch {
	case !d.Allowed:
		d.RetryAfter = time.Duration(wait) * time.Microsecond
	case l.Burst == asked:
	case cost > 0 && l.Burst == byHand:
		end = max(end, at+cost)
		*s = quota.State{At: at, A: end, B: n}
	case cost > 0:
		for range n {
			cost = min(2*cost, most)
		}
		end = at + cost
		*s = quota.State{At: at, A: end, B: min(n+1, repeats)}
	}
	if end > now {
		d.NextAfter = time.Duration(end-now) * time.Microsecond
	} else {
		d.Remaining = 1
	}
	if end > 0 {
		d.ResetAfter = time.Duration(max(0, end+repeats*most-now)) * time.Microsecond
	}
}

// Lua returns Take as a script for package redisstore: see redisstore.Scripted.
func (ban) Lua() string {
	return fmt.Sprintf(`local function take(at, stop, n, till, now, cost, _, most, burst)
  if stop + %[1]d * most <= now then stop, n = 0, 0 end
  if cost < 0 then
    return 0, at, stop, n, till
  elseif burst == %[3]d then
    if stop > now then return stop - now end
  elseif burst == %[2]d then
    stop = math.max(stop, now + cost)
  elseif stop > now then
    return stop - now
  else
    for _ = 1, n do cost = math.min(2 * cost, most) end
    stop, n = now + cost, math.min(n + 1, %[1]d)
  end
  if burst == %[3]d then return 0, at, stop, n, till end
  return 0, now, stop, n, stop + %[1]d * most
end`, repeats, byHand, asked)
}
