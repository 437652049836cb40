// Package headers writes and parses rate-limit header fields.
//
//	package main
//
//	import (
//		"fmt"
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/seed83679106/weir/headers"
//	)
//
//	func main() {
//		resp, err := http.Get("https://api.github.com/zen")
//		if err != nil {
//			log.Fatal(err)
//		}
//		resp.Body.Close()
//		limits, retryAfter := headers.Parse(resp.Header, time.Now())
//		for _, l := range limits {
//			fmt.Println(l.Remaining, "of", l.Limit, l.Unit, "left; more in", l.ResetAfter)
//		}
//		fmt.Println("wait", retryAfter)
//	}
//
// # Clients
//
// [Parse] understands all dialects and Retry-After. weir.Limiter.Transport calls it for each
// response.
//
// # Servers
//
// If a server uses package weir, set weir.Options.Headers to one or more Dialects, such as
// headers.IETF | headers.GitHub. If it calls package quota directly, use a [Writer] to set the
// fields.
//
// # Vocabulary
//
//   - A dialect is a set of field names and value formats, such as [XRateLimit], which is the
//     oldest, or [IETF], which is a draft standard.
//   - A policy is a limit's description in a response: its name, quota and window.
package headers

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Limit describes one of a server's limits, as parsed from a response.
type Limit struct {
	// Name is the name of the policy, or "" if the dialect does not send names.
	Name string

	// Unit is the unit that the limit counts: "requests" unless the server names another one.
	Unit string

	// Limit and Remaining count units; -1 means unknown.
	Limit, Remaining int64

	// Window is the period of the limit; 0 means unknown.
	Window time.Duration

	// ResetAfter is the wait until more units (IETF) or all units (other dialects) are available.
	// It is at most 24 hours; 0 means that the time is unknown or has passed.
	ResetAfter time.Duration
}

// These bounds apply because a response may be hostile.
const (
	maxWait   = 24 * time.Hour // longer waits are reduced to this
	maxLimits = 64             // limits of one response
	maxField  = 16 << 10       // bytes of a structured field; a longer field is ignored
	maxLines  = 16             // lines of Retry-After
	maxText   = 256            // bytes of a time, a unit or a resource; longer values are ignored
)

// Parse returns the limits that a response's header fields describe, and how long Retry-After or
// retry-after-ms asks the client to wait. If the response contains neither field, retryAfter is 0.
// The keys of h must be in canonical form, as in headers read by net/http. The given time (now) is
// when the response arrived, by the local clock.
//
// A limit that the response describes in two dialects is returned twice. The limits begin with
// those in the dialects IETF, Draft06 and Draft07. If the response also describes the policy of
// such a limit, the limit and its policy are combined in one Limit.
//
// Because some servers use the wrong time format for a field, Parse accepts any format in any
// field. Numbers below 10^8 are seconds from now, larger numbers below 10^11 are Unix seconds, and
// even larger numbers are Unix milliseconds. A number may have decimals. The retry-after-ms field,
// however, always contains the number of milliseconds to wait. A Unix time more than a year in the
// past means "never", so the wait is 24 hours. Other formats are durations ("6m0s"), RFC 3339 and
// the three HTTP date formats. Waits are capped at 24 hours. Negative and malformed values are
// ignored.
//
// The server's clock may differ from the local one, so Parse interprets absolute times relative to
// the response's Date field. Because Date is in whole seconds, a wait may be up to a second too
// long, but never too short. If the Date field is missing or invalid, or if it differs from the
// local time of arrival by more than a day, Parse uses the local time instead.
//
// If a response comes from a cache (Age > 0), Parse reads only Retry-After, because the limits may
// have changed since the response was stored.
//
// If Retry-After is sent twice, Parse uses the longer wait. If retry-after-ms differs from
// Retry-After by less than a second, it specifies the same wait more precisely.
func Parse(h http.Header, now time.Time) (limits []Limit, retryAfter time.Duration) {
	r := reader{h: h, base: now}
	if r.count("Age") > 0 {
		return nil, r.retryAfter()
	}
	if date := h.Get("Date"); date != "" && len(date) <= maxText {
		if t, err := http.ParseTime(date); err == nil && t.Sub(now).Abs() <= maxWait {
			r.base = t
		}
	}
	r.readPolicies()
	r.readRateLimit()
	for i := range triples {
		t := &triples[i]
		for _, unit := range r.units(t) {
			r.readTriple(t, unit)
		}
	}
	for _, k := range r.known {
		limits = append(limits, k.limit)
	}
	return limits, r.retryAfter()
}

// A reader collects the limits that the fields of a response describe.
type reader struct {
	h        http.Header
	base     time.Time    // waits are counted from this time
	known    []foundLimit // the limits found so far, policies first
	policies int
}

// A foundLimit holds a Limit and the values by which its policy is found.
type foundLimit struct {
	limit        Limit
	ietf         bool // the limit comes from the IETF fields, not from those of drafts 06 and 07
	partition    byteSequence
	hasRemaining bool // the limit is a policy whose Remaining is known
}

