package histories_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// An op is one call of a store: what was asked, when, and what was returned.
type op struct {
	Worker       int
	Kind         kind
	Pair         string
	Call, Return int64 // ns since 1970; all processes read one clock
	Err          string
	Store        way
	answer
}

// cached reports whether the refusal of o may have come from the memory of its process.
func (o *op) cached() bool { return o.Store != bare && o.Err == "" && !o.Allowed }

// An answer is what a call returned.
type answer struct {
	Allowed   bool
	Remaining []int64 // one for each charge
	Waits     int     // if refused by a meter: until how many units have drained; otherwise 0
}

// matches compares what was returned with what a counter would have returned.
func (a answer) matches(is answer) bool {
	return a.Allowed == is.Allowed && (a.Waits == 0 || a.Waits == is.Waits) && slices.Equal(a.Remaining, is.Remaining)
}

type kind int

const (
	spendA    kind = iota // a unit of the pair's first key
	spendB                // a unit of its second key
	spendBoth             // a unit of each, or of none
	spendTwo              // two units of the first key
	refund                // gives a unit of the first key back
	look                  // costs nothing
	forget                // deletes the state of the first key
	reserve               // a unit of the first key, now or as soon as one is free
	cancel                // gives back what reserve has spent
	counts                // the number of kinds that charge a pair
	burst                 // a unit of a GCRA for all pairs
	logged                // a unit of a log for all pairs
)

const quotaOfPair = 40

// state is how many units of each key of a pair are spent, and whether one more unit of the
// first key is reserved. A key is limited from its first refusal until nothing of it is spent.
type state struct {
	a, b               int
	reserved           bool
	limitedA, limitedB bool
}

// apply returns the state after an operation, and what the operation returns.
func (s state) apply(k kind) (after state, is answer) {
	after = s
	switch k {
	case spendA:
		after.a++
	case spendB:
		after.b++
	case spendBoth:
		after.a++
		after.b++
	case spendTwo:
		after.a += 2
	case refund:
		after.a = max(0, after.a-1)
	case forget:
		after.a, after.reserved = 0, false
	case reserve:
		if s.a < quotaOfPair {
			after.a++
		} else {
			after.reserved = true
		}
	case cancel:
		after.reserved = false
	}
	if is.Allowed = after.a <= quotaOfPair && after.b <= quotaOfPair; !is.Allowed {
		is.Waits = max(after.a, after.b) - quotaOfPair
		if s.reserved && after.a > quotaOfPair {
			is.Waits = after.a - quotaOfPair + 1
		}
		s.limitedA, s.limitedB = s.limitedA || after.a > quotaOfPair, s.limitedB || after.b > quotaOfPair
		after = s
	}
	after.limitedA, after.limitedB = after.limitedA && after.a > 0, after.limitedB && after.b > 0
	a, b := int64(quotaOfPair-after.a), int64(quotaOfPair-after.b)
	switch k {
	case spendB:
		is.Remaining = []int64{b}
	case spendBoth:
		is.Remaining = []int64{a, b}
	default:
		is.Remaining = []int64{a}
	}
	return after, is
}

// A search looks for an order of a pair's operations in which one counter after the other
// would have returned what the store returned, and in which no operation is before another one
// that had returned when it was called (Herlihy and Wing, Linearizability, 1990). Operations
// that failed may have any place after their call, or none. Of failed operations of one kind,
// the order of their calls is the only one that has to be tried: each of them could take the
// place of a later one.
type search struct {
	workers [][]op       // the operations that returned, by worker, in their order
	failed  [counts][]op // those that failed, in their order
	evicts  bool
	seen    map[string]bool
	steps   int
}

const maxSteps = 2_000_000

type verdict int

const (
	possible verdict = iota
	impossible
	tooLarge
)

// linearizable searches in the operations of one pair.
func linearizable(ops []op, evicts bool) verdict {
	s := search{seen: map[string]bool{}, evicts: evicts}
	byWorker := map[int]int{}
	for _, o := range slices.SortedFunc(slices.Values(ops), func(x, y op) int { return cmp.Compare(x.Call, y.Call) }) {
		if o.Err != "" {
			if o.Kind != look {
				s.failed[o.Kind] = append(s.failed[o.Kind], o)
			}
			continue
		}
		n, ok := byWorker[o.Worker]
		if !ok {
			n = len(s.workers)
			byWorker[o.Worker] = n
			s.workers = append(s.workers, nil)
		}
		s.workers[n] = append(s.workers[n], o)
	}
	switch {
	case s.from(state{}, make([]int, len(s.workers)), [counts]int{}):
		return possible
	case s.steps > maxSteps:
		return tooLarge
	}
	return impossible
}

