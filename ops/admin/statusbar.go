package admin

import (
	"cmp"
	"fmt"
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

// A statusBar contains the data at the top of the page, which describes this process.
type statusBar struct {
	Recorded bool        // Options.Recorder is set
	Minute   watch.Count // of all requests
	Over     float64     // how many seconds Minute covers

	Breakers, Open    int                 // how many there are, and how many are open
	Fallbacks, Active int                 // how many there are, and how many now use their second store: see decides
	Fallback          string              // when a fallback last used its second store, such as "14 s ago", if this was in the last minute
	Decided           int64               // by the second stores of fallbacks, since the start
	latest            time.Time           // when a fallback last used its second store
	outage            quota.FallbackStats // of the fallback that now uses its second store or, if none does, of the longest recent outage

	InMemory      bool   // the store is the memory of this process
	Redis         string // the addresses of Redis, if they are known
	Version       string
	Rules, Loaded string
	Up            float64 // seconds

	Failing bool   // decisions keep failing: see failing
	Failure string // such as "1 timeout, 14 s ago"; "" if a decision was made for all requests of the minute
}

// failing reports whether decisions keep failing, that is, whether no decision was possible for
// some requests in at least two of the last three intervals. A single timeout is not enough.
func failing(counts []watch.Count) bool {
	n := 0
	for _, c := range counts[len(counts)-3:] {
		if c.Failed > 0 {
			n++
		}
	}
	return n > 1
}

// failureText describes how many requests got no decision, and when the last of them arrived.
func failureText(n int64, cause string, at time.Time) string {
	switch {
	case n == 0:
		return ""
	case n > 1:
		return number(n) + " errors, the last " + ago(at) + " ago"
	case cause != "timeout":
		cause = "error"
	}
	return "1 " + cause + ", " + ago(at) + " ago"
}

// Requests returns how many requests there were.
func (s *statusBar) Requests() int64 { return s.Minute.Allowed + s.Minute.Refused + s.Minute.Failed }

// PerSecond returns the rate of n requests in the interval that Minute covers.
func (s *statusBar) PerSecond(n int64) string { return rate(n, s.Over) }

// Share returns the percentage of requests that were refused.
func (s *statusBar) Share() string { return share(s.Minute.Refused, s.Requests()) }

// lastMinute is the number of intervals of watch.Recorder.History in a minute.
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
	counts, since := h.o.Recorder.History("")
	s.Minute, s.Over = minute(counts, since)
	cause, at := h.o.Recorder.Failure()
	s.Recorded, s.Failing, s.Failure = h.hasRecorder, failing(counts), failureText(s.Minute.Failed, cause, at)
	s.Over = min(s.Over, max(1, s.Up))
	s.addStores(h)
	if time.Since(s.latest) < time.Minute {
		s.Fallback = ago(s.latest) + " ago"
	}
	return s
}

// addStores adds the numbers of the stores, and keeps the outage that the page reports.
func (s *statusBar) addStores(h *Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	outages := []quota.FallbackStats{h.outage}
	active := false
	for _, store := range tally.StoresOf([]quota.Store{h.store}) {
		switch store := store.(type) {
		case interface{ Addrs() []string }:
			s.Redis = strings.Join(store.Addrs(), ", ")
		case interface{ Stats() quota.BreakerStats }:
			s.Breakers++
			if store.Stats().Open {
				s.Open++
			}
		case interface{ Stats() quota.FallbackStats }:
			st := store.Stats()
			s.addFallback(&st)
			outages, active = append(outages, st), active || st.Active
		}
	}
	byLength := func(a, b quota.FallbackStats) int { return cmp.Compare(lasted(a), lasted(b)) }
	h.outage = slices.MaxFunc(outages, byLength)
	h.outage.Active = false // a fallback in use is among the stores, too
	s.outage = h.outage
	if now := slices.DeleteFunc(outages, func(o quota.FallbackStats) bool { return !decides(o) }); len(now) > 0 {
		s.outage = slices.MaxFunc(now, byLength)
	}
	s.outage.Active = active
}

// addFallback adds the numbers of a fallback.
func (s *statusBar) addFallback(st *quota.FallbackStats) {
	s.Fallbacks++
	for _, n := range st.Decided {
		s.Decided += n
	}
	if decides(*st) {
		s.Active++
	}
	if st.Last.After(s.latest) {
		s.latest = st.Last
	}
}

// versionOf returns the version of this module in the program, or "" if it is unknown.
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

// reportFor is the time for which the page reports an outage that is over, or a change to the file.
const reportFor = 15 * time.Minute

// longOutage is the minimum length of an outage that is reported after it is over.
const longOutage = 5 * time.Second

// decides reports whether a fallback now uses its second store, that is, whether the first store
// has been failing for at least a second, and last failed a moment ago. A single timeout is
// therefore not reported. An outage also counts as over if no more requests arrive.
func decides(s quota.FallbackStats) bool {
	return s.Active && s.Last.Sub(s.Since) >= time.Second && time.Since(s.Last) < 3*watch.HistoryEvery
}

// lasted returns the length of an outage, or 0 if the page no longer reports it.
func lasted(s quota.FallbackStats) time.Duration {
	if time.Since(s.Last) > reportFor {
		return 0
	}
	return s.Last.Sub(s.Since)
}

// outageText describes why and for how long the store has been failing. If the store works again,
// outageText describes when the store last failed. The text is empty if there was no recent outage,
// or only a short one.
func (s *statusBar) outageText() string {
	o, why := s.outage, ""
	if o.Cause != "" {
		why = ", because " + causeText(o.Cause)
	}
	switch {
	case s.Active > 0:
		return fmt.Sprintf("The store has failed since %s%s. This process decides alone, by what it counts in its own memory. The log has the error. Once the store works, this process uses it again by itself.",
			clockText(o.Since), why)
	case lasted(o) < longOutage:
		return ""
	}
	text := fmt.Sprintf("The store failed from %s to %s%s. In that time this process decided alone, by what it counted in its own memory.", clockText(o.Since), clockText(o.Last), why)
	if !o.Active {
		text += " The store decides again."
	}
	return text
}

// causes maps the causes that quota.Cause returns to their descriptions.
var causes = map[string]string{
	"unusable": "the store cannot work as it is set up",
	"full":     "the store in memory is full",
	"busy":     "the store is busy",
	"open":     "the breaker is open",
	"slow":     "the store is too slow for its timeout",
	"timeout":  "the store did not answer in time",
	"limit":    "a limit is invalid",
}

func causeText(cause string) string {
	return cmp.Or(causes[cause], "the store cannot be reached, or answers with an error")
}

// clockText formats a time, with the date only if it was more than 12 hours ago.
func clockText(t time.Time) string {
	if time.Since(t) > 12*time.Hour {
		return t.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return t.UTC().Format("15:04:05 UTC")
}
