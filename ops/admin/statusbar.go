package admin

import (
	"cmp"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A statusBar is the top of the page, which describes this process.
type statusBar struct {
	Recorded bool        // Options.Traffic is set
	Minute   watch.Count // of all requests
	Over     float64     // how many seconds Minute covers

	Breakers, Open    int                 // how many there are, and how many are open
	Fallbacks, Active int                 // how many there are, and how many now decide instead of their first store: see decides
	Fallback          string              // when fallbacks decided last, such as "14 s ago", if that was in the last minute
	Decided           int64               // by fallbacks, since they were made
	last              quota.FallbackStats // of the fallback that decides now, or else of the longest recent outage
	outage            []string

	InMemory      bool   // the store is the memory of this process
	Redis         string // the addresses of Redis, if they are known
	Version       string
	Rules, Loaded string
	Up            float64 // seconds

	Failing bool   // decisions keep failing: see failing
	Failure string // such as "1 timeout, 14 s ago"; "" if all requests of the minute were decided
}

// failing reports whether decisions keep failing: in at least two of the last three intervals, no
// decision was possible for some requests. A single timeout is not enough.
func failing(counts []watch.Count) bool {
	n := 0
	for _, c := range counts[len(counts)-3:] {
		if c.Failed > 0 {
			n++
		}
	}
	return n > 1
}

// failureText says how many requests could not be decided, and when the last of them came.
func failureText(n int64, cause string, at time.Time) string {
	switch {
	case n == 0:
		return ""
	case n > 1:
		return number(n) + " errors, the last " + ago(at) + " ago"
	case cause == "timeout":
		return "1 timeout, " + ago(at) + " ago"
	}
	return "1 error, " + ago(at) + " ago"
}

// Requests returns how many requests there were.
func (s *statusBar) Requests() int64 { return s.Minute.Allowed + s.Minute.Refused + s.Minute.Failed }

// PerSecond returns the rate of n requests in the interval that Minute covers.
func (s *statusBar) PerSecond(n int64) string { return rate(n, s.Over) }

// Share returns how many of the requests were refused.
func (s *statusBar) Share() string { return share(s.Minute.Refused, s.Requests()) }

// lastMinute is the number of intervals of watch.Traffic.History in a minute.
const lastMinute = int(time.Minute / watch.HistoryEvery)

// minute returns the sum of the last minute, and how many seconds it covers.
func minute(counts []watch.Count, since time.Duration) (sum watch.Count, over float64) {
	for _, c := range counts[len(counts)-lastMinute:] {
		sum.Add(c)
	}
	return sum, (time.Duration(lastMinute-1)*watch.HistoryEvery + since).Seconds()
}

// statusBar returns the data of the status bar.
func (h *Handler) statusBar() *statusBar {
	s := &statusBar{Version: h.version, Up: time.Since(h.began).Seconds()}
	if i, ok := h.store.(optional.Instant); ok {
		s.InMemory = safe.Equal(i.Instant(), h.store)
	}
	if h.o.File != nil {
		s.Rules = h.o.File.Version()
		loaded, failed := h.o.File.Reloads()
		s.Loaded = fmt.Sprintf("%d reloaded, %d failed", loaded, failed)
		if at := h.reloaded().At; !at.IsZero() {
			s.Loaded = "read " + ago(at) + " ago, " + s.Loaded
		}
	}
	if h.o.Traffic != nil {
		s.Recorded = true
		counts, since := h.o.Traffic.History("")
		s.Minute, s.Over = minute(counts, since)
		cause, at := h.o.Traffic.Failure()
		s.Failing, s.Failure = failing(counts), failureText(s.Minute.Failed, cause, at)
		s.Over = min(s.Over, max(1, s.Up))
	}
	h.mu.Lock()
	s.last = h.longest
	h.mu.Unlock()
	var f fallbacks
	for _, store := range tally.StoresOf(append(h.o.Stores, h.store)) {
		switch store := store.(type) {
		case interface{ Addrs() []string }:
			s.Redis = addrsText(store.Addrs())
		case interface{ Stats() quota.BreakerStats }:
			s.Breakers++
			if store.Stats().Open {
				s.Open++
			}
		case interface{ Stats() quota.FallbackStats }:
			f.add(s, store.Stats())
		}
	}
	if time.Since(f.last) < time.Minute {
		s.Fallback = ago(f.last) + " ago"
	}
	s.outage = h.outage(f.decided, f.active, s.last)
	s.last.Active = f.active
	return s
}

// fallbacks are the combined statistics of all fallbacks in this process.
type fallbacks struct {
	decided map[string]int64 // by cause
	active  bool             // one of them decides
	last    time.Time        // when one of them decided last
}

// add adds the numbers of a fallback to f and to the status bar.
func (f *fallbacks) add(s *statusBar, st quota.FallbackStats) {
	s.Fallbacks++
	f.active = f.active || st.Active
	now, before := decides(st), decides(s.last)
	if now {
		s.Active++
	}
	if now && !before || now == before && lasted(st) >= lasted(s.last) {
		s.last = st
	}
	if st.Last.After(f.last) {
		f.last = st.Last
	}
	if f.decided == nil {
		f.decided = map[string]int64{}
	}
	for cause, n := range st.Decided {
		f.decided[cause] += n
		s.Decided += n
	}
}

// versionOf returns the version of this module in the program, or "" if it is not known.
func versionOf() string {
	const module = "github.com/seed83679106/weir"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			return strings.Trim(m.Version, "()")
		}
	}
	return ""
}

