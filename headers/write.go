package headers

import (
	"encoding/base64"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// A Writer writes the fields of a Dialect. It is safe for concurrent use. Responses share
// the values that it sets: a value may be replaced by another, but must not be changed.
type Writer struct {
	dialect Dialect
	triples []triple            // those that show the tightest limit of all
	named   map[string][]triple // those that show the tightest limit of a unit, by unit
	fields  string
	recent  integers
}

// NewWriter returns a Writer for limits of some units; no unit means Requests. It returns
// an error if d is not one of the constants, or combines dialects that use the same fields.
func NewWriter(d Dialect, units ...string) (*Writer, error) {
	if d == 0 {
		d = XRateLimit
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
		w.named[unit] = d.namedTriples(unit)
		return again
	})
	w.fields = strings.Join(d.fields(units), ", ")
	return w, nil
}

// namedTriples returns the triples of d in which each unit has fields of its own.
func (d Dialect) namedTriples(unit string) (named []triple) {
	for _, t := range triples {
		if d&t.dialect != 0 && t.perUnit() {
			named = append(named, t.named(unit))
		}
	}
	return named
}

// Fields lists the names of the fields that w may set, separated by commas, as
// Access-Control-Expose-Headers needs them.
func (w *Writer) Fields() string { return w.fields }

// A Policy is what fields say about a limit in every response.
type Policy struct {
	// Name is printable ASCII. It tells the limits of a response apart in the IETF fields.
	Name string

	// Resource is what GitHub's fields call the limit, which may share the name with others.
	Resource string

	// Unit is what the limit counts, in lower-case letters, digits and hyphens; "" means
	// Requests.
	Unit string

	// Quota is the number of units in a Window. Capacity is the most that can be spent at
	// once, which is more or less than Quota if the limit has a burst.
	Quota, Capacity int64

	// Window is the period of the limit. Fields leave it out if it is not in whole seconds.
	Window time.Duration

	// Concurrent says that it is a concurrency limit, whose Window fields leave out.
	Concurrent bool
}

// A Prepared policy has those parts of its fields that are the same in every response.
type Prepared struct {
	unit      string
	capacity  int64
	limit     []string // the capacity
	resource  []string
	policy    []string // "api";q=100;w=60, or 100;w=60 in the drafts 06 and 07
	remaining string   // "api";r=
	named     []triple
	together  atomic.Pointer[together]
}

// together is the value of RateLimit-Policy for several policies.
type together struct {
	policies []*Prepared
	value    []string
}

// Prepare prepares a policy for Write. Prepare it once, and not for each response.
func (w *Writer) Prepare(p Policy) *Prepared {
	if p.Unit == "" {
		p.Unit = Requests
	}
	named, ok := w.named[p.Unit]
	if !ok {
		named = w.dialect.namedTriples(p.Unit)
	}
	return &Prepared{
		unit: p.Unit, capacity: p.Capacity, named: named,
		limit: []string{strconv.FormatInt(p.Capacity, 10)}, resource: []string{p.Resource},
		policy: []string{w.dialect.policy(&p)}, remaining: quoted(p.Name) + ";" + remainingParam + "=",
	}
}

// policy returns the item of a policy in RateLimit-Policy.
func (d Dialect) policy(p *Policy) string {
	window := ""
	if p.Window > 0 && p.Window%time.Second == 0 && !p.Concurrent {
		window = fmt.Sprintf(";"+windowParam+"=%d", min(p.Window/time.Second, maxInteger))
	}
	if d&IETF == 0 {
		return fmt.Sprintf("%d%s", p.Quota, window)
	}
	unit := p.Unit
	if p.Concurrent && unit == Requests {
		unit = concurrentRequests
	}
	if unit = ";" + unitParam + "=" + quoted(unit); p.Unit == Requests && !p.Concurrent {
		unit = "" // the default
	}
	return fmt.Sprintf("%s;"+quotaParam+"=%d%s%s", quoted(p.Name), min(p.Quota, maxInteger), unit, window)
}

// maxInteger is the largest Integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns printable ASCII as a String of a structured field.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// An Item is the decision on one limit of a request.
type Item struct {
	*Prepared

	// Allowed says that the limit does not refuse the request.
	Allowed bool

	// Remaining is the number of units left. Fields leave out a limit whose Remaining is
	// unknown (-1).
	Remaining int64

	// RetryAfter is the wait until the request would be allowed, NextAfter the wait until
	// at least one more unit is available, and ResetAfter the wait until all units are.
	RetryAfter, NextAfter, ResetAfter time.Duration

	// PartitionKey is the parameter pk of the IETF fields; "" sends none.
	PartitionKey string
}

