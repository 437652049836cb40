package accesslog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

// A Report contains the results of replaying a log.
type Report struct {
	Format     Format
	Lines      int64
	Requests   int64 // that were replayed
	Refused    int64
	NoRequest  int64 // lines without an HTTP request
	Unreadable int64
	FirstError error // of the first unreadable line
	Errors     int64 // requests for which no decision was possible
	From, To   time.Time
	Rules      []*Rule

	Unordered int64         // lines with a time before that of an earlier line, put in order
	Late      int64         // lines that came too late to be put in order, and were not replayed
	FirstLate int64         // the number of the first such line
	MostLate  time.Duration // how late the latest of these lines was

	NotReplayed  []Missing
	WholeSeconds bool  // no time has a fraction of a second
	Proxied      int64 // requests of trusted proxies, whose clients the log does not name
	Forgotten    int64 // counts that were forgotten before they had expired

	Peer     string // the peer from which most requests come, unless it is a trusted proxy
	FromPeer int64  // at least as many
	peers    *tally
}

// fewRequests is the number of requests below which the report does not conclude that most
// requests come from one address.
const fewRequests = 100

// end sets Peer, and returns an error if the report covers too little of the log.
func (r *Report) end() error {
	for peer, n := range r.peers.n {
		if n > r.Requests/2 && r.Requests >= fewRequests {
			r.Peer, r.FromPeer = peer, n
		}
	}
	switch read := r.Lines - r.NoRequest; {
	case r.Requests == 0:
		return errors.New("the log has no request that can be read")
	case r.Unreadable > max(1, read/10): // one of them may be the last line, which is being written
		return fmt.Errorf("%s of the lines could not be read, so the report says little", share(r.Unreadable, read))
	}
	return nil
}

// A Missing names a rule that was not replayed.
type Missing struct{ Rule, Why string }

// A Rule contains the results of one rule. Requests counts the requests that the rule limited.
// Requests without a key, requests in an allow list, and requests that another rule denies are not
// counted.
type Rule struct {
	Name              string
	Limits            []quota.Limit
	Enforce           weir.Enforcement // of weir.Rule
	Penalty           bool             // the rule bans keys, which was not replayed
	Requests, Refused int64
	First, Last       time.Time // the first and the last refusal
	Top               []Key     // the keys that were refused most often
	Unsure            int64     // the counts of Top may be too low by up to this number

	keys    *tally
	demands []*demand // with Options.Suggest
}

// A Key is a key that a rule refused.
type Key struct {
	Key     string `json:"key"`
	Refused int64  `json:"refused"`
}

// A tally counts how often keys occur. The memory of a tally is bounded: if there are too many
// keys, the half with the lowest counts is dropped.
type tally struct {
	most  int
	n     map[string]int64
	least int64 // by how much the count of a key may be too low: the sum of the highest counts that were dropped
}

// These are the maximum numbers of keys and of peers in a tally.
const (
	maxTallied = 100_000
	maxPeers   = 16
)

func newTally(most int) *tally { return &tally{most: most, n: map[string]int64{}} }

func (t *tally) add(key string) {
	t.n[key]++
	if len(t.n) <= t.most {
		return
	}
	dropped := slices.Sorted(maps.Values(t.n))[t.most/2]
	maps.DeleteFunc(t.n, func(_ string, n int64) bool { return n <= dropped })
	t.least += dropped
}

const tops = 5 // how many keys a Report names for each rule

func (t *tally) top() (keys []Key, unsure int64) {
	for key, n := range t.n {
		keys = append(keys, Key{key, n})
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key))
	})
	return keys[:min(len(keys), tops)], t.least
}

