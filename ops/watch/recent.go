package watch

import (
	"strings"
	"time"

	"github.com/seed83679106/weir"
)

// A Line describes one refusal, or several refusals of the same key within 10 s.
type Line struct {
	At         time.Time // of the first refusal, to the second
	Last       time.Time // of the last refusal, to the second
	Count      int64     // the number of refusals
	Rule, Key  string    // Key is as quota.Charge.StoredKey returns it
	Reason     weir.Reason
	Limit      string        // the limit that refused the request, if any
	RetryAfter time.Duration // of the first refusal; see weir.Refusal
	Route      string        // the pattern of the first request, or its method and path without the query
	Shadow     bool          // the rule is in shadow mode, so the requests were allowed

	// LeftOut is the number of refusals between the previous Line and this one that have no Line,
	// because at most 4 Lines are added per second.
	LeftOut int64
}

const (
	linesPerSecond = 4   // so that a flood of made-up keys does not clear the list at once; a fifth of the list may be added at once
	lineSeconds    = 10  // how long refusals of the same key are counted in one line
	maxRoute       = 120 // bytes of a route that are kept
)

// recent is a ring of the last lines. Line i has the index i % size.
type recent struct {
	size  int64
	lines []line
	n     int64 // how many lines there were

	second  int64 // until which budget was raised
	budget  int64 // how many lines may begin
	leftOut int64 // refusals since the last line
}

// A line is a Line whose times are seconds since the Top began.
type line struct {
	Line
	at, last int64
	of       *counted // the key, until another key takes its place
}

// observe adds a refusal of c.
func (r *recent) observe(e *weir.Event, c *counted, now int64) {
	if l := c.line; l != nil && now-l.at < lineSeconds && l.of == c && l.Reason == e.Refusal.Reason {
		l.last, l.Count = now, l.Count+1
		return
	}
	if r.budget += linesPerSecond * (now - r.second); r.budget > r.size/5 {
		r.budget = max(1, r.size/5)
	}
	r.second = now
	if r.budget == 0 {
		r.leftOut++
		return
	}
	r.budget--
	l := line{at: now, last: now, of: c, Line: Line{
		Count: 1, Rule: c.rule, Key: c.key, Reason: e.Refusal.Reason, RetryAfter: e.Refusal.RetryAfter, Route: routeOf(e),
		Shadow: c.shadow == 1, LeftOut: r.leftOut,
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

// routeOf returns the pattern of a request or, if it has none, its method and its path. The
// query may have secrets, so it is left out.
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

// Recent returns the latest refusals, newest first, and at most n of them. If refusals are
// frequent, some of them are left out (see Line.LeftOut).
func (t *Top) Recent(n int) (lines []Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.recent
	for i := r.n - 1; i >= max(0, r.n-r.size) && len(lines) < n; i-- {
		l := r.lines[i%r.size]
		l.At, l.Line.Last = t.time(l.at), t.time(l.last)
		lines = append(lines, l.Line)
	}
	return lines
}
