package headers

import (
	"encoding/base64"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/quota"
)

// An Item describes the decision under one limit on a request. If Remaining is unknown (-1), the
// header fields omit the limit.
type Item struct {
	*Prepared
	*quota.Decision

	// Replicas is the Replicas field of the quota.Result that contains the Decision. If the limit
	// was divided among several replicas, the header fields show the share of one replica, as the
	// Decision does.
	Replicas int

	// PartitionKey is the pk parameter of the IETF fields; "" means no parameter.
	PartitionKey string
}

// divide replaces the policy of an item with the share that one replica enforces.
func (it *Item) divide() {
	share := it.share.Load()
	if share == nil || share.replicas != it.Replicas {
		of := it.of
		of.Limit.Divide(it.Replicas)
		share = prepare(of, it.named)
		share.replicas = it.Replicas
		it.share.Store(share)
	}
	it.Prepared = share
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

// tightest returns the tightest item with the given unit ("" means any unit), for dialects that can
// show only one limit. It ignores items whose Remaining is unknown. If no item is left, it returns
// nil.
func tightest(items []Item, unit string) (tight *Item) {
	if len(items) == 1 && items[0].Remaining >= 0 && unit == "" { // the usual case
		return &items[0]
	}
	for i := range items {
		it := &items[i]
		if it.Remaining >= 0 && (unit == "" || it.of.Unit == unit) && (tight == nil || it.tighter(tight)) {
			tight = it
		}
	}
	return tight
}

// A Response describes an HTTP response whose rate-limit header fields Write sets.
type Response struct {
	Header http.Header

	// At is the time of the decisions by the store's clock.
	At time.Time

	// Refused reports whether the request was refused, by one of the limits or for another reason.
	Refused bool

	// RetryAfter is the wait until the request should be sent again. Write rounds it up to whole
	// seconds. If it is 0 or quota.Never, a refusal has no Retry-After field.
	RetryAfter time.Duration

	// If Lower is true, the names of the fields are in lower case, as in gRPC metadata.
	Lower bool
}

// Write sets the rate-limit fields of r.Header. If a field contains several limits, they appear in
// the order of items. This order should be the same for every response. If the request was refused,
// but not by any of the items, Write removes the dialect's fields instead, because clients would
// conclude that units are left.
func (w *Writer) Write(r *Response, items []Item) {
	x := fieldWriter{header: r.Header, recent: &w.recent}
	if r.Lower {
		x.lower = w
	}
	if w.expose != nil {
		name := x.name(exposeField)
		if exposed := r.Header[name]; exposed == nil {
			r.Header[name] = w.expose // an append copies the slice, because its capacity is its length
		} else {
			r.Header[name] = append(exposed, w.expose...)
		}
	}
	for i := range items {
		if items[i].Replicas > 1 {
			items[i].divide()
		}
	}
	switch {
	case r.Refused && !isRefused(items):
		for _, name := range w.fields {
			delete(r.Header, x.name(name))
		}
	case len(items) > 0:
		x.write(w, r, items)
	}
	if r.Refused && r.RetryAfter > 0 && r.RetryAfter != quota.Never {
		x.setInt(RetryAfter, period.Seconds(r.RetryAfter))
		if w.dialect&OpenAI != 0 {
			x.setInt(retryAfterMSField, ceil(r.RetryAfter, time.Millisecond).Milliseconds())
		}
	}
}

// isRefused reports whether a limit of items refuses the request.
func isRefused(items []Item) bool {
	return slices.ContainsFunc(items, func(it Item) bool { return !it.Allowed })
}

// A fieldWriter sets the fields of a header. It does not point to the Response or its items,
// because these would then escape to the heap.
type fieldWriter struct {
	header http.Header
	recent *integerCache
	lower  *Writer // knows names in lower case; nil means that names are written unchanged
}

// name returns the name under which a field is written. Because it is inlined, only lower case
// costs a call.
func (x *fieldWriter) name(field string) string {
	if x.lower == nil {
		return field
	}
	return x.lowered(field)
}

//go:noinline
func (x *fieldWriter) lowered(field string) string {
	if i := slices.Index(x.lower.fields, field); i >= 0 { // faster than a map, because the texts are usually the same memory
		return x.lower.lower[i]
	}
	return strings.ToLower(field) // the field's name contains a unit that was not passed to NewWriter
}

// set sets a field to the given text.
func (x *fieldWriter) set(field, text string) { x.header[x.name(field)] = []string{text} }

func (x *fieldWriter) setInt(field string, n int64) { x.header[x.name(field)] = x.recent.value(n) }

func (x *fieldWriter) write(w *Writer, r *Response, items []Item) {
	d := w.dialect
	if tight := tightest(items, ""); tight != nil {
		for i := range w.triples {
			x.writeTriple(&w.triples[i], tight, r.At)
		}
		if d&(GitHub|Draft07|Draft06) != 0 {
			x.writeRest(d, tight)
		}
	}
	if d&(OpenAI|Anthropic) != 0 {
		x.writeUnits(d, items, r.At)
	}
	if d&IETF != 0 {
		x.writePolicies(items)
		x.writeLimits(items, r.Refused)
	}
}

// writeUnits writes the tightest limit on each unit.
func (x *fieldWriter) writeUnits(d Dialect, items []Item, at time.Time) {
	for i := range items {
		unit := items[i].of.Unit
		if slices.ContainsFunc(items[:i], func(it Item) bool { return it.of.Unit == unit }) {
			continue
		}
		if tight := tightest(items, unit); tight != nil {
			for j := range tight.named {
				if t := &tight.named[j]; d&t.dialect != 0 {
					x.writeTriple(t, tight, at)
				}
			}
		}
	}
}

// resetAfter returns the wait until the quota is full again.
func (it *Item) resetAfter() time.Duration {
	if it.ResetAfter <= it.full {
		return it.ResetAfter
	}
	return it.of.Limit.FullAfter(it.Decision)
}

func (x *fieldWriter) writeTriple(t *triple, it *Item, at time.Time) {
	limit, remaining := it.limit, it.Remaining
	if t.dialect == Draft06 && it.capacity > maxInteger { // its fields are structured
		limit, remaining = []string{strconv.FormatInt(maxInteger, 10)}, min(remaining, maxInteger)
	}
	x.header[x.name(t.limit)] = limit
	x.setInt(t.remaining, remaining)
	switch t.format {
	case unixSeconds:
		x.setInt(t.reset, period.Seconds(time.Duration(at.UnixMicro())*time.Microsecond+it.resetAfter()))
	case deltaSeconds:
		x.setInt(t.reset, period.Seconds(it.resetAfter()))
	case goDuration:
		x.set(t.reset, ceil(it.resetAfter(), time.Millisecond).String())
	case rfc3339:
		x.set(t.reset, at.Add(it.resetAfter()+time.Second-1).UTC().Truncate(time.Second).Format(time.RFC3339))
	}
}

// writeRest writes those fields of the dialects that do not belong to a triple.
func (x *fieldWriter) writeRest(d Dialect, it *Item) {
	if d&GitHub != 0 {
		x.setInt(usedField, max(0, it.capacity-it.Remaining))
		x.header[x.name(resourceField)] = it.resource
	}
	if d&(Draft07|Draft06) != 0 {
		x.header[x.name(policyField)] = it.older
	}
	if d&Draft07 != 0 {
		var few [80]byte
		buf := strconv.AppendInt(append(few[:0], limitMember+"="...), min(it.capacity, maxInteger), 10)
		buf = strconv.AppendInt(append(buf, ", "+remainingMember+"="...), min(it.Remaining, maxInteger), 10)
		buf = strconv.AppendInt(append(buf, ", "+resetMember+"="...), period.Seconds(it.resetAfter()), 10)
		x.set(rateLimitField, string(buf))
	}
}

// writePolicies writes every policy to the field RateLimit-Policy of the dialect IETF. Responses
// with the same policies share the value.
func (x *fieldWriter) writePolicies(items []Item) {
	first, partitions := items[0].Prepared, false
	for i := range items {
		partitions = partitions || items[i].PartitionKey != ""
	}
	switch known := first.together.Load(); {
	case partitions:
		x.set(policyField, string(appendPolicies(nil, items)))
	case len(items) == 1:
		x.header[x.name(policyField)] = first.policy
	case known != nil && known.madeFor(items):
		x.header[x.name(policyField)] = known.value
	default:
		known = &policyList{value: []string{string(appendPolicies(nil, items))}}
		for i := range items {
			known.policies = append(known.policies, items[i].Prepared)
		}
		first.together.Store(known)
		x.header[x.name(policyField)] = known.value
	}
}

// madeFor reports whether t was made for the policies of items.
func (t *policyList) madeFor(items []Item) bool {
	return slices.EqualFunc(t.policies, items, func(p *Prepared, it Item) bool { return p == it.Prepared })
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

// writeLimits writes the limits whose Remaining is known to the field RateLimit of the dialect
// IETF. After a refusal, it writes only the limits that refuse the request.
func (x *fieldWriter) writeLimits(items []Item, refused bool) {
	var few [80]byte
	buf := few[:0]
	for i := range items {
		it := &items[i]
		if it.Remaining < 0 || refused && it.Allowed {
			continue
		}
		if len(buf) > 0 {
			buf = append(buf, ", "...)
		}
		buf = strconv.AppendInt(append(buf, it.remaining...), min(it.Remaining, maxInteger), 10)
		if it.NextAfter > 0 {
			buf = strconv.AppendInt(append(buf, ";"+timeParam+"="...), period.Seconds(it.NextAfter), 10)
		}
		buf = it.appendPartition(buf)
	}
	if len(buf) > 0 {
		x.set(rateLimitField, string(buf))
	} else {
		delete(x.header, x.name(rateLimitField)) // set by an outer Limiter, whose limits are among the items
	}
}

// appendPartition appends the pk parameter, a Byte Sequence.
func (it *Item) appendPartition(buf []byte) []byte {
	if it.PartitionKey == "" {
		return buf
	}
	buf = base64.StdEncoding.AppendEncode(append(buf, ";"+partitionParam+"=:"...), []byte(it.PartitionKey))
	return append(buf, ':')
}

func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }
