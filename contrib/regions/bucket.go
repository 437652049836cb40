package regions

import (
	_ "embed"
	"math"
	"math/bits"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A past records which part of the rate a region has had so far. It consists of steps, the latest
// first. The part of a step is the smallest part that the region has had since the step began, so
// earlier steps have smaller parts. The last step in the list has no beginning, and its part is the
// one that every region always has.
//
// The first step ends at the instant at which the past was made. If the past is used later, the
// region has had the larger parts for longer than the past records, so fewer units may be admitted,
// but never more.
type past []step

type step struct {
	part int64 // in units of 1/10,000 of the rate
	time int64 // the length of the step, in µs
}

// The algorithm bucket counts the units of a limit whose rate changes with the region's part. It
// admits the same charges as GCRA and TokenBucket, but the debt of a key drains at the rate that
// the region had at the time. A key that was idle while other regions had the rate therefore does
// not gain units at the region's current rate for that time. The rate comes from the region's past,
// not from the limit.
//
// In a state, A is the debt at the instant At, in ticks. If the limit's Period is p µs, a unit is p
// ticks. A debt may exceed the burst after quota.ModeForce, or if another limit with the same name
// had a larger burst. No charge then fits until enough of the debt has drained. A state is kept
// until the debt would have drained at the rate that a region always has, because the region may
// lose the rest of its rate.
type bucket struct {
	past  *past
	quota int64  // the quota for all regions together
	of    string // the name of the limit's algorithm
}

const (
	// mostDebt is the largest debt, in ticks. bucket.lua has the same number.
	mostDebt = 2 * quota.MaxTicks

	// If a limit has this quota, its charges are spent even if they do not fit: see
	// optional.Forcer.
	forced = quota.MaxTicks
)

func (b bucket) Name() string   { return b.of + "-part" }
func (b bucket) String() string { return b.Name() }

// rate returns how many ticks drain per microsecond in step i of the past.
func (b bucket) rate(i int) int64 { return partOf(b.quota, (*b.past)[i].part) }

// partOf returns the given part of a number of units, rounded down, but at least 1.
func partOf(units, part int64) int64 {
	return max(1, units/whole*part+units%whole*part/whole)
}

// drained returns how many ticks of a debt drain between two instants. For the time after now, it
// assumes the current rate.
func (b bucket) drained(from, now, to int64) (ticks int64) {
	drain := func(rate, time int64) {
		if hi, lo := bits.Mul64(uint64(rate), uint64(time)); hi > 0 || lo > mostDebt {
			ticks = mostDebt
		} else {
			ticks = min(mostDebt, ticks+int64(lo))
		}
	}
	left := min(now, to) - from
	for i := 0; left > 0 && i < len(*b.past); i++ {
		time := left
		if i < len(*b.past)-1 {
			time = min(left, (*b.past)[i].time)
		}
		drain(b.rate(i), time)
		left -= time
	}
	drain(b.rate(0), max(0, to-max(now, from)))
	return ticks
}

// debt returns the debt of a key at a given instant, which is never earlier than s.At.
func (b bucket) debt(s *quota.State, now, at int64) int64 {
	if s.A <= 0 {
		return 0
	}
	return max(0, min(s.A, mostDebt)-b.drained(s.At, now, at))
}

// Take implements quota.Algorithm.
func (b bucket) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	return b.Reserve(s, l, now, now, cost)
}

// Reserve evaluates a charge that is requested now and spent now or later, at a given instant.
func (b bucket) Reserve(s quota.State, l *quota.Limit, now, at, cost int64) (quota.State, quota.Decision) {
	last := max(at, s.At)
	unit, rate, debt, d := l.Period.Microseconds(), b.rate(0), b.debt(&s, now, last), quota.Decision{Allowed: true}
	full := l.Burst * unit
	switch {
	case cost > 0 && l.Quota == forced:
		if debt < quota.MaxTicks {
			debt += min(cost, quota.MaxTicks/unit) * unit
		}
	case cost > l.Burst:
		d = quota.Decision{RetryAfter: quota.Never}
	case cost > 0:
		if retry := last - at + ceil(debt+cost*unit-full, rate); retry > 0 {
			d = quota.Decision{RetryAfter: micros(retry)}
		} else {
			debt += cost * unit
		}
	case cost < 0:
		debt = max(0, debt-min(-max(cost, -quota.MaxTicks), mostDebt/unit)*unit)
	}
	if d.Allowed && cost != 0 {
		s = quota.State{At: last, A: debt}
	}
	left := max(0, full-debt) / unit
	if last == at {
		d.Remaining = left
	}
	if debt > 0 {
		d.NextAfter = micros(last - at + ceil(debt+(left+1)*unit-full, rate))
		d.ResetAfter = micros(last - at + ceil(debt, b.rate(len(*b.past)-1)))
		if last > at && left > 0 {
			d.NextAfter = micros(last - at)
		}
	} else if last > at {
		d.NextAfter, d.ResetAfter = micros(last-at), micros(last-at)
	}
	return s, d
}

// Cancel implements optional.Canceler. If the debt contains other charges, units that have drained
// since they were spent are not refunded.
func (b bucket) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	if at > s.At || s.A <= 0 {
		return s
	}
	unit, last := l.Period.Microseconds(), max(now, s.At)
	debt, back, drained := b.debt(&s, now, last), min(n, mostDebt/unit)*unit, b.drained(at, now, last)
	if debt+drained >= back+unit { // an earlier or a later charge is in the debt as well
		back = max(0, back-drained)
	}
	return quota.State{At: last, A: max(0, debt-back)}
}

// Additive tells redisstore that only the sum of the costs at one instant matters.
func (bucket) Additive() {}

// Edges returns the region's past as numbers for the script: the number of steps, and the rate and
// the length of each step. See redisstore.Scripted.
func (b bucket) Edges(int64) []int64 {
	n := []int64{int64(len(*b.past))}
	for i, step := range *b.past {
		n = append(n, b.rate(i), step.time)
	}
	return n
}

//go:embed bucket.lua
var bucketLua string

// Lua implements redisstore.Scripted. The code has the same arithmetic as the methods above.
func (bucket) Lua() string { return bucketLua }

// shorten changes the ResetAfter of a decision from the time for which the state is kept to the
// time after which the key is full again at the current rate.
func (b bucket) shorten(d *quota.Decision) {
	reset := float64(d.ResetAfter.Microseconds()) * float64(b.rate(len(*b.past)-1)) / float64(b.rate(0))
	d.ResetAfter = max(d.NextAfter, micros(int64(math.Ceil(reset))))
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// ceil returns n/d, rounded up, or 0 if n is negative.
func ceil(n, d int64) int64 { return (max(0, n) + d - 1) / d }
