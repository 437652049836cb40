package accesslog

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// Lines may be out of order, because a line is written when its request ends but may contain the
// time at which the request arrived. The entries of the most recent interval of length slack are
// therefore held back and sorted. At most maxHeld entries with at most maxBytes bytes are held
// back.
const (
	slack    = 10 * time.Minute
	maxHeld  = 50_000
	maxBytes = 32 << 20
)

// Options determine what is replayed. Rules must not be empty.
type Options struct {
	Rules   []weir.Rule
	Reads   func(rule string) []string // what the key and the cost of a rule read: see config.File.Reads
	Trusted []netip.Prefix             // the proxies whose X-Forwarded-For the keys trust
	MaxKeys int                        // the maximum number of counts that are kept at a time; 0 means 1,000,000
	Suggest bool                       // true to count the units that keys request, too: see Report.WriteSuggestions
}

// A Replay replays a log. Pass the lines of the log to Add in their order.
type Replay struct {
	o       Options
	in      *bufio.Reader
	err     error
	handler http.Handler
	counts  *counts
	held    []held // the earliest first; those of one instant in the order of the log
	bytes   int    // of the lines of held
	newest  time.Time
	report  Report
	rules   map[string]*Rule
	now     time.Time // of the entry that was replayed last
	request http.Request
}

// New returns a Replay of a log that has no lines yet.
func New(o Options) *Replay {
	o.MaxKeys = cmp.Or(o.MaxKeys, 1_000_000)
	return &Replay{o: o, counts: newCounts(o.MaxKeys), rules: map[string]*Rule{}, report: Report{WholeSeconds: true, peers: newTally(maxPeers)}}
}

// Add reads the next line, which must not include its line end. The first line that can be read
// determines the format of the log. If no rule can be replayed with that format, Add and all later
// calls return an error.
func (r *Replay) Add(line string) error {
	if r.err != nil {
		return r.err
	}
	r.report.Lines++
	if strings.TrimSpace(line) == "" {
		return nil
	}
	e, f, err := parse(line, r.report.Format)
	if err == errNoRequest {
		r.report.NoRequest++
		return nil
	}
	if err != nil {
		r.Unreadable(err)
		return nil
	}
	if r.report.Format == 0 {
		r.report.Format = f
		if r.err = r.start(); r.err != nil {
			return r.err
		}
	}
	r.report.WholeSeconds = r.report.WholeSeconds && e.at.Nanosecond() == 0
	if late := r.now.Sub(e.at); late > 0 {
		if r.report.Late++; r.report.FirstLate == 0 {
			r.report.FirstLate = r.report.Lines
		}
		r.report.MostLate = max(r.report.MostLate, r.newest.Sub(e.at))
		return nil
	}
	if e.at.Before(r.newest) {
		r.report.Unordered++
	} else {
		r.newest = e.at
	}
	behind := sort.Search(len(r.held), func(i int) bool { return r.held[i].at.After(e.at) })
	r.held = slices.Insert(r.held, behind, held{e, len(line)})
	r.bytes += len(line)
	for len(r.held) > maxHeld || r.bytes > maxBytes || r.newest.Sub(r.held[0].at) > slack {
		r.release()
	}
	return nil
}

// Unreadable counts one unreadable line: either the last line read, which is not in the format, or
// a line that is too long to be read.
func (r *Replay) Unreadable(err error) {
	if r.report.Unreadable++; r.report.FirstError == nil {
		r.report.FirstError = fmt.Errorf("line %d: %w", r.report.Lines, err)
	}
}

// start creates a Limiter for the rules that can be replayed with the log.
func (r *Replay) start() error {
	o := weir.Options{Headers: headers.None, NoFromContext: true, Observe: r.observe,
		OnLimited: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Logger: slog.New(slog.DiscardHandler)}
	for _, rule := range r.o.Rules {
		if why := r.lacks(&rule); why != "" {
			r.report.NotReplayed = append(r.report.NotReplayed, Missing{rule.Name, why})
			continue
		}
		o.Rules = append(o.Rules, rule)
		r.rules[rule.Name] = &Rule{Name: rule.Name, Limits: rule.Limits, Enforce: rule.Enforce, Penalty: rule.Penalty != nil,
			keys: newTally(maxTallied)}
		o.Rules[len(o.Rules)-1].Penalty = nil // a Limiter remembers bans on the clock of the process
	}
	if len(o.Rules) == 0 {
		return errors.New("no rule can be replayed")
	}
	l, err := weir.New(r.counts, o)
	if err != nil {
		return err
	}
	r.handler = l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return nil
}

// lacks returns the reason why a rule cannot be replayed, or "".
func (r *Replay) lacks(rule *weir.Rule) string {
	if rule.Settle != nil {
		return "charges what a handler reports, which the log does not have"
	}
	for _, l := range rule.Limits {
		if l.InFlight() {
			return "limits requests in flight, and the log does not say how long each request was"
		}
	}
	for _, read := range r.o.Reads(rule.Name) {
		if r.report.Format.has(read) {
			continue
		}
		what := read
		if name, arg, ok := strings.Cut(read, ":"); ok {
			what = name + " " + arg
		}
		return "uses " + what + ", which the log does not have"
	}
	return ""
}

// release replays the earliest entry that is held back.
func (r *Replay) release() {
	first := r.held[0]
	r.held[0] = held{}
	r.held = r.held[1:]
	r.bytes -= first.bytes
	r.decide(first.entry)
}

