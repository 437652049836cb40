// Package ban implements bans and pauses of keys: the algorithm with which a store keeps them, the
// charges that begin, look up and lift them, and the bans that a process remembers.
package ban

import (
	"cmp"
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// algorithm keeps the bans of a key. In its state, At is the beginning of the last ban, and A is
// its expiry time. B is the number of bans that strikes have begun, up to Repeats. A charge begins
// a ban, and its cost is the length of a first ban in µs. Each ban lasts twice as long as the
// previous ban, but at most as many µs as the Quota of the limit. During a ban, no other ban
// begins, so concurrent strikes begin only one ban. For a charge of cost 0, NextAfter is the
// remaining time of the ban.
//
// Only this package knows the meaning of these numbers; other packages call the constructors
// in penalty.go.
type algorithm struct{}

// Longest is the maximum length of a ban.
const Longest = quota.MaxTicks / Repeats * time.Microsecond

// LongestOf returns the maximum length of a ban under a weir.Penalty with this Duration and this
// MaxDuration.
func LongestOf(first, most time.Duration) time.Duration {
	return cmp.Or(most, max(24*time.Hour, first))
}

const (
	// Repeats is the number of periods for which a ban is remembered, and the maximum number of
	// times that its length doubles.
	Repeats = 32

	// exact is the Burst of the limit for a ban that lasts exactly as long as its cost, whatever
	// bans the key had before, and that does not change the number of these bans.
	exact = 1

	// refusing is the cost of a charge that a ban refuses but that begins no ban.
	refusing = 1
)

// costOf returns the cost of a charge that begins a ban of the given length.
func costOf(d time.Duration) int64 { return min(max(refusing+1, d.Microseconds()), quota.MaxTicks) }

func (algorithm) Name() string   { return "ban" }
func (algorithm) String() string { return "ban" }

// Indivisible implements optional.Indivisible: the Quota is the length of the longest ban.
func (algorithm) Indivisible() {}

// Refusing implements credit.Unpayable.
func (algorithm) Refusing(c quota.Charge) quota.Charge {
	c.Cost = refusing
	return c
}

func (a algorithm) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	a.Step(&s, &d, l, now, cost)
	return s, d
}

func (algorithm) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at, most := max(now, s.At), l.Quota
	end, n := s.A, s.B
	if end+Repeats*most <= at {
		end, n = 0, 0
	}
	wait := at - now
	if l.Burst != exact || cost == refusing {
		wait = max(end, at) - now
	}
	*d = quota.Decision{Allowed: cost <= 0 || wait == 0}
	switch {
	case !d.Allowed:
		d.RetryAfter = time.Duration(wait) * time.Microsecond
	case cost <= refusing:
	case l.Burst == exact:
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
func (algorithm) Lua() string {
	return fmt.Sprintf(`local function take(at, stop, n, till, now, cost, most, _, burst)
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
end`, Repeats, exact, refusing)
}
