package weir

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/sfv"
)

// An ServerLimit is what the other side of a request says of one of its limits.
type ServerLimit struct {
	// Name is that of the policy, where the dialect has one.
	Name string

	// Unit is what is counted: "requests" if nothing else is said.
	Unit string

	// Limit and Remaining are in that unit; -1 is unknown.
	Limit, Remaining int64

	// Window is the period of the limit; 0 is unknown.
	Window time.Duration

	// ResetAfter is the wait until more is free (IETF) or all is (the other
	// dialects), a day at most; 0 is unknown, or past.
	ResetAfter time.Duration
}

// What a response may say is bounded: it is somebody else's.
const (
	maxAdvice  = 24 * time.Hour // the longest wait that is believed
	maxAdvices = 64             // limits of one response
	maxField   = 16 << 10       // bytes of a structured field; a longer one is void
	maxLines   = 16             // of Retry-After
	maxText    = 256            // bytes of a time, a unit or a resource; longer ones are ignored
)

// ParseHeaders returns what response fields say of limits, in every [Dialect],
// and how long they ask to wait (Retry-After, retry-after-ms; 0 if they don't).
// h has canonical keys, as net/http makes them. now is the reader's clock when
// the response came.
//
// A limit that is told in two dialects is returned twice. IETF and the drafts
// come first, each limit with its policy, if there is one: joined by name and
// partition key, or by quota in Draft06 and Draft07.
//
// Servers mix the forms of a time up, so that each field may have any. A number
// below 10^8 is seconds from now, below 10^11 Unix seconds, else Unix
// milliseconds, with decimals or without; retry-after-ms always counts from
// now. A Unix time more than a year past is none, but somebody's idea of
// forever. The rest are durations ("6m0s"), RFC 3339 and the three forms of an
// HTTP date. No wait is longer than 24 hours: whoever asks for more is asked
// again after a day. What cannot be read, or is negative, says nothing.
//
// Clocks differ. A time is measured from the response's Date, by the clock of
// who sent both; it has whole seconds, so that a wait may come out a second
// long, never short. Where Date is missing, or more than a day from now, which
// no clock in use is, now counts.
//
// A response from a cache (Age > 0) tells how things were: of it only
// Retry-After is read.
//
// Where Retry-After is sent twice the longer wait counts. retry-after-ms within
// a second of it is the same wait, said better.
func ParseHeaders(h http.Header, now time.Time) (advice []ServerLimit, retryAfter time.Duration) {
	r := headerReader{h: h, base: now}
	if r.count("Age") > 0 {
		return nil, r.retryAfter()
	}
	if date := h.Get("Date"); date != "" && len(date) <= maxText {
		if t, err := http.ParseTime(date); err == nil && t.Sub(now).Abs() <= maxAdvice {
			r.base = t
		}
	}
	r.readPolicies()
	r.readRateLimit()
	for i := range triples {
		t := &triples[i]
		if !t.perUnit() {
			r.readTriple(*t, requests)
			continue
		}
		for _, unit := range r.units(t) {
			r.readTriple(t.named(unit), strings.ToLower(unit))
		}
	}
	for _, k := range r.known {
		advice = append(advice, k.ServerLimit)
	}
	return advice, r.retryAfter()
}

// A headerReader collects what fields say.
type headerReader struct {
	h        http.Header
	base     time.Time // what times are measured from
	known    []known   // policies first
	policies int
}

// known is a ServerLimit, and what tells to which policy it belongs.
type known struct {
	ServerLimit
	dialect      Dialect
	partition    sfv.ByteSequence
	hasRemaining bool // what is left of the policy is known
}

// readPolicies reads RateLimit-Policy. Items with a name are of IETF, items
// that are a number of Draft06 and Draft07. An item that is neither is skipped.
func (r *headerReader) readPolicies() {
	policies, _ := r.members(policyField, false)
	for _, m := range policies {
		k := known{ServerLimit: ServerLimit{Unit: requests, Remaining: -1}}
		switch v := m.Value.(type) {
		case string:
			k.dialect, k.Name, k.Limit = IETF, v, units(m.Params[quotaKey])
			if unit, ok := m.Params[unitKey].(string); ok {
				k.Unit = unit
			}
			k.partition, _ = m.Params[partitionKey].(sfv.ByteSequence)
		case int64:
			k.dialect, k.Limit = Draft06|Draft07, units(v)
		default:
			continue
		}
		const longest = math.MaxInt64 / int64(time.Second)
		k.Window = time.Duration(min(max(0, units(m.Params[windowKey])), longest)) * time.Second
		if k.Limit >= 0 {
			r.add(k)
		}
	}
	r.policies = len(r.known)
}

