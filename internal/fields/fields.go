// Package fields has the names of the header fields in which servers tell clients of
// limits. Package weir writes the fields, and package headers reads them.
package fields

import (
	"net/http"
	"strings"
)

// A Triple has the names of three fields that show one limit, in canonical form. A %s in a
// name stands for the unit that the limit counts.
type Triple struct {
	Limit, Remaining, Reset string
	Format                  Format
}

// A Format is how package weir writes the reset time. Package headers tells the format
// from the value, because some servers write another format than their dialect has.
type Format int

const (
	UnixSeconds Format = iota
	DeltaSeconds
	GoDuration
	RFC3339
)

// The triples of the dialects that have one.
var (
	XRateLimit = Triple{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", UnixSeconds}
	Draft06    = Triple{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", DeltaSeconds}
	OpenAI     = Triple{"X-Ratelimit-Limit-%s", "X-Ratelimit-Remaining-%s", "X-Ratelimit-Reset-%s", GoDuration}
	Anthropic  = Triple{"Anthropic-Ratelimit-%s-Limit", "Anthropic-Ratelimit-%s-Remaining", "Anthropic-Ratelimit-%s-Reset", RFC3339}
	Twitter    = Triple{"X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", UnixSeconds}
)

// Triples lists all triples, in the order in which package headers reads them.
var Triples = [...]*Triple{&XRateLimit, &Draft06, &OpenAI, &Anthropic, &Twitter}

// PerUnit reports whether each unit has fields of its own.
func (t *Triple) PerUnit() bool { return strings.Contains(t.Limit, "%s") }

// Named returns the triple for a unit: it replaces %s in the names by the unit.
func (t Triple) Named(unit string) Triple {
	if t.PerUnit() {
		name := func(s string) string { return http.CanonicalHeaderKey(strings.Replace(s, "%s", unit, 1)) }
		t.Limit, t.Remaining, t.Reset = name(t.Limit), name(t.Remaining), name(t.Reset)
	}
	return t
}

// Requests is the unit of a limit that names no unit.
const Requests = "requests"

// ConcurrentRequests is the unit of a limit of requests in flight.
const ConcurrentRequests = "concurrent-requests"

// The fields that are not part of a triple.
const (
	RetryAfter   = "Retry-After"
	RetryAfterMS = "Retry-After-Ms"
	RateLimit    = "Ratelimit"
	Policy       = "Ratelimit-Policy"
	Used         = "X-Ratelimit-Used"
	Resource     = "X-Ratelimit-Resource"
)

// The parameters of the IETF fields.
const (
	QuotaParam     = "q"
	UnitParam      = "qu"
	WindowParam    = "w"
	PartitionParam = "pk"
	RemainingParam = "r"
	TimeParam      = "t"
)

// The members of RateLimit in draft 07.
const (
	LimitMember     = "limit"
	RemainingMember = "remaining"
	ResetMember     = "reset"
)