// reportFor is how long the page reports an outage that is over, or a change to the file.
const reportFor = 15 * time.Minute

// longOutage is the shortest outage that is still reported after it is over.
const longOutage = 5 * time.Second

// decides reports whether a fallback now decides instead of its first store: the first store has
// failed for at least a second, and again a moment ago. A single timeout is therefore not reported,
// and an outage is also over if no more requests come.
func decides(s quota.FallbackStats) bool {
	return s.Active && s.Last.Sub(s.Since) >= time.Second && time.Since(s.Last) < 3*watch.HistoryEvery
}

// lasted returns how long an outage was, or 0 if the page no longer reports it.
func lasted(s quota.FallbackStats) time.Duration {
	if time.Since(s.Last) > reportFor {
		return 0
	}
	return s.Last.Sub(s.Since)
}

// outage returns how many decisions fallbacks have made in the current outage, by cause: the most
// frequent cause first, and last the open breaker, because it is open for one of the other causes.
// The count begins at the last page that was shown without an outage. The method also records the
// outage that the page reports.
func (h *Handler) outage(decided map[string]int64, active bool, last quota.FallbackStats) (causes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lasted(last) >= lasted(h.longest) {
		h.longest, h.longest.Active = last, false
	}
	if !active {
		h.before = decided
		return nil
	}
	count := func(cause string) int64 {
		if cause == "open" {
			return 0
		}
		return decided[cause] - h.before[cause]
	}
	for _, cause := range slices.SortedFunc(maps.Keys(decided),
		func(a, b string) int { return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(a, b)) }) {
		if n := decided[cause] - h.before[cause]; n > 0 {
			causes = append(causes, fmt.Sprintf("%s: %s", causeText(cause), number(n)))
		}
	}
	return causes
}

// outageText says how long the store has been failing and why, or when it last failed. It returns
// "" if there was no recent outage, or only a short one.
func (s *statusBar) outageText() string {
	o, why := s.last, ""
	if o.Cause != "" {
		why = ", because " + causeText(o.Cause)
	}
	switch {
	case s.Active > 0:
		return fmt.Sprintf("The store has failed since %s%s. This process decides alone, by what it counts in its own memory. Decisions in memory, by cause: %s. The log has the error. Once the store works, this process uses it again by itself.",
			clockText(o.Since), why, strings.Join(s.outage, "; "))
	case lasted(o) < longOutage:
		return ""
	}
	text := fmt.Sprintf("The store failed from %s to %s%s. In that time this process decided alone, by what it counted in its own memory.", clockText(o.Since), clockText(o.Last), why)
	if !o.Active {
		text += " The store decides again."
	}
	return text
}

// causeText describes a cause that quota.Cause returns.
func causeText(cause string) string {
	switch cause {
	case "unusable":
		return "the store cannot work as it is set up"
	case "full":
		return "the store in memory is full"
	case "busy":
		return "the store is busy"
	case "open":
		return "the breaker is open"
	case "slow":
		return "the store is too slow for its timeout"
	case "timeout":
		return "the store did not answer in time"
	case "limit":
		return "a limit is invalid"
	}
	return "the store cannot be reached, or answers with an error"
}

// clockText formats a time, with the date only if it was more than 12 hours ago.
func clockText(t time.Time) string {
	if time.Since(t) > 12*time.Hour {
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return t.UTC().Format("15:04:05 UTC")
}