// Write writes a human-readable report about the log with the given name.
func (r *Report) Write(w io.Writer, name string) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	if r.Requests > 0 {
		p("%s: %s, %s from %s to %s", name, r.Format, many(r.Requests, "request"), FormatTime(r.From), FormatTime(r.To))
		p("refused: %s (%s)", digits(r.Refused), share(r.Refused, r.Requests))
	}
	for _, rule := range r.Rules {
		verb := "refused"
		switch {
		case rule.Enforce == weir.Percent(0):
			verb = "would refuse (shadow)"
		case rule.Enforce != weir.Percent(100):
			verb = "refused, or would refuse (shadow)"
		}
		p("\nrule %s (%s)", rule.Name, describe(rule.Limits))
		p("  %s requests, %s allowed, %s %s (%s)", digits(rule.Requests), digits(rule.Requests-rule.Refused), verb,
			digits(rule.Refused), share(rule.Refused, rule.Requests))
		if rule.Refused > 0 {
			p("  first refusal %s, last %s", FormatTime(rule.First), FormatTime(rule.Last))
			var keys []string
			for _, k := range rule.Top {
				keys = append(keys, strconv.Quote(k.Key)+" "+digits(k.Refused))
			}
			p("  refused most: %s", strings.Join(keys, ", "))
		}
		if rule.Unsure > 0 {
			p("  more than %s keys were refused: these numbers may be too low by %s", digits(maxTallied/2), digits(rule.Unsure))
		}
		if rule.Penalty {
			p("  its bans are not replayed: they would refuse more")
		}
	}
	if len(r.Rules)+len(r.NotReplayed) > 0 {
		p("")
	}
	for _, m := range r.NotReplayed {
		p("rule %s %s: not replayed", m.Rule, m.Why)
	}
	for _, note := range r.Notes() {
		p("%s", note)
	}
}

// Notes returns sentences that explain what was not replayed, and why the numbers are inexact.
func (r *Report) Notes() (notes []string) {
	add := func(applies bool, format string, args ...any) {
		if applies {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(r.Unreadable > 0, "%s could not be read; the first is %v", many(r.Unreadable, "line"), r.FirstError)
	add(r.NoRequest > 0, "%s without an HTTP request", many(r.NoRequest, "line"))
	add(r.Unordered > 0, "%s with a time before that of an earlier line: put in order", many(r.Unordered, "line"))
	add(r.Late > 0, "%s up to %v behind earlier lines: not replayed; the first is line %d. Give the older log first, or sort the lines",
		many(r.Late, "line"), r.MostLate.Round(time.Second), r.FirstLate)
	add(r.Proxied > 0, "%s of trusted proxies, whose clients the log does not name: they count for the address of the proxy", many(r.Proxied, "request"))
	add(r.FromPeer > 0, "at least %s come from %s: if that is a proxy or a load balancer, list it in trusted-proxies; otherwise its clients share their limits",
		many(r.FromPeer, "request"), r.Peer)
	add(r.WholeSeconds && r.Requests > 0, "the times are whole seconds: the requests of a second count as if they came at once, so the limits refuse more than with exact times")
	add(r.Forgotten > 0, "%s forgotten before they had expired, so the limits refuse less than they should: set a larger -max-keys", many(r.Forgotten, "count"))
	add(r.Errors > 0, "%s could not be decided", many(r.Errors, "request"))
	return notes
}

// FormatTime formats a time from a log, in the log's time zone.
func FormatTime(t time.Time) string { return t.Format("2006-01-02 15:04:05 -0700") }

// describe formats limits, such as "100 in 1m0s by gcra".
func describe(limits []quota.Limit) string {
	if len(limits) == 0 {
		return "no separate limits"
	}
	var all []string
	for _, l := range limits {
		text := fmt.Sprintf("%s in %v by %s", digits(l.Quota), l.Period, l.Algorithm.Name())
		if l.Burst > 0 {
			text += ", burst " + digits(l.Burst)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func many(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return digits(n) + " " + what
}

// digits writes n with a comma between groups of three digits.
func digits(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func share(n, of int64) string {
	if of == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(100*float64(n)/float64(of), 'f', 1, 64) + " %"
}
