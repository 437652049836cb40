package watch

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// A top finds the keys that were refused most often in the last hour, and remembers the latest
// refusals. Each of its keys takes about 600 bytes of memory, and each refusal about 300 bytes.
//
// A top uses the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, "Efficient Computation of
// Frequent and Top-k Elements in Data Streams", 2005) with counts that expire. A top that remembers
// n keys drops a key only if the key has at most 1/n of the refusals in an hour. A client that
// makes up keys can therefore displace a given key only by being refused n times as often as that
// key.
type top struct {
	n      int
	mu     sync.Mutex
	began  time.Time
	minute int64 // the newest, since the top began
	known  map[topKey]*countedKey
	counts counts      // heap
	last   *countedKey // the key that was refused last
	recent recent
}

// minutes is the number of minutes for which a top counts, including the current minute.
const minutes = 60

type ruleKey struct{ rule, key string }

// A topKey is a key under a rule that may be in shadow mode.
type topKey struct {
	ruleKey
	shadow bool
}

// A countedKey is a key that a top remembers.
type countedKey struct {
	topKey
	at int // its index in top.counts

	perMinute [minutes]uint32 // refusals, in minute m at index m % minutes
	sum       int64           // of perMinute
	since     int64           // the minute in which the key was first refused
	before    uint32          // how many refusals in that minute belong to other keys, as do all earlier refusals

	reason weir.Reason // of the last refusal
	last   time.Time   // when the last refusal was
	line   *line       // the last line of this key, if it is still in the ring
}

// counts is a heap.Interface: the key with the lowest sum comes first.
type counts []*countedKey

func (c counts) Len() int           { return len(c) }
func (c counts) Less(i, j int) bool { return c[i].sum < c[j].sum }
func (c counts) Swap(i, j int)      { c[i], c[j] = c[j], c[i]; c[i].at, c[j].at = i, j }
func (c *counts) Push(x any)        { *c = append(*c, x.(*countedKey)) }
func (c *counts) Pop() any          { panic("watch: a top forgets no key but by replacing it") }

// Refused describes a key that was refused under a rule. The number of refusals is at most Count
// and at least Count − Error.
type Refused struct {
	Rule         string
	Key          string // as quota.Charge.StoredKey returns it; "" also stands for requests without a key
	Count, Error int64

	Shadow bool        // the rule is in shadow mode, so the requests were allowed
	Reason weir.Reason // of the last refusal
	Last   time.Time   // the time of the last refusal
}

// AtLeast returns Count − Error, the minimum number of refusals.
func (r *Refused) AtLeast() int64 { return r.Count - r.Error }

// init makes t remember n keys and n refusals. Counting a refusal takes O(log n) time, except once a
// minute, when it takes O(n) time.
func (t *top) init(n int) {
	t.n, t.began, t.known = n, time.Now(), make(map[topKey]*countedKey, n)
	t.recent = recent{size: int64(n), budget: max(1, int64(n)/5)}
}

// observe counts a refused request once for each rule that refused it. Requests that a rule in
// shadow mode would have refused are counted separately. Errors are not counted.
func (t *top) observe(e *weir.Event) {
	by := e.Refusal.Reason
	if e.Err != nil || e.Transaction == nil || by == 0 && e.Shadow {
		return
	}
	if by > weir.ReasonLimit {
		t.count(e, e.Refusal.Rule, e.Key, by)
		return
	}
	charges, decisions := e.Transaction.Charges, e.Transaction.Decisions
	for i := range charges {
		if decisions[i].Allowed {
			continue
		}
		first := true // whether this is the first limit of its rule that refused
		for j := range charges[:i] {
			first = first && (decisions[j].Allowed || charges[j].Rule != charges[i].Rule)
		}
		if first {
			t.count(e, charges[i].Rule, charges[i].Key, weir.ReasonLimit)
		}
	}
}

func (t *top) count(e *weir.Event, rule, key string, by weir.Reason) {
	k := topKey{ruleKey{rule, storedkey.Of(key)}, e.Shadow}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	c := t.last
	if c == nil || c.topKey != k { // in a flood it is usually the same key
		if c = t.known[k]; c == nil {
			c = t.take(k)
		}
		t.last = c
	}
	c.perMinute[t.minute%minutes]++
	c.sum++
	c.reason, c.last = by, now
	heap.Fix(&t.counts, c.at)
	if rule == e.Refusal.Rule {
		t.recent.observe(e, c, now)
	}
}

// take returns the counts of a new key. If the top is full, take replaces the key that has the
// lowest count, and the new key continues from that count.
func (t *top) take(k topKey) (c *countedKey) {
	if len(t.counts) < t.n {
		c = &countedKey{at: len(t.counts)}
		heap.Push(&t.counts, c)
	} else {
		c = t.counts[0]
		delete(t.known, c.topKey)
	}
	c.topKey = topKey{ruleKey{strings.Clone(k.rule), strings.Clone(k.key)}, k.shadow}
	c.since, c.before, c.line = t.minute, c.perMinute[t.minute%minutes], nil
	t.known[c.topKey] = c
	return c
}

// expire drops the refusals of the minutes that are no longer counted when a new minute begins.
func (t *top) expire(minute int64) {
	if minute == t.minute {
		return
	}
	for m := max(t.minute, minute-minutes) + 1; m <= minute; m++ {
		for _, c := range t.counts {
			c.sum -= int64(c.perMinute[m%minutes])
			c.perMinute[m%minutes] = 0
		}
	}
	t.minute = minute
	heap.Init(&t.counts)
}

