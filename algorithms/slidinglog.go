package algorithms

import (
	"slices"
	"sort"
	"time"

	"github.com/seed83679106/weir/quota"
)

// SlidingLog records when each unit was spent, and never allows more than n units in any interval
// of one period. The log takes 16 to 32 bytes of memory for each charge in the last period.
func SlidingLog(n int64, period time.Duration) quota.Limit {
	return quota.Limit{Algorithm: slidingLog{}, Quota: n, Period: period}
}

// In the State of a slidingLog, Log is the log, and A is the number of units spent before the first
// entry.
type slidingLog struct{}

func (slidingLog) Name() string                  { return "sliding-log" }
func (slidingLog) String() string                { return "sliding-log" }
func (slidingLog) Validate(l *quota.Limit) error { return validateWindow(l) }

func (g slidingLog) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (slidingLog) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at := max(now, s.At)
	var g spentLog
	g.read(s, l, at)
	switch {
	case cost > g.quota:
		g.view().decide(d, now, at, never, false)
		return
	case cost > 0:
		sum := g.sum() + cost
		if sum-g.base > g.quota || at > now {
			g.view().decide(d, now, at, g.wait(cost), false)
			return
		}
		if g.base > quota.MaxTicks {
			g.rebase()
			sum = g.sum() + cost
		}
		// Append an entry even if the last entry has the same instant. An entry is never changed,
		// because an earlier state that shares the entry's memory may still be in use.
		s.Log = append(g.marks, quota.LogEntry{At: at, Sum: sum})
		s.At, s.A, s.B = at, g.base, 0 // faster than copying a State
		// The result of g.view would be the same. The next unit is free when the oldest entry
		// leaves the window.
		v := view{remaining: g.quota - (sum - g.base), next: s.Log[0].At + g.period - at, reset: g.period}
		v.decide(d, now, at, 0, true)
		return
	case cost < 0:
		n := min(refundOf(cost), g.spent())
		g.refund(n)
		// Keep the units that are in the current window, because they count again if a reservation
		// is cancelled.
		var all spentLog
		all.read(s, l, now)
		all.refund(n)
		*s = quota.State{At: at, A: all.base, Log: all.marks}
		if len(all.marks) == 0 && at == now {
			*s = quota.State{}
		}
	}
	g.view().decide(d, now, at, 0, true)
}

// Reserve is like Take, but for units that will be spent at a later instant. Package quota calls
// Reserve instead of Take for a charge that waits. Reserve keeps units that will have left the
// window at that instant, because they still count if the reservation is cancelled.
func (g slidingLog) Reserve(s quota.State, l *quota.Limit, now, at, cost int64) (next quota.State, d quota.Decision) {
	next, d = g.Take(s, l, at, cost)
	var old spentLog
	if old.read(&s, l, now); d.Allowed && next.A > old.base {
		last := next.Log[len(next.Log)-1]
		next.A, next.Log = old.base, append(old.marks, last)
	}
	return next, d
}

// Cancel implements optional.Canceler.
func (slidingLog) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	var g spentLog
	g.read(&s, l, now)
	var kept []quota.LogEntry
	gone, before := int64(0), g.base
	for _, m := range g.marks {
		units := m.Sum - before
		before = m.Sum
		if m.At == at {
			k := min(n, units)
			n, gone, units = n-k, gone+k, units-k
		}
		if units > 0 {
			kept = append(kept, quota.LogEntry{At: m.At, Sum: m.Sum - gone})
		}
	}
	if gone == 0 {
		s.Log = slices.Clone(s.Log) // an earlier state may share the log's memory
		return s
	}
	if len(kept) == 0 {
		return unspent(now, max(now, s.At))
	}
	return quota.State{At: s.At, A: g.base, Log: kept}
}

// A spentLog represents a log at one instant. It does not contain the units that have left the
// window by that instant.
type spentLog struct {
	quota, period int64
	at            int64
	marks         []quota.LogEntry
	base          int64 // units before the first mark
}

// read fills g with the log of s under the limit l, as of a given instant.
func (g *spentLog) read(s *quota.State, l *quota.Limit, at int64) {
	g.quota, g.period, g.at = l.Quota, int64(l.Period)/microsecond, at
	g.marks, g.base = s.Log, s.A
	g.drop(at - g.period)
}

// drop removes the entries that are not newer than the instant old.
func (g *spentLog) drop(old int64) {
	if len(g.marks) == 0 || g.marks[0].At > old {
		return
	}
	n := sort.Search(len(g.marks), func(i int) bool { return g.marks[i].At > old })
	g.base = g.marks[n-1].Sum
	g.marks = g.marks[n:]
}

func (g *spentLog) sum() int64 {
	if n := len(g.marks); n > 0 {
		return g.marks[n-1].Sum
	}
	return g.base
}

func (g *spentLog) spent() int64 { return g.sum() - g.base }

// wait returns the number of µs until n more units fit, for n ≤ quota. The units fit when enough of
// the oldest units have left the window.
func (g *spentLog) wait(n int64) int64 {
	over := g.spent() + n - g.quota
	if over <= 0 {
		return 0
	}
	i := 0
	if g.marks[0].Sum-g.base < over {
		i = sort.Search(len(g.marks)-1, func(i int) bool { return g.marks[i].Sum-g.base >= over })
	}
	return g.marks[i].At + g.period - g.at
}

func (g *spentLog) view() view {
	if len(g.marks) == 0 {
		return view{remaining: g.quota}
	}
	n := max(0, g.quota-g.spent())
	return view{
		remaining: n,
		next:      g.wait(n + 1),
		reset:     g.marks[len(g.marks)-1].At + g.period - g.at,
	}
}

// rebase makes the sums count from the first mark, so that they stay below 2^53 in a log that is
// never empty. It copies the log, but only once in 2^50 units.
func (g *spentLog) rebase() {
	marks := make([]quota.LogEntry, len(g.marks), len(g.marks)+1)
	for i, m := range g.marks {
		marks[i] = quota.LogEntry{At: m.At, Sum: m.Sum - g.base}
	}
	g.marks, g.base = marks, 0
}

// refund drops the newest n units.
func (g *spentLog) refund(n int64) {
	sum := g.sum() - n
	for len(g.marks) > 0 {
		last := len(g.marks) - 1
		before := g.base
		if last > 0 {
			before = g.marks[last-1].Sum
		}
		if sum <= before {
			g.marks = g.marks[:last]
			continue
		}
		if g.marks[last].Sum > sum {
			// Some units of the entry remain. Append a new entry for them, because entries are
			// never changed.
			g.marks = append(g.marks[:last:last], quota.LogEntry{At: g.marks[last].At, Sum: sum})
		}
		return
	}
}