// readRateLimit reads RateLimit: a List in IETF, a Dictionary in Draft07. No
// field that says something is both.
func (r *headerReader) readRateLimit() {
	items, list := r.members(ietfField, false)
	for _, m := range items {
		k := known{ServerLimit: ServerLimit{Unit: requests, Limit: -1, Remaining: units(m.Params[leftKey])}, dialect: IETF}
		name, named := m.Value.(string)
		if !named || k.Remaining < 0 {
			continue
		}
		k.Name = name
		k.partition, _ = m.Params[partitionKey].(sfv.ByteSequence)
		k.ResetAfter = r.after(units(m.Params[timeKey]), 0)
		r.join(k)
	}
	if list {
		return
	}
	items, _ = r.members(ietfField, true)
	k := known{ServerLimit: ServerLimit{Unit: requests, Limit: -1, Remaining: -1}, dialect: Draft07}
	for _, m := range items {
		switch m.Key {
		case limitMember:
			k.Limit = units(m.Value)
		case remainingMember:
			k.Remaining = units(m.Value)
		case resetMember:
			k.ResetAfter = r.after(units(m.Value), 0)
		}
	}
	if k.Limit >= 0 || k.Remaining >= 0 {
		r.join(k)
	}
}

// members parses a structured field, all of its lines.
func (r *headerReader) members(name string, dictionary bool) (members []sfv.Member, ok bool) {
	size := 0
	for _, line := range r.h[name] {
		size += len(line) + 2
	}
	if size > maxField {
		return nil, false
	}
	return sfv.Parse(strings.Join(r.h[name], ", "), dictionary)
}

// units returns a value that counts something, or -1.
func units(v any) int64 {
	if n, ok := v.(int64); ok && n >= 0 {
		return n
	}
	return -1
}

// join adds what is left of a limit to the limit's policy, or to what is known
// if there is none. A partition key that one of them lacks is no difference.
func (r *headerReader) join(k known) {
	for i := range r.known[:r.policies] {
		p := &r.known[i]
		switch {
		case p.dialect&k.dialect == 0 || p.Name != k.Name:
		case k.dialect != IETF && p.Limit != k.Limit:
		case p.partition != k.partition && p.partition != "" && k.partition != "":
		default:
			if !p.hasRemaining {
				p.Remaining, p.ResetAfter, p.hasRemaining = k.Remaining, k.ResetAfter, true
				return
			}
			k.Limit, k.Unit, k.Window = p.Limit, p.Unit, p.Window
		}
	}
	r.add(k)
}

func (r *headerReader) add(k known) {
	if len(r.known) < maxAdvices {
		r.known = append(r.known, k)
	}
}

// readTriple reads a limit from three fields. A reset alone is no limit.
func (r *headerReader) readTriple(t triple, unit string) {
	k := known{ServerLimit: ServerLimit{Unit: unit, Limit: r.count(t.limit), Remaining: r.count(t.remaining)}, dialect: t.dialect}
	if t.dialect&GitHub != 0 {
		if name := r.h.Get(resourceField); len(name) <= maxText {
			k.Name = name
		}
		if used := r.count(usedField); k.Remaining < 0 && k.Limit >= 0 && used >= 0 {
			k.Remaining = max(0, k.Limit-used)
		}
	}
	if k.Limit < 0 && k.Remaining < 0 {
		return
	}
	k.ResetAfter = r.wait(r.h.Get(t.reset))
	if t.dialect == Draft06 {
		r.join(k)
		return
	}
	r.add(k)
}

// units returns the units that a dialect's fields name, the first maxAdvices in
// the order of the alphabet.
func (r *headerReader) units(t *triple) (units []string) {
	for _, pattern := range []string{t.limit, t.remaining} {
		prefix, suffix, _ := strings.Cut(pattern, "%s")
		for name := range r.h {
			unit, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			unit, ok = strings.CutSuffix(unit, suffix)
			i, found := slices.BinarySearch(units, unit)
			if !ok || found || unit == "" || len(unit) > maxText || i == maxAdvices {
				continue
			}
			units = slices.Insert(units[:min(len(units), maxAdvices-1)], i, unit)
		}
	}
	return units
}

// count reads a number of units, or -1. Drafts before 06 had policies behind
// it: 100, 100;w=60.
func (r *headerReader) count(name string) int64 {
	s := r.h.Get(name)
	if i := strings.IndexAny(s, ",;"); i >= 0 {
		s = s[:i]
	}
	if n, _, ok := number(s); ok {
		return n
	}
	return -1
}
