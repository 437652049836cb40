package headers

import (
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"strings"
)

// A Dialect is a format for describing limits in response header fields. Dialects are bit flags:
// IETF | GitHub sends the fields of both. In every dialect, the response to a refused request has a
// Retry-After field if waiting helps.
//
// If a response concerns several limits, a dialect that can describe only one limit shows the
// tightest one: after a refusal, the limit with the longest wait; otherwise, the limit with the
// smallest share left.
type Dialect uint16

const (
	// XRateLimit sends X-RateLimit-Limit (the maximum that can be spent at once),
	// X-RateLimit-Remaining, and X-RateLimit-Reset, the time at which the full quota will be
	// available, in Unix seconds by the store's clock. Most clients read these fields. The zero
	// Dialect means XRateLimit.
	XRateLimit Dialect = 1 << iota

	// IETF sends RateLimit-Policy and RateLimit as in drafts 08 to 11 of
	// draft-ietf-httpapi-ratelimit-headers, with one item for each limit. The t parameter of an
	// item is the time until at least one more unit is available. The draft may still change.
	IETF

	// Draft07 sends RateLimit-Policy, and RateLimit with a value such as "limit=100, remaining=50,
	// reset=5".
	Draft07

	// Draft06 sends RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, and
	// RateLimit-Reset, which counts seconds from now.
	Draft06

	// GitHub sends the fields of XRateLimit and, in addition, X-RateLimit-Used and
	// X-RateLimit-Resource, which is the name of the rule.
	GitHub

	// OpenAI sends fields such as x-ratelimit-limit-requests, with the rule's Unit in the names,
	// and durations such as 6m0s. A refusal also has a retry-after-ms field.
	OpenAI

	// Anthropic sends fields such as anthropic-ratelimit-requests-limit, with the rule's Unit in
	// the names, and times in RFC 3339 format.
	Anthropic

	// Twitter sends x-rate-limit-limit, x-rate-limit-remaining and x-rate-limit-reset,
	// which is in Unix seconds.
	Twitter

	// None sends nothing but Retry-After.
	None

	// Exposed adds Access-Control-Expose-Headers, which allows scripts from other origins to read
	// the fields of the other dialects. Exposed alone means XRateLimit | Exposed.
	Exposed
)

// Validate returns an error if d contains an unknown bit, or combines dialects that cannot be
// combined.
func (d Dialect) Validate() error {
	switch {
	case d >= Exposed<<1:
		return fmt.Errorf("headers: dialect is %#x; want one of the constants", uint16(d))
	case d&None != 0 && d&^Exposed != None:
		return errors.New("headers: none cannot be combined with other dialects")
	case bits.OnesCount16(uint16(d&(IETF|Draft07|Draft06))) > 1:
		return errors.New("headers: IETF, Draft07 and Draft06 use the same fields: choose one")
	}
	return nil
}

// fields lists the names of the fields that d may send for limits that count the given units.
func (d Dialect) fields(units []string) []string {
	names := []string{RetryAfter}
	for _, t := range triples {
		if d&t.dialect == 0 {
			continue
		}
		for _, unit := range units {
			named := t.named(unit)
			names = append(names, named.limit, named.remaining, named.reset)
			if !t.perUnit() {
				break
			}
		}
	}
	for _, f := range []struct {
		dialect Dialect
		name    string
	}{{IETF | Draft07, rateLimitField}, {IETF | Draft07 | Draft06, policyField}, {GitHub, usedField}, {GitHub, resourceField}, {OpenAI, retryAfterMSField}} {
		if d&f.dialect != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// Requests is the default value of a limit's Unit.
const (
	Requests           = "requests"
	concurrentRequests = "concurrent-requests" // the unit of a concurrency limit in the IETF fields
)

// RetryAfter is the name of the header field that tells clients how long to wait, in all dialects.
const RetryAfter = "Retry-After"

// These fields are not part of a triple.
const (
	retryAfterMSField = "Retry-After-Ms"
	rateLimitField    = "Ratelimit"
	policyField       = "Ratelimit-Policy"
	exposeField       = "Access-Control-Expose-Headers"
	usedField         = "X-Ratelimit-Used"
	resourceField     = "X-Ratelimit-Resource"
)

// These are the parameters of the IETF fields.
const (
	quotaParam     = "q"
	unitParam      = "qu"
	windowParam    = "w"
	partitionParam = "pk"
	remainingParam = "r"
	timeParam      = "t"
)

// These are the members of RateLimit in draft 07.
const (
	limitMember     = "limit"
	remainingMember = "remaining"
	resetMember     = "reset"
)

// A triple contains the names of three fields that show one limit, in canonical form. A %s
// in a name represents the unit that the limit counts.
type triple struct {
	dialect                 Dialect // the dialects that write the triple
	limit, remaining, reset string
	format                  format
}

// A format is a format in which a field can show the reset time. Parse ignores it and derives the
// format from the value, because some servers do not use the format of their dialect.
type format int

const (
	unixSeconds format = iota
	deltaSeconds
	goDuration
	rfc3339
)

// The triples are written and read in this order.
var triples = [...]triple{
	{XRateLimit | GitHub, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", unixSeconds},
	{Draft06, "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", deltaSeconds},
	{OpenAI, "X-Ratelimit-Limit-%s", "X-Ratelimit-Remaining-%s", "X-Ratelimit-Reset-%s", goDuration},
	{Anthropic, "Anthropic-Ratelimit-%s-Limit", "Anthropic-Ratelimit-%s-Remaining", "Anthropic-Ratelimit-%s-Reset", rfc3339},
	{Twitter, "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", unixSeconds},
}

// perUnit reports whether each unit has separate fields.
func (t *triple) perUnit() bool { return strings.Contains(t.limit, "%s") }

// named returns a copy of the triple in whose names the unit replaces %s.
func (t triple) named(unit string) triple {
	if t.perUnit() {
		name := func(s string) string {
			prefix, suffix, _ := strings.Cut(s, "%s")
			return http.CanonicalHeaderKey(prefix + unit + suffix)
		}
		t.limit, t.remaining, t.reset = name(t.limit), name(t.remaining), name(t.reset)
	}
	return t
}

// prefixes contains the prefixes of the names of all rate-limit fields except Retry-After
// and retry-after-ms.
var prefixes = [...]string{"Ratelimit", "X-Ratelimit-", "X-Rate-Limit-", "Anthropic-Ratelimit-"}

// Delete deletes the rate-limit fields of every Dialect from h, whatever the units in their names,
// and returns the deleted fields. It also deletes trailers whose names begin with
// http.TrailerPrefix. It keeps Retry-After and retry-after-ms, because these fields tell the client
// when to try again.
func Delete(h http.Header) (deleted http.Header) {
	deleted = http.Header{}
	for name, values := range h {
		field := strings.TrimPrefix(name, http.TrailerPrefix)
		for _, prefix := range prefixes {
			if len(field) >= len(prefix) && strings.EqualFold(field[:len(prefix)], prefix) {
				deleted[name] = values
				delete(h, name)
			}
		}
	}
	return deleted
}