// tighter reports whether a has a longer wait than b or, if the waits are equal, a smaller
// share of its capacity left.
func (a *Item) tighter(b *Item) bool {
	if a.RetryAfter != b.RetryAfter {
		return a.RetryAfter > b.RetryAfter
	}
	// a.Remaining/a.capacity < b.Remaining/b.capacity
	ah, al := bits.Mul64(uint64(a.Remaining), uint64(b.capacity))
	bh, bl := bits.Mul64(uint64(b.Remaining), uint64(a.capacity))
	return ah < bh || ah == bh && al < bl
}

// tightest returns the tightest item of a unit ("" means any unit), for dialects that have
// room for one limit. It ignores items whose Remaining is unknown, and returns nil if no
// item is left.
func tightest(items []Item, unit string) (tight *Item) {
	for i := range items {
		it := &items[i]
		if it.Remaining >= 0 && (unit == "" || it.unit == unit) && (tight == nil || it.tighter(tight)) {
			tight = it
		}
	}
	return tight
}

func firstOfUnit(items []Item, i int) bool {
	for j := range items[:i] {
		if items[j].unit == items[i].unit {
			return false
		}
	}
	return true
}

// A Response is a response whose fields Write sets.
type Response struct {
	Header http.Header

	// At is the time of the decisions, by the clock of the store.
	At time.Time

	// Refused says that the request was refused, by one of the limits or for another reason.
	Refused bool

	// RetryAfter is the wait that a refusal asks for, rounded up to whole seconds; 0 asks
	// for none, because no wait helps.
	RetryAfter time.Duration

	// Memory has Room for values that other responses don't share. nil means that Write
	// allocates the Room, and shares more values.
	Memory interface{ Room() *Room }
}

// Room is memory for the values of one response. A program that allocates something else for
// each response can allocate its Room with it. Write asks for it at most once.
type Room struct {
	values [3]string
	text   [80]byte
}

// Write sets the fields of a response that say what was decided about items, which are in
// the order of the limits.
func (w *Writer) Write(r Response, items []Item) {
	x := writing{Response: r, recent: &w.recent}
	if len(items) > 0 {
		x.write(w, items)
	}
	if r.Refused && r.RetryAfter > 0 {
		x.setInt(RetryAfter, ceilSeconds(r.RetryAfter))
		if w.dialect&OpenAI != 0 {
			x.setInt(retryAfterMSField, ceil(r.RetryAfter, time.Millisecond).Milliseconds())
		}
	}
}

// writing is a response whose fields are being set. What is in it escapes to the heap, so it
// must not have the items.
type writing struct {
	Response
	recent *integers
	values []string // in the Room of the response, as buf
	buf    []byte
}

// room makes room for values that are not shared.
func (x *writing) room() {
	if x.buf != nil {
		return
	}
	var r *Room
	if x.Memory == nil {
		r = new(Room)
	} else {
		r = x.Memory.Room()
	}
	x.values, x.buf = r.values[:0], r.text[:0]
}

// set sets a field to the bytes of buf from start on. Those bytes are never written again,
// so the string can share them.
func (x *writing) set(name string, start int) {
	text := x.buf[start:]
	x.values = append(x.values, unsafe.String(unsafe.SliceData(text), len(text)))
	n := len(x.values)
	x.Header[name] = x.values[n-1 : n : n]
}

func (x *writing) setInt(name string, n int64) {
	if value := x.recent.find(n); value != nil {
		x.Header[name] = value
		return
	}
	x.setNew(name, n)
}

// setNew sets a field to an integer that no recent response had. If the response has no
// Memory, setNew remembers the integer for later responses. Otherwise it remembers only one in
// eight, because the Room holds the others without an allocation, and because no later
// response finds them if all integers differ.
func (x *writing) setNew(name string, n int64) {
	if x.Memory == nil || rand.Uint32()%8 == 0 {
		x.Header[name] = x.recent.add(n)
		return
	}
	x.room()
	start := len(x.buf)
	x.buf = strconv.AppendInt(x.buf, n, 10)
	x.set(name, start)
}

func (x *writing) write(w *Writer, items []Item) {
	d := w.dialect
	if tight := tightest(items, ""); tight != nil {
		for i := range w.triples {
			x.writeTriple(&w.triples[i], tight)
		}
		if d&(GitHub|Draft07|Draft06) != 0 {
			x.writeRest(d, tight)
		}
	}
	if d&(OpenAI|Anthropic) != 0 {
		x.writeUnits(items)
	}
	if d&IETF != 0 {
		x.writePolicies(items)
		x.writeLimits(items)
	}
}

