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
	Fallbacks, Active int                 // how many there are, and how many have decided for more than a moment, and still do
	Fallback          string              // when fallbacks decided last, such as "14 s ago", if that was in the last minute
	Decided           int64               // by fallbacks, since they were made
	last              quota.FallbackStats // of the fallback that decides, or else had the longest outage of late
	outage            []string

	InMemory      bool   // the store is the memory of this process
	Redis         string // the addresses of Redis, if they are known
	Version       string
	Rules, Loaded string
	Up            float64 // seconds

	Failing bool   // requests have failed to be decided for more than a moment, and still do
	Failure string // such as "1 timeout, 14 s ago"; "" if all requests of the minute were decided
}

// failing reports whether a state goes on in which requests cannot be decided: they could not be in
// two of the last three intervals. A single timeout is none.
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

// PerSecond returns n in the time of Minute as a rate.
func (s *statusBar) PerSecond(n int64) string { return rate(n, s.Over) }

// Share returns how many of the requests were refused.
func (s *statusBar) Share() string { return share(s.Minute.Refused, s.Requests()) }

// lastMinute is how many intervals of watch.Traffic.History are a minute.
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

// fallbacks are what the fallbacks of a process did together.
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

// reportFor is for how long the page reports an outage that is over, and of a change of the file.
const reportFor = 15 * time.Minute

// longOutage is how long an outage must have lasted to be a finding once it is over.
const longOutage = 5 * time.Second

// decides reports whether a state goes on in which a fallback decides: its first store has failed for
// a second or longer, and did so a moment ago. A single timeout is none, and no request ends it.
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

// outage returns what fallbacks have decided since the page was last shown while none did, by
// cause, the most frequent first, and last the breaker, which is open because of another cause. It
// remembers the outage that the page reports.
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

// outageText says since when the store fails and why, or when it last failed. It returns "" if it
// has not failed for long, or not lately.
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

// causeText says what a cause of quota.Cause is.
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

// clockText formats a time of the last hours.
func clockText(t time.Time) string {
	if time.Since(t) > 12*time.Hour {
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return t.UTC().Format("15:04:05 UTC")
}