// from reports whether the rest of the operations has an order: those after next of each
// worker, and any of those that failed after lost of each kind.
func (s *search) from(now state, next []int, lost [counts]int) bool {
	position := fmt.Sprint(now, next, lost)
	if s.seen[position] || s.steps > maxSteps {
		return false
	}
	s.seen[position] = true
	s.steps++
	first := int64(math.MaxInt64) // the operations that come next were called before any returned
	for w, n := range next {
		if n < len(s.workers[w]) {
			first = min(first, s.workers[w][n].Return)
		}
	}
	if first == math.MaxInt64 {
		return true
	}
	for w, n := range next {
		if n == len(s.workers[w]) || s.workers[w][n].Call > first {
			continue
		}
		o := s.workers[w][n]
		after, is := now.apply(o.Kind)
		if !o.matches(is) {
			continue
		}
		next[w]++
		ok := s.from(after, next, lost)
		next[w]--
		if ok {
			return true
		}
	}
	for k, list := range s.failed {
		if lost[k] == len(list) || list[lost[k]].Call > first {
			continue
		}
		after, _ := now.apply(kind(k))
		used := lost
		used[k]++
		if s.from(after, next, used) {
			return true
		}
	}
	return s.evicts && (now.a > 0 && !now.limitedA && s.from(state{b: now.b, limitedB: now.limitedB}, next, lost) ||
		now.b > 0 && !now.limitedB && s.from(state{a: now.a, reserved: now.reserved, limitedA: now.limitedA}, next, lost))
}

// beyond returns how many units of each key of a pair were admitted beyond its quota, at least:
// refunds that failed count as made.
func beyond(ops []op) (units int) {
	var net state
	for _, o := range ops {
		switch {
		case o.Kind == refund:
			net.a--
		case o.Err != "" || !o.Allowed:
		case o.Kind == spendA:
			net.a++
		case o.Kind == spendB:
			net.b++
		case o.Kind == spendBoth:
			net.a++
			net.b++
		}
	}
	return max(0, net.a-quotaOfPair) + max(0, net.b-quotaOfPair)
}

// stale returns for how long a refusal from memory was wrong when its call began: since when the key
// could not have been full. It is 0 if the key could have been full while the call ran, and -1 if
// it was never full. ops are all operations of the pair in the order of their calls.
func (o *op) stale(ops []op) time.Duration {
	type change struct {
		at int64
		by int
	}
	latest := int64(-1)
	for k, kinds := range map[kind][]kind{spendA: {spendA, spendBoth}, spendB: {spendB, spendBoth}} {
		if o.Kind != k && o.Kind != spendBoth {
			continue
		}
		var changes []change // as early as units can have been spent, and as late as they can have been refunded
		for i := range ops {
			switch p := &ops[i]; {
			case slices.Contains(kinds, p.Kind) && (p.Err != "" || p.Allowed):
				changes = append(changes, change{p.Call, 1})
			case p.Kind == refund && k == spendA && p.Err == "" && p.Remaining[0] < quotaOfPair: // else there was perhaps no unit
				changes = append(changes, change{p.Return, -1})
			}
		}
		slices.SortFunc(changes, func(x, y change) int { return cmp.Compare(x.at, y.at) })
		for n, i := 0, 0; i < len(changes) && changes[i].at <= o.Return; i++ {
			if n = max(0, n+changes[i].by); n < quotaOfPair {
				continue
			}
			end := o.Return
			if i+1 < len(changes) {
				end = min(end, changes[i+1].at)
			}
			latest = max(latest, end)
		}
	}
	if latest < 0 {
		return -1
	}
	return time.Duration(max(0, o.Call-latest))
}

// densest returns the most units of a kind that were certainly admitted within one period:
// called and returned in it.
func densest(ops []op, k kind, period time.Duration) (most int) {
	var list []op
	for _, o := range ops {
		if o.Kind == k && o.Err == "" && o.Allowed {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(x, y op) int { return cmp.Compare(x.Call, y.Call) })
	for i, first := range list {
		n := 0
		for _, o := range list[i:] {
			if o.Call >= first.Call+int64(period) {
				break
			}
			if o.Return < first.Call+int64(period) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// gap returns the longest time without an answer.
func gap(ops []op) time.Duration {
	var longest, last int64
	list := slices.SortedFunc(slices.Values(ops), func(x, y op) int { return cmp.Compare(x.Return, y.Return) })
	for _, o := range list {
		if o.Err != "" {
			continue
		}
		if last != 0 {
			longest = max(longest, o.Return-last)
		}
		last = o.Return
	}
	return time.Duration(longest).Round(time.Millisecond)
}