// refused returns how often a key was refused in the last n minutes, including the current one.
func (t *top) refused(c *countedKey, n int64) Refused {
	r := Refused{Rule: c.rule, Key: c.key, Shadow: c.shadow, Reason: c.reason, Last: c.last}
	for m := max(0, t.minute-n+1); m <= t.minute; m++ {
		r.Count += int64(c.perMinute[m%minutes])
		switch {
		case m < c.since:
			r.Error = r.Count
		case m == c.since:
			r.Error += int64(c.before)
		}
	}
	return r
}

// now returns the current time, and drops what has expired.
func (t *top) now() time.Time {
	if t.known == nil {
		t.init(defaultKeys)
	}
	now := time.Now()
	t.expire(int64(now.Sub(t.began) / time.Minute))
	return now
}

// Find returns how often a key was refused under a rule in the last hour. If the Recorder remembers no
// refusal of the key, ok is false. Find counts refusals in shadow mode only if the key has no
// other refusals under the rule.
func (t *top) Find(rule, key string) (r Refused, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now()
	for _, shadow := range []bool{false, true} {
		if c := t.known[topKey{ruleKey{rule, storedkey.Of(key)}, shadow}]; c != nil && c.sum > 0 {
			return t.refused(c, minutes), true
		}
	}
	return r, false
}

// Top returns the keys that were refused within the last d, sorted by AtLeast, largest first. The
// duration d is rounded up to a whole number of minutes, from 1 to 60. The current minute counts as
// one of these, although it has not ended. The second result is the duration that the counts
// actually cover. Keys that clients make up come last, because their Error is almost as large as
// their Count.
func (t *top) Top(d time.Duration) (keys []Refused, over time.Duration) {
	n := min(max(1, int64((d+time.Minute-1)/time.Minute)), minutes)
	t.mu.Lock()
	t.now()
	keys = make([]Refused, 0, len(t.counts))
	for _, c := range t.counts {
		if r := t.refused(c, n); r.AtLeast() > 0 {
			keys = append(keys, r)
		}
	}
	over = time.Since(t.began) - time.Duration(max(0, t.minute-n+1))*time.Minute
	t.mu.Unlock()
	slices.SortFunc(keys, func(a, b Refused) int { // while requests go on
		return cmp.Or(cmp.Compare(b.AtLeast(), a.AtLeast()), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return keys, over
}

// A Line describes one refusal, or several refusals of the same key within 10 s.
type Line struct {
	At         time.Time // of the first refusal
	Last       time.Time // of the last refusal
	Count      int64     // the number of refusals
	Rule, Key  string    // Key is as quota.Charge.StoredKey returns it
	Reason     weir.Reason
	Limit      string        // the limit that refused the request, if any
	RetryAfter time.Duration // of the first refusal; see weir.Refusal
	Route      string        // the pattern of the first request, or its method and path without the query
	Shadow     bool          // the rule is in shadow mode, so the requests were allowed

	// LeftOut is the number of refusals between the previous Line and this Line for which no Line
	// was added, because at most 4 Lines are added per second.
	LeftOut int64
}

const (
	linesPerSecond = 4                // so that a flood of made-up keys does not displace the list at once; a fifth of the list may be added at once
	lineTime       = 10 * time.Second // how long refusals of the same key are counted in one line
	maxRoute       = 120              // bytes of a route that are kept
)

// recent is a ring of the last lines. Line i has the index i % size.
type recent struct {
	size  int64
	lines []line
	n     int64 // how many lines there were

	raised  time.Time // the time up to which budget was raised
	budget  int64     // how many lines may begin
	leftOut int64     // refusals since the last line
}

type line struct {
	Line
	of *countedKey // the key, until another key takes its place
}

// observe adds a refusal of c.
func (r *recent) observe(e *weir.Event, c *countedKey, now time.Time) {
	if l := c.line; l != nil && now.Sub(l.At) < lineTime && l.of == c && l.Reason == e.Refusal.Reason {
		l.Last, l.Count = now, l.Count+1
		return
	}
	if more := int64(now.Sub(r.raised) / (time.Second / linesPerSecond)); more > 0 {
		r.budget, r.raised = min(r.budget+more, max(1, r.size/5)), now
	}
	if r.budget == 0 {
		r.leftOut++
		return
	}
	r.budget--
	l := line{of: c, Line: Line{
		At: now, Last: now, Count: 1, Rule: c.rule, Key: c.key, Reason: e.Refusal.Reason, RetryAfter: e.Refusal.RetryAfter, Route: routeOf(e),
		Shadow: c.shadow, LeftOut: r.leftOut,
	}}
	if l.Reason == weir.ReasonLimit {
		l.Limit = strings.Clone(longest(e))
	}
	if r.lines == nil {
		r.lines = make([]line, r.size)
	}
	r.leftOut = 0
	c.line = &r.lines[r.n%r.size]
	*c.line = l
	r.n++
}

// routeOf returns the pattern of a request or, if it has none, its method and its path. The query
// is omitted, because it may contain secrets.
func routeOf(e *weir.Event) string {
	r := e.Request
	switch {
	case r == nil || r.URL == nil:
		return ""
	case r.Pattern != "":
		return cut(r.Pattern)
	}
	return cut(r.Method + " " + cut(r.URL.Path))
}

// cut returns a copy of at most maxRoute bytes of s that is valid UTF-8.
func cut(s string) string {
	if len(s) > maxRoute {
		s = s[:maxRoute] + "…"
	}
	return strings.Clone(strings.ToValidUTF8(s, "�"))
}

// Recent returns at most n of the latest refusals, newest first. If refusals are frequent, some of
// them are left out (see Line.LeftOut).
func (t *top) Recent(n int) (lines []Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.recent
	for i := r.n - 1; i >= max(0, r.n-r.size) && len(lines) < n; i-- {
		lines = append(lines, r.lines[i%r.size].Line)
	}
	return lines
}
