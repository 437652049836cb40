package watch

import (
	"slices"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

// HistoryEvery is the length of each interval that Traffic.History returns.
const HistoryEvery = 5 * time.Second

const historySlots = 180 // 15 minutes

// A Count counts requests by outcome, over one or more intervals.
type Count struct {
	Allowed int64 // requests that were allowed
	Refused int64 // requests that were refused by a limit, a ban, a deny list, or for lack of a key
	Shadow  int64 // requests that a rule in shadow mode would have refused
	Near    int64 // allowed requests that left less than a fifth of a limit; 0 for the rule ""

	// Failed counts requests that could not be decided, and Passed those of them that OnError
	// allowed. Both are 0 in the history of a single rule.
	Failed, Passed int64
}

// Add adds the counts in o to those in c.
func (c *Count) Add(o Count) {
	c.Allowed += o.Allowed
	c.Refused += o.Refused
	c.Shadow += o.Shadow
	c.Near += o.Near
	c.Failed += o.Failed
	c.Passed += o.Passed
}

// A slot is a Count that takes less memory.
type slot struct{ allowed, refused, shadow, near, failed, passed uint32 }

func (s *slot) count() Count {
	return Count{int64(s.allowed), int64(s.refused), int64(s.shadow), int64(s.near), int64(s.failed), int64(s.passed)}
}

// A history is the counts of one rule, or of all rules.
type history struct {
	slot   int64 // the newest
	newest *slot // &ring[slot%historySlots], or nil before the first request
	ring   [historySlots]slot
}

// at returns the counts of a slot, and empties those between it and the newest.
func (h *history) at(n int64) *slot {
	if n == h.slot && h.newest != nil {
		return h.newest
	}
	for h.slot = max(h.slot, n-historySlots); h.slot < n; {
		h.slot++
		h.ring[h.slot%historySlots] = slot{}
	}
	h.newest = &h.ring[h.slot%historySlots]
	return h.newest
}

// observe counts a request. allowed is true if no rule refused the request, refused if the rule of
// this history refused it, and near if the request left less than a fifth of a limit.
func (h *history) observe(n int64, allowed, refused, near, shadow bool) {
	s := h.at(n)
	switch {
	case refused && shadow:
		s.shadow++
	case refused:
		s.refused++
	case allowed:
		s.allowed++
		if near {
			s.near++
		}
	}
}

// observeTotal counts a request for all rules together.
func (t *Traffic) observeTotal(n int64, e *weir.Event) {
	if refused := e.Refusal.Reason != 0; !e.Shadow || refused {
		t.total.observe(n, !refused, refused, false, e.Shadow)
	}
}

// observeUncharged counts a request for which the store was not called, or for which it failed.
func (t *Traffic) observeUncharged(e *weir.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, _ := t.clock.read()
	if e.Err == nil {
		t.observeTotal(now, e)
		if rule := t.rule(e.Refusal.Rule); e.Refusal.Reason != 0 && rule >= 0 {
			t.histories[rule].observe(now, false, true, false, e.Shadow)
		}
		return
	}
	t.failed, t.cause = time.Now(), quota.Cause(e.Err)
	if !e.Shadow {
		s := t.total.at(now)
		s.failed++
		if e.Passed {
			s.passed++
		}
	}
}

// History returns the number of requests under a rule in the last 15 minutes, broken down by
// outcome. It returns one Count for each of 180 intervals, oldest first. The length of an interval
// is HistoryEvery. The last interval is still in progress; the second result is the time since it
// began. A request counts as allowed if no rule refused it, and as refused under each rule that
// refused it. If rule is "", every request is counted once. An interval without requests has a zero
// Count.
func (t *Traffic) History(rule string) (counts []Count, since time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, since := t.clock.read()
	counts = make([]Count, historySlots)
	h := &t.total
	if rule != "" {
		i := slices.Index(t.rules, rule)
		if i < 0 {
			return counts, since
		}
		h = t.histories[i]
	}
	h.at(now)
	for i := range counts {
		counts[i] = h.ring[(now+1+int64(i))%historySlots].count()
	}
	return counts, since
}

// Failure returns the cause (see quota.Cause) and the time of the last error that prevented a
// decision. If there was no such error, cause is empty.
func (t *Traffic) Failure() (cause string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause, t.failed
}