// writeUnits writes the tightest limit of each unit.
func (x *writing) writeUnits(items []Item) {
	for i := range items {
		if !firstOfUnit(items, i) {
			continue
		}
		if tight := tightest(items, items[i].unit); tight != nil {
			for j := range tight.named {
				x.writeTriple(&tight.named[j], tight)
			}
		}
	}
}

func (x *writing) writeTriple(t *triple, it *Item) {
	x.Header[t.limit] = it.limit
	x.setInt(t.remaining, it.Remaining)
	switch t.format {
	case unixSeconds:
		x.setInt(t.reset, ceilSeconds(time.Duration(x.At.UnixMicro())*time.Microsecond+it.ResetAfter))
	case deltaSeconds:
		x.setInt(t.reset, ceilSeconds(it.ResetAfter))
	case goDuration:
		x.room()
		start := len(x.buf)
		x.buf = append(x.buf, ceil(it.ResetAfter, time.Millisecond).String()...)
		x.set(t.reset, start)
	case rfc3339:
		x.room()
		start := len(x.buf)
		x.buf = x.At.Add(it.ResetAfter+time.Second-1).UTC().Truncate(time.Second).AppendFormat(x.buf, time.RFC3339)
		x.set(t.reset, start)
	}
}

// writeRest writes the fields that dialects have besides a triple, or instead of one.
func (x *writing) writeRest(d Dialect, it *Item) {
	if d&GitHub != 0 {
		x.setInt(usedField, max(0, it.capacity-it.Remaining))
		x.Header[resourceField] = it.resource
	}
	if d&(Draft07|Draft06) != 0 {
		x.Header[policyField] = it.policy
	}
	if d&Draft07 != 0 {
		x.room()
		start := len(x.buf)
		x.buf = strconv.AppendInt(append(x.buf, limitMember+"="...), it.capacity, 10)
		x.buf = strconv.AppendInt(append(x.buf, ", "+remainingMember+"="...), it.Remaining, 10)
		x.buf = strconv.AppendInt(append(x.buf, ", "+resetMember+"="...), ceilSeconds(it.ResetAfter), 10)
		x.set(rateLimitField, start)
	}
}

// writePolicies writes every policy to RateLimit-Policy of the dialect IETF. The value is
// mostly one that an earlier response had.
func (x *writing) writePolicies(items []Item) {
	first, partitions := items[0].Prepared, false
	for i := range items {
		partitions = partitions || items[i].PartitionKey != ""
	}
	switch known := first.together.Load(); {
	case partitions:
		x.room()
		start := len(x.buf)
		x.buf = appendPolicies(x.buf, items)
		x.set(policyField, start)
	case len(items) == 1:
		x.Header[policyField] = first.policy
	case known != nil && known.are(items):
		x.Header[policyField] = known.value
	default:
		known = &together{value: []string{string(appendPolicies(nil, items))}}
		for i := range items {
			known.policies = append(known.policies, items[i].Prepared)
		}
		first.together.Store(known)
		x.Header[policyField] = known.value
	}
}

// are reports whether t is the value for the policies of items.
func (t *together) are(items []Item) bool {
	if len(t.policies) != len(items) {
		return false
	}
	for i := range items {
		if items[i].Prepared != t.policies[i] {
			return false
		}
	}
	return true
}

func appendPolicies(buf []byte, items []Item) []byte {
	for i := range items {
		if i > 0 {
			buf = append(buf, ", "...)
		}
		buf = items[i].appendPartition(append(buf, items[i].policy[0]...))
	}
	return buf
}

// writeLimits writes to RateLimit of the dialect IETF the limits whose Remaining is known,
// and after a refusal only those that refuse.
func (x *writing) writeLimits(items []Item) {
	x.room()
	start := len(x.buf)
	for i := range items {
		it := &items[i]
		if it.Remaining < 0 || x.Refused && it.Allowed {
			continue
		}
		if len(x.buf) > start {
			x.buf = append(x.buf, ", "...)
		}
		x.buf = strconv.AppendInt(append(x.buf, it.remaining...), min(it.Remaining, maxInteger), 10)
		if it.NextAfter > 0 {
			x.buf = strconv.AppendInt(append(x.buf, ";"+timeParam+"="...), ceilSeconds(it.NextAfter), 10)
		}
		x.buf = it.appendPartition(x.buf)
	}
	if len(x.buf) > start {
		x.set(rateLimitField, start)
	} else {
		delete(x.Header, rateLimitField) // an outer Limiter set it, and the items include its limits
	}
}

// appendPartition appends the parameter pk, a Byte Sequence.
func (it *Item) appendPartition(buf []byte) []byte {
	if it.PartitionKey == "" {
		return buf
	}
	buf = base64.StdEncoding.AppendEncode(append(buf, ";"+partitionParam+"=:"...), []byte(it.PartitionKey))
	return append(buf, ':')
}

func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
