// Package ban has the bans of keys: the algorithm with which a store keeps them, and what a
// process remembers of them.
package ban

import (
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// Algorithm keeps the bans of a key. In its state, At is when the last ban
// began, A is when it ends, and B is how many bans strikes have begun, up to 32. A charge
// begins a ban. The cost of the charge is the length of a first ban in µs: see Cost. Each ban lasts
// twice as long as the one before, and at most the period of the limit. During a ban no
// other ban begins, so concurrent strikes begin only one ban. A charge of cost 0 gets the
// rest of the ban as NextAfter.
type Algorithm struct{}

const (
	// Repeats is for how many periods a ban is remembered, and how often its length doubles at
	// most.
	Repeats = 32

	// Manual is the Burst of the limit if an operator bans a key, or a server asks to pause.
	// The cost is then the length of the ban, and B does not change.
	Manual = 1

	// Ask is the cost of a charge that a ban refuses, and that begins none.
	Ask = 1
)

// Cost returns the cost of a charge that begins a ban.
func Cost(d time.Duration) int64 { return min(max(Ask+1, d.Microseconds()), quota.MaxTicks) }

// Limit returns the limit of bans that last at most that long.
func Limit(most time.Duration) quota.Limit {
	return quota.Limit{Name: "penalty ban", Algorithm: Algorithm{}, Quota: 1, Period: most}
}

func (Algorithm) Name() string   { return "ban" }
func (Algorithm) String() string { return "ban" }

// Refusing implements quota.Unpayable.
func (Algorithm) Refusing(c quota.Charge) quota.Charge {
	c.Cost = Ask
	return c
}

func (b Algorithm) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

func (Algorithm) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at, most := max(now, s.At), l.Period.Microseconds()
	end, n := s.A, s.B
	if end+Repeats*most <= at {
		end, n = 0, 0
	}
	wait := at - now
	if l.Burst != Manual || cost == Ask {
		wait = max(end, at) - now
	}
	*d = quota.Decision{Allowed: cost <= 0 || wait == 0}
	switch {
	case !d.Allowed:
		d.RetryAfter = time.Duration(wait) * time.Microsecond
	case cost <= Ask:
	case l.Burst == Manual:
		end = max(end, at+cost)
		*s = quota.State{At: at, A: end, B: n}
	default:
		for range n {
			cost = min(2*cost, most)
		}
		end = at + cost
		*s = quota.State{At: at, A: end, B: min(n+1, Repeats)}
	}
	if end > now {
		d.NextAfter = time.Duration(end-now) * time.Microsecond
	} else {
		d.Remaining = 1
	}
	if end > 0 {
		d.ResetAfter = time.Duration(max(0, end+Repeats*most-now)) * time.Microsecond
	}
}

// Lua returns Take as a script for package redisstore: see redisstore.Scripted.
func (Algorithm) Lua() string {
	return fmt.Sprintf(`local function take(at, stop, n, till, now, cost, _, most, burst)
  if cost == %[3]d and stop > now then return stop - now end
  if cost <= %[3]d then return 0, at, stop, n, till end
  if stop + %[1]d * most <= now then stop, n = 0, 0 end
  if burst == %[2]d then
    stop = math.max(stop, now + cost)
  elseif stop > now then
    return stop - now
  else
    for _ = 1, n do cost = math.min(2 * cost, most) end
    stop, n = now + cost, math.min(n + 1, %[1]d)
  end
  return 0, now, stop, n, stop + %[1]d * most
end`, Repeats, Manual, Ask)
}
