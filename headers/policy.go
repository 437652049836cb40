package headers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A Writer writes the header fields of a Dialect. It is safe for concurrent use. Responses share
// the slices of field values that a Writer stores in an http.Header. Such a slice may be replaced
// but must not be modified.
type Writer struct {
	dialect Dialect
	triples []triple            // the triples that show the tightest limit of all
	named   map[string][]triple // for each unit, the triples of every dialect that show the tightest limit on the unit
	fields  []string            // the names of all fields
	expose  []string            // the names of all fields in one line; nil without Exposed
	lower   []string            // the fields in lower case
	recent  integerCache
}

// NewWriter returns a Writer for limits with the given units. Without units, the Writer is for
// limits on Requests. NewWriter returns an error if d is invalid: see Dialect.Validate.
func NewWriter(d Dialect, units ...string) (*Writer, error) {
	if d&^Exposed == 0 {
		d |= XRateLimit
	}
	if len(units) == 0 {
		units = []string{Requests}
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	w := &Writer{dialect: d, named: map[string][]triple{}}
	for _, t := range triples {
		if d&t.dialect != 0 && !t.perUnit() {
			w.triples = append(w.triples, t)
		}
	}
	units = slices.Clone(units)
	units = slices.DeleteFunc(units, func(unit string) bool {
		_, again := w.named[unit]
		w.named[unit] = namedTriples(unit)
		return again
	})
	if w.fields = d.fields(units); d&Exposed != 0 {
		w.expose = []string{strings.Join(w.fields, ", ")}
	}
	for _, name := range w.fields {
		w.lower = append(w.lower, strings.ToLower(name))
	}
	return w, nil
}

// namedTriples returns, for the given unit, those triples in which each unit has separate fields.
func namedTriples(unit string) (named []triple) {
	for _, t := range triples {
		if t.perUnit() {
			named = append(named, t.named(unit))
		}
	}
	return named
}

// A Policy describes a limit as header fields show it.
type Policy struct {
	// Name is printable ASCII. In the IETF fields, each limit of a response needs a different Name.
	Name string

	// Resource is the limit's name in GitHub's fields. Several limits may have the same Resource.
	Resource string

	// Unit is the unit that the limit counts, in lower-case letters, digits and hyphens; "" means
	// Requests.
	Unit string

	Limit quota.Limit
}

// A Prepared is a Policy in the form that Writer.Write needs. For every Dialect, it holds the parts
// of the header fields that are the same in each response.
type Prepared struct {
	of        Policy
	full      time.Duration // if the algorithm is a meter, the longest time in which the limit refills
	capacity  int64
	limit     []string // the capacity
	resource  []string
	policy    []string // "api";q=100;w=60
	older     []string // 100;w=60, of the drafts 06 and 07
	remaining string   // "api";r=
	named     []triple
	together  atomic.Pointer[policyList]

	replicas int                      // the number of replicas among which the limit is divided, or 0
	share    atomic.Pointer[Prepared] // the share of one replica in the last response with Replicas > 1
}

// A policyList holds the value of RateLimit-Policy for several policies.
type policyList struct {
	policies []*Prepared
	value    []string
}

// Prepare converts a Policy to the form that Write needs. Other Writers may use the result too.
// Call Prepare once for each policy, rather than for each response.
func (w *Writer) Prepare(p Policy) *Prepared {
	p.Unit = cmp.Or(p.Unit, Requests)
	named, ok := w.named[p.Unit]
	if !ok {
		named = namedTriples(p.Unit)
	}
	return prepare(p, named)
}

func prepare(p Policy, named []triple) *Prepared {
	capacity := p.Limit.Capacity()
	spent := quota.Decision{ResetAfter: quota.Never, NextAfter: p.Limit.Period / time.Duration(p.Limit.Quota)}
	return &Prepared{
		of: p, full: p.Limit.FullAfter(&spent), capacity: capacity, named: named,
		limit: []string{strconv.FormatInt(capacity, 10)}, resource: []string{p.Resource},
		policy: []string{IETF.policy(&p)}, older: []string{Draft07.policy(&p)}, remaining: quoted(p.Name) + ";" + remainingParam + "=",
	}
}

// policy returns the item that describes p in RateLimit-Policy.
func (d Dialect) policy(p *Policy) string {
	window, unit, inFlight := "", "", p.Limit.InFlight()
	if p.Limit.Period%time.Second == 0 && !inFlight {
		window = fmt.Sprintf(";"+windowParam+"=%d", min(p.Limit.Period/time.Second, maxInteger))
	}
	if d&IETF == 0 {
		return fmt.Sprintf("%d%s", min(p.Limit.Quota, maxInteger), window)
	}
	switch {
	case p.Unit != Requests:
		unit = ";" + unitParam + "=" + quoted(p.Unit)
	case inFlight:
		unit = ";" + unitParam + "=" + quoted(concurrentRequests)
	}
	return fmt.Sprintf("%s;"+quotaParam+"=%d%s%s", quoted(p.Name), min(p.Limit.Quota, maxInteger), unit, window)
}

// maxInteger is the largest Integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns printable ASCII text as a String for a structured field.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
