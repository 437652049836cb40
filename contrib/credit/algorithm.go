package credit

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// The algorithm credit counts granted units. In a state, A is the number of granted units that are
// left, and B is the expiry time of these units, in µs since 1970. A negative cost grants units for
// the period of the limit. Cancel refunds spent units and leaves B unchanged.
type credit struct{}

// If too few units are left, RetryAfter is the constant retry, because it is not known when more
// units will be granted. During that time, quota.Hybrid refuses the key without a call to the
// wrapped store.
const retry = time.Second

// A state is kept for this time, in µs, after its last unit was spent. During this time Cancel can
// refund units, because the state still contains the expiry time. If such states were kept until
// the units expire, a store would keep keys without units for up to 35 years.
const kept = int64(time.Hour / time.Microsecond)

func (credit) Name() string   { return "credit" }
func (credit) String() string { return "credit" }

// Indivisible implements optional.Indivisible, because the Quota is the time for which granted
// units are valid.
func (credit) Indivisible() {}

func (credit) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	at := max(now, s.At)
	left := int64(0)
	if end(&s) > at {
		left = s.A
	}
	ahead := time.Duration(at-now) * time.Microsecond
	d := quota.Decision{Allowed: true}
	switch {
	case cost > 0 && (left < cost || at > now):
		d.Allowed, d.RetryAfter = false, ahead
		if left < cost {
			d.RetryAfter += retry
		}
	case cost > 0:
		left -= cost
		s = state(at, left, s.B)
	case cost < 0:
		until := at + l.Quota
		if left > 0 {
			until = max(until, s.B)
		}
		left = min(left-max(cost, -quota.MaxTicks), quota.MaxTicks)
		s = state(at, left, until)
	}
	d.ResetAfter = max(ahead, time.Duration(end(&s)-now)*time.Microsecond)
	if at == now {
		d.Remaining = left
	} else {
		d.NextAfter = ahead
	}
	return s, d
}

func state(at, left, until int64) quota.State { return quota.State{At: at, A: left, B: until} }

// end returns the time at which a state expires.
func end(s *quota.State) int64 {
	if s.A == 0 {
		return min(s.B, s.At+kept)
	}
	return s.B
}

// Cancel implements optional.Canceler. It refunds n units if the state still exists (see kept).
func (credit) Cancel(s quota.State, _ *quota.Limit, now, _, n int64) quota.State {
	if at := max(now, s.At); end(&s) > at {
		return state(at, min(s.A+n, quota.MaxTicks), s.B)
	}
	return s
}

// Lua implements redisstore.Scripted. The code has the same arithmetic as the methods above.
func (credit) Lua() string {
	return `local most, kept = 1125899906842624, 3600000000 -- 2^50, and an hour in µs
local function state(at, left, ends)
  if left == 0 then return at, left, ends, math.min(ends, at + kept) end
  return at, left, ends, ends
end
local function take(at, left, ends, till, now, cost, span)
  if till <= now then left = 0 end
  if cost > left then return 1000000 end
  if cost < 0 then
    if left == 0 then ends = 0 end
    ends = math.max(ends, now + span)
  end
  return 0, state(now, math.min(left - math.max(cost, -most), most), ends)
end
local function cancel(at, left, ends, till, now, of, n)
  now = math.max(now, at)
  if till > now then return state(now, math.min(left + n, most), ends) end
end
`
}

// Unpayable is a quota.Algorithm whose refusals cannot be overridden with units granted by this
// package, such as the algorithm for bans. Refusals by a Concurrent algorithm cannot be overridden
// either.
type Unpayable interface {
	// Refusing returns a charge that the limit refuses if it has begun to refuse the key since it
	// allowed the charge c. The Store adds the returned charge to the transaction in which granted
	// units pay for other limits.
	Refusing(c quota.Charge) quota.Charge
}
