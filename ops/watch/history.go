package watch

import (
	"slices"
	"time"
)

// HistoryEvery is the length of each interval that Recorder.History returns.
const HistoryEvery = 5 * time.Second

const historySlots = 180 // 15 minutes

// A Count counts requests by outcome, over one or more intervals.
type Count struct {
	Allowed int64 // requests that were allowed
	Refused int64 // requests that were refused by a limit, a ban, a deny list, or for lack of a key
	Shadow  int64 // requests that a rule in shadow mode would have refused
	Near    int64 // allowed requests that left less than a fifth of a limit; 0 for the rule ""

	// Failed counts requests for which no decision was possible, and Passed counts those of them
	// that OnError allowed. Both counts are 0 in the history of a single rule.
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

// A history is the counts of one rule, or of all rules.
type history struct {
	slot int64               // the newest
	ring [historySlots]Count // slot n has the index n % historySlots
}

// at returns the counts of a slot, and clears the slots between the newest slot and this one.
func (h *history) at(n int64) *Count {
	for h.slot = max(h.slot, n-historySlots); h.slot < n; {
		h.slot++
		h.ring[h.slot%historySlots] = Count{}
	}
	return &h.ring[h.slot%historySlots]
}

// observe counts a request. allowed reports whether no rule refused the request, refused whether
// the rule of this history refused it, and near whether the request left less than a fifth of a
// limit.
func (h *history) observe(n int64, allowed, refused, near, shadow bool) {
	s := h.at(n)
	switch {
	case refused && shadow:
		s.Shadow++
	case refused:
		s.Refused++
	case allowed:
		s.Allowed++
		if near {
			s.Near++
		}
	}
}

// History returns the number of requests under a rule in the last 15 minutes, broken down by
// outcome. It returns one Count for each of 180 intervals, oldest first. The length of an interval
// is HistoryEvery. The last interval is still in progress; the second result is the time since it
// began. A request counts as allowed if no rule refused it, and as refused under each rule that
// refused it. If the rule's name is "", every request is counted once. An interval without requests
// has a zero Count.
func (t *traffic) History(rule string) (counts []Count, since time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, since := t.slot()
	h := &t.total
	if rule != "" {
		i := slices.Index(t.rules, rule)
		if i < 0 {
			return make([]Count, historySlots), since
		}
		h = t.histories[i]
	}
	h.at(now)
	oldest := (now + 1) % historySlots
	return slices.Concat(h.ring[oldest:], h.ring[:oldest]), since
}

// Failure returns the cause (see quota.Cause) and the time of the last error that prevented a
// decision. If there was no such error, cause is empty.
func (t *traffic) Failure() (cause string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause, t.failed
}