// decide passes an entry to the Limiter.
func (r *Replay) decide(e *entry) {
	r.now = e.at
	r.counts.now = e.at.UnixMicro()
	if r.report.Requests++; r.report.Requests == 1 {
		r.report.From = e.at
	}
	r.report.To = e.at
	path, query, _ := strings.Cut(e.uri, "?")
	r.request = http.Request{Method: e.method, RequestURI: e.uri, URL: &url.URL{Path: path, RawQuery: query},
		Host: e.host, Header: e.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, RemoteAddr: "@"}
	if e.peer.IsValid() {
		r.request.RemoteAddr = netip.AddrPortFrom(e.peer, 1).String()
	}
	if e.user != "" {
		r.request.SetBasicAuth(e.user, "")
	}
	peer := e.peer.Unmap().WithZone("")
	switch trusted := slices.ContainsFunc(r.o.Trusted, func(p netip.Prefix) bool { return p.Contains(peer) }); {
	case !trusted && peer.IsValid():
		r.report.peers.add(peer.String())
	case !trusted: // the log does not contain the peer
	case e.header["X-Forwarded-For"] == nil && e.header["Forwarded"] == nil:
		r.report.Proxied++
	}
	r.handler.ServeHTTP(noResponse{}, &r.request)
}

// A noResponse is a ResponseWriter that nobody reads.
type noResponse struct{}

func (noResponse) Header() http.Header            { return http.Header{} }
func (noResponse) Write(data []byte) (int, error) { return len(data), nil }
func (noResponse) WriteHeader(int)                {}

// observe counts each rule's decision on the latest entry.
func (r *Replay) observe(e weir.Event) {
	if e.Err != nil {
		r.report.Errors++
		return
	}
	if e.Refusal.Reason != 0 && !e.Shadow {
		r.report.Refused++
	}
	t := e.Transaction
	if f := e.Refusal; f.Reason > weir.ReasonLimit { // no store was called
		if rule := r.rules[f.Rule]; rule != nil {
			rule.count(r.now, e.Key, true)
		}
		return
	}
	for i := 0; i < len(t.Charges); {
		rule, key, refused := t.Charges[i].Rule, t.Charges[i].Key, false
		of := r.rules[rule]
		for ; i < len(t.Charges) && t.Charges[i].Rule == rule; i++ {
			refused = refused || !t.Decisions[i].Allowed
			if r.o.Suggest && of != nil {
				of.demand(&t.Charges[i]).add(key, r.now, t.Charges[i].Cost)
			}
		}
		if of != nil {
			of.count(r.now, key, refused)
		}
	}
}

func (r *Rule) count(at time.Time, key string, refused bool) {
	r.Requests++
	if !refused {
		return
	}
	if r.Refused++; r.Refused == 1 {
		r.First = at
	}
	r.Last = at
	r.keys.add(storedkey.Of(key))
}

// demand returns the demand for the limit of a charge. Tiers and overrides of this limit, which
// differ only in their numbers, share the demand.
func (r *Rule) demand(c *quota.Charge) *demand {
	for _, d := range r.demands {
		if d.limit.Period == c.Limit.Period && d.limit.Label() == c.Limit.Label() {
			return d
		}
	}
	d := newDemand(c.Limit, maxSampled)
	r.demands = append(r.demands, d)
	return d
}

// Report replays the entries that are still held back, and returns the results. Do not add
// lines afterwards.
func (r *Replay) Report() (*Report, error) {
	for len(r.held) > 0 {
		r.release()
	}
	for _, rule := range r.o.Rules {
		if is := r.rules[rule.Name]; is != nil {
			is.Top, is.Unsure = is.keys.top()
			for _, d := range is.demands {
				d.finish()
			}
			r.report.Rules = append(r.report.Rules, is)
		}
	}
	r.report.Forgotten = r.counts.forgotten
	return &r.report, cmp.Or(r.err, r.report.end())
}

// held contains an entry that is held back, and the length of its line.
type held struct {
	*entry
	bytes int
}

// maxLine is the largest length of a line in bytes. Servers accept request lines of at most a few
// kilobytes.
const maxLine = 1 << 18

var errTooLong = fmt.Errorf("the line has more than %d KiB", maxLine>>10)

// Read adds the lines of a log: see Open. It returns the first error from Open, from in, or from
// Add.
func (r *Replay) Read(in io.Reader) error {
	err := r.Open(in)
	for more := err == nil; more; {
		more, err = r.Next(1 << 20)
	}
	return err
}

// Open begins to read a log, which may be compressed by gzip.
func (r *Replay) Open(in io.Reader) error {
	r.in = bufio.NewReaderSize(in, maxLine)
	if start, _ := r.in.Peek(2); string(start) == "\x1f\x8b" {
		z, err := gzip.NewReader(r.in)
		if err != nil {
			return err
		}
		r.in = bufio.NewReaderSize(z, maxLine)
	}
	return nil
}

// Next adds up to n further lines of the log, and reports whether there are more of them. A line
// that is too long counts as unreadable.
func (r *Replay) Next(n int) (more bool, err error) {
	for range n {
		line, tooLong, err := r.in.ReadLine()
		switch {
		case tooLong:
			r.report.Lines++
			r.Unreadable(errTooLong)
			for tooLong && err == nil {
				_, tooLong, err = r.in.ReadLine()
			}
		case err == nil:
			err = r.Add(string(line))
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if _, err = r.in.Peek(1); err == io.EOF {
		return false, nil
	}
	return err == nil, err
}
