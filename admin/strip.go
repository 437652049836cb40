package admin

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/tally"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/watch"
)

// A strip is what the top of the page says of this process.
type strip struct {
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
func (s *strip) Requests() int64 { return s.Minute.Allowed + s.Minute.Refused + s.Minute.Failed }

// PerSecond returns n in the time of Minute as a rate.
func (s *strip) PerSecond(n int64) string { return rate(n, s.Over) }

// Share returns how many of the requests were refused.
func (s *strip) Share() string { return share(s.Minute.Refused, s.Requests()) }

// lastMinute is how many intervals of watch.Traffic.History are a minute.
const lastMinute = int(time.Minute / watch.HistoryEvery)

// minute returns the sum of the last minute, and how many seconds it covers.
func minute(counts []watch.Count, since time.Duration) (sum watch.Count, over float64) {
	for _, c := range counts[len(counts)-lastMinute:] {
		sum.Add(c)
	}
	return sum, (time.Duration(lastMinute-1)*watch.HistoryEvery + since).Seconds()
}

// strip returns the data of the strip.
func (h *Handler) strip() *strip {
	s := &strip{Version: h.version, Up: time.Since(h.began).Seconds()}
	if i, ok := h.store.(quota.Instant); ok {
		s.InMemory = compare.Equal(i.Instant(), h.store)
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
	decided, inUse, last := map[string]int64{}, false, time.Now().Add(-time.Minute)
	began := last
	h.mu.Lock()
	s.last = h.told
	h.mu.Unlock()
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
			st := store.Stats()
			s.Fallbacks++
			inUse = inUse || st.Active
			if decides(st) {
				s.Active++
			}
			if d, old := decides(st), decides(s.last); d && !old || d == old && lasted(st) >= lasted(s.last) {
				s.last = st
			}
			if st.Last.After(last) {
				last = st.Last
			}
			for cause, n := range st.Decided {
				decided[cause] += n
				s.Decided += n
			}
		}
	}
	if last != began {
		s.Fallback = ago(last) + " ago"
	}
	s.outage = h.outage(decided, inUse, s.last)
	s.last.Active = inUse
	return s
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
