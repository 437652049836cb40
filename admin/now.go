package admin

import (
	"cmp"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
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

	Breakers, Open    int    // how many there are, and how many are open
	Fallbacks, Active int    // how many there are, and how many have decided for more than a moment, and still do
	Fallback          string // when fallbacks decided last, such as "14 s ago", if that was in the last minute
	Decided           int64  // by fallbacks, since they were made
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

// addrsText joins addresses, at most three of them.
func addrsText(addrs []string) string {
	if more := len(addrs) - 3; more > 0 {
		return strings.Join(addrs[:3], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(addrs, ", ")
}

// Requests returns how many requests there were.
func (s *strip) Requests() int64 { return s.Minute.Allowed + s.Minute.Refused + s.Minute.Failed }

// PerSecond returns n in the time of Minute as a rate.
func (s *strip) PerSecond(n int64) string { return rate(n, s.Over) }

// Share returns how many of the requests were refused.
func (s *strip) Share() string { return share(s.Minute.Refused, s.Requests()) }

// rate returns n in so many seconds as a rate.
func rate(n int64, over float64) string {
	r := float64(n) / max(1, over)
	switch {
	case n == 0:
		return "0/s"
	case r < 1:
		return fmt.Sprintf("%.1f/min", 60*r)
	case r < 10:
		return fmt.Sprintf("%.1f/s", r)
	}
	return number(int64(r+.5)) + "/s"
}

// share returns n of all in percent.
func share(n, all int64) string {
	switch p := 100 * float64(n) / float64(max(1, all)); {
	case n == 0:
		return "0 %"
	case p < 1:
		return "below 1 %"
	case n < all && p > 99:
		return "over 99 %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// number formats n with commas: 12,345.
func number(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

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
		if f, ok := h.o.File.(interface{ Loaded() time.Time }); ok {
			s.Loaded = "read " + ago(f.Loaded()) + " ago, " + s.Loaded
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
	s.outage = h.outage(decided, inUse)
	return s
}

// decides reports whether a state goes on in which a fallback decides: its first store has failed for
// a second or longer, and did so a moment ago. A single timeout is none, and no request ends it.
func decides(s quota.FallbackStats) bool {
	return s.Active && s.Last.Sub(s.Since) >= time.Second && time.Since(s.Last) < 3*watch.HistoryEvery
}

// outage returns what fallbacks have decided since the page was last shown while none did, by
// cause, the most frequent first.
func (h *Handler) outage(decided map[string]int64, active bool) (causes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !active {
		h.before = decided
		return nil
	}
	count := func(cause string) int64 { return decided[cause] - h.before[cause] }
	for _, cause := range slices.SortedFunc(maps.Keys(decided), func(a, b string) int { return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(a, b)) }) {
		if n := count(cause); n > 0 {
			causes = append(causes, fmt.Sprintf("%s: %s", causeText(cause), number(n)))
		}
	}
	return causes
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
	case "timeout":
		return "the store did not answer in time"
	case "limit":
		return "a limit is invalid"
	}
	return "the store cannot be reached, or answers with an error"
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

// A ruleRow is what the page shows of a rule.
type ruleRow struct {
	ruleBody
	Last15 watch.Count
	Minute watch.Count
	Spark  spark
	keys   int   // how many keys the rule refused in the last 5 minutes, as far as they are known
	recent int   // how many of these keys it refused in the last minute
	all    int64 // refusals of these keys, at least
	most   watch.Refused
}

// Share returns how many requests the rule refused in the last minute.
func (r *ruleRow) Share() string { return share(r.Minute.Refused, r.Minute.Allowed+r.Minute.Refused) }

// Bad reports whether the rule refuses half of its requests.
func (r *ruleRow) Bad() bool { return r.Minute.Refused > 0 && r.Minute.Refused >= r.Minute.Allowed }

// ruleRows returns a row for each rule. offenders are the keys of the last 5 minutes.
func (h *Handler) ruleRows(rules []ruleBody, offenders []watch.Refused) []ruleRow {
	rows := make([]ruleRow, len(rules))
	for i := range rules {
		r := &rows[i]
		r.ruleBody = rules[i]
		for _, k := range offenders {
			if k.Rule != r.Name || k.Shadow != (r.Enforce == 0) {
				continue
			}
			if r.keys == 0 {
				r.most = k
			}
			r.keys, r.all = r.keys+1, r.all+k.AtLeast()
			if time.Since(k.Last) < time.Minute {
				r.recent++
			}
		}
		if h.o.Traffic == nil {
			continue
		}
		counts, since := h.o.Traffic.History(r.Name)
		r.Minute, _ = minute(counts, since)
		for _, c := range counts {
			r.Last15.Add(c)
		}
		r.Spark = sparkOf(counts)
	}
	return rows
}

// A spark is the drawing of 15 minutes: an outline of all requests, and within it of those that
// were refused or would have been.
type spark struct {
	All, Shadow, Refused string // data of SVG paths, in a box of 60 by 20
	Peak                 string // the most requests in a column, as a rate
}

// sparkOf draws columns of 15 s.
func sparkOf(counts []watch.Count) (s spark) {
	const columns, height = 60, 20
	var sums [columns]watch.Count
	most := int64(0)
	for i, c := range counts {
		sum := &sums[i*columns/len(counts)]
		sum.Add(c)
		most = max(most, sum.Allowed+sum.Shadow+sum.Refused)
	}
	if most == 0 {
		return s
	}
	draw := func(n func(c *watch.Count) int64) string {
		var path strings.Builder
		for i := range sums {
			if n := n(&sums[i]); n > 0 {
				y := max(1, float64(height)*float64(n)/float64(most)) // a single refusal is seen, too
				fmt.Fprintf(&path, "M%d %dv-%.1fh1v%.1fz", i, height, y, y)
			}
		}
		return path.String()
	}
	s.All = draw(func(c *watch.Count) int64 { return c.Allowed + c.Shadow + c.Refused })
	s.Shadow = draw(func(c *watch.Count) int64 {
		if c.Shadow == 0 {
			return 0
		}
		return c.Shadow + c.Refused
	})
	s.Refused = draw(func(c *watch.Count) int64 { return c.Refused })
	s.Peak = rate(most, 15)
	return s
}

// An offender is a key that was refused in the last 5 minutes, or in the last hour.
type offender struct {
	watch.Refused
	Five, Hour int64 // refusals, at least
	Rate       string
	Ago        string
}

// mostOffenders is how many keys of each window are shown, and mostShadows how many of these may be
// keys that only a rule in shadow would have refused. Those come last.
const mostOffenders, mostShadows = 10, 5

// offenders returns the keys that were refused most in the last 5 minutes, and those of the last
// hour that are not among them.
func (h *Handler) offenders(five []watch.Refused, over time.Duration) []offender {
	type id struct {
		rule, key string
		shadow    bool
	}
	idOf := func(k *watch.Refused) id { return id{k.Rule, k.Key, k.Shadow} }
	hour, _ := h.o.Top.Keys(time.Hour)
	inFive, inHour := map[id]int64{}, map[id]int64{}
	for i := range five {
		inFive[idOf(&five[i])] = five[i].AtLeast()
	}
	for i := range hour {
		inHour[idOf(&hour[i])] = hour[i].AtLeast()
	}
	list, shown := []offender{}, map[id]bool{}
	for _, shadow := range []bool{false, true} {
		for _, keys := range [][]watch.Refused{five, hour} {
			most := mostOffenders
			if shadow {
				most = mostShadows
			}
			for i := range keys {
				k, id := &keys[i], idOf(&keys[i])
				if k.Shadow != shadow {
					continue
				}
				if !shown[id] {
					shown[id] = true
					list = append(list, offender{*k, inFive[id], inHour[id], rate(inFive[id], over.Seconds()), ago(k.Last)})
				}
				if most--; most == 0 {
					break
				}
			}
		}
	}
	return list
}

// ago says how long ago something was.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < 2*time.Second:
		return "1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