// readPolicies reads RateLimit-Policy. A String item is a policy as in the IETF dialect, and an
// Integer item is a policy as in drafts 06 and 07. Other items are skipped.
func (r *reader) readPolicies() {
	policies, _ := r.members(policyField, false)
	for _, m := range policies {
		k := foundLimit{limit: Limit{Unit: Requests, Remaining: -1}}
		l := &k.limit
		switch v := m.value.(type) {
		case string:
			k.ietf, l.Name, l.Limit = true, v, count(m.param(quotaParam))
			if unit, ok := m.param(unitParam).(string); ok {
				l.Unit = unit
			}
			k.partition, _ = m.param(partitionParam).(byteSequence)
		case int64:
			l.Limit = count(v)
		default:
			continue
		}
		const longest = math.MaxInt64 / int64(time.Second)
		l.Window = time.Duration(min(max(0, count(m.param(windowParam))), longest)) * time.Second
		if l.Limit >= 0 {
			r.add(k)
		}
	}
	r.policies = len(r.known)
}

// readRateLimit reads RateLimit, which is a List in the IETF dialect and a Dictionary in draft 07.
// No field that contains a value parses as both.
func (r *reader) readRateLimit() {
	items, list := r.members(rateLimitField, false)
	for _, m := range items {
		name, named := m.value.(string)
		l := Limit{Name: name, Unit: Requests, Limit: -1, Remaining: count(m.param(remainingParam))}
		if !named || l.Remaining < 0 {
			continue
		}
		l.ResetAfter = r.after(count(m.param(timeParam)), 0)
		k := foundLimit{limit: l, ietf: true}
		k.partition, _ = m.param(partitionParam).(byteSequence)
		r.join(k)
	}
	if list {
		return
	}
	items, _ = r.members(rateLimitField, true)
	l := Limit{Unit: Requests, Limit: -1, Remaining: -1}
	for _, m := range items {
		switch m.key {
		case limitMember:
			l.Limit = count(m.value)
		case remainingMember:
			l.Remaining = count(m.value)
		case resetMember:
			l.ResetAfter = r.after(count(m.value), 0)
		}
	}
	if l.Limit >= 0 || l.Remaining >= 0 {
		r.join(foundLimit{limit: l})
	}
}

// members parses all lines of a structured field.
func (r *reader) members(name string, dictionary bool) (members []member, ok bool) {
	size := 0
	for _, line := range r.h[name] {
		size += len(line) + 2
	}
	if size > maxField {
		return nil, false
	}
	return parseMembers(strings.Join(r.h[name], ", "), dictionary)
}

// If v is a number of units, count returns it. Otherwise, count returns -1.
func count(v any) int64 {
	if n, ok := v.(int64); ok && n >= 0 {
		return n
	}
	return -1
}

// join adds the Remaining of a limit to the limit's policy. If there is no such policy, or if it
// already has a Remaining, join adds the limit as a separate one. A limit or a policy without a
// partition key matches any partition key.
func (r *reader) join(k foundLimit) {
	l := &k.limit
	for i := range r.known[:r.policies] {
		p := &r.known[i]
		switch {
		case p.ietf != k.ietf || p.limit.Name != l.Name:
		case !k.ietf && p.limit.Limit != l.Limit:
		case p.partition != k.partition && p.partition != "" && k.partition != "":
		default:
			if !p.hasRemaining {
				p.limit.Remaining, p.limit.ResetAfter, p.hasRemaining = l.Remaining, l.ResetAfter, true
				return
			}
			l.Limit, l.Unit, l.Window = p.limit.Limit, p.limit.Unit, p.limit.Window
		}
	}
	r.add(k)
}

func (r *reader) add(k foundLimit) {
	if len(r.known) < maxLimits {
		r.known = append(r.known, k)
	}
}

// readTriple reads the limit on a unit from the three fields of t. A response that has only the
// reset field describes no limit.
func (r *reader) readTriple(t *triple, unit string) {
	named := t.named(unit)
	l := Limit{Unit: strings.ToLower(unit), Limit: r.count(named.limit), Remaining: r.count(named.remaining)}
	if t.dialect&GitHub != 0 {
		if name := r.h.Get(resourceField); len(name) <= maxText {
			l.Name = name
		}
		if used := r.count(usedField); l.Remaining < 0 && l.Limit >= 0 && used >= 0 {
			l.Remaining = max(0, l.Limit-used)
		}
	}
	if l.Limit < 0 && l.Remaining < 0 {
		return
	}
	l.ResetAfter = r.wait(r.h.Get(named.reset))
	if t.dialect == Draft06 {
		r.join(foundLimit{limit: l})
		return
	}
	r.add(foundLimit{limit: l})
}

// units returns at most maxLimits of the units that the fields of t name, in alphabetical order.
func (r *reader) units(t *triple) (units []string) {
	if !t.perUnit() {
		return []string{Requests}
	}
	for _, pattern := range []string{t.limit, t.remaining} {
		prefix, suffix, _ := strings.Cut(pattern, "%s")
		for name := range r.h {
			unit, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			unit, ok = strings.CutSuffix(unit, suffix)
			i, found := slices.BinarySearch(units, unit)
			if !ok || found || unit == "" || len(unit) > maxText || i == maxLimits {
				continue
			}
			units = slices.Insert(units[:min(len(units), maxLimits-1)], i, unit)
		}
	}
	return units
}

// count reads the number of units in a field, and returns -1 if there is none. In drafts
// before 06, policies followed the number: 100, 100;w=60.
func (r *reader) count(name string) int64 {
	s := r.h.Get(name)
	if i := strings.IndexAny(s, ",;"); i >= 0 {
		s = s[:i]
	}
	if n, _, ok := number(s); ok {
		return n
	}
	return -1
}
