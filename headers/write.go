package headers

import (
	"encoding/base64"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/quota"
)

// An Item describes the decision of one limit on a request. If Remaining is unknown (-1), the
// header fields omit the limit.
type Item struct {
	*Prepared
	*quota.Decision

	// PartitionKey is the pk parameter of the IETF fields; "" omits it.
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
	if len(items) == 1 && items[0].Remaining >= 0 && unit == "" { // the usual case
		return &items[0]
	}
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

// A Response is an HTTP response; Write sets its rate-limit header fields.
type Response struct {
	Header http.Header

	// At is the time of the decisions on the store's clock.
	At time.Time

	// Refused reports whether the request was refused by one of the limits or for another reason.
	Refused bool

	// RetryAfter is the wait that a refusal asks for. Write rounds it up to whole seconds. If it
	// is 0 or quota.Never, the refusal has no Retry-After field.
	RetryAfter time.Duration

	// Memory supplies the Room for values that are not shared with other responses. If Memory is
	// nil, Write allocates the Room and shares more values.
	Memory interface{ Room() *Room }
}

// A Room is memory for one response's field values. A program that already allocates an object for
// each response can avoid an allocation by placing the Room in that object. Write calls Memory.Room
// at most once.
type Room struct {
	values [3]string
	text   [80]byte
}

// Write sets the rate-limit fields of r.Header. If a field contains several limits, they appear in
// the same order as in the argument items. This order should be the same for every response.
func (w *Writer) Write(r *Response, items []Item) {
	if w.expose != nil {
		if exposed := r.Header[exposeField]; exposed == nil {
			r.Header[exposeField] = w.expose // has no room, so whoever appends to it copies it
		} else {
			r.Header[exposeField] = append(exposed, w.expose...)
		}
	}
	x := writing{header: r.Header, memory: r.Memory, recent: &w.recent}
	if len(items) > 0 {
		x.write(w, r, items)
	}
	if r.Refused && r.RetryAfter > 0 && r.RetryAfter != quota.Never {
		x.setInt(RetryAfter, ceilSeconds(r.RetryAfter))
		if w.dialect&OpenAI != 0 {
			x.setInt(retryAfterMSField, ceil(r.RetryAfter, time.Millisecond).Milliseconds())
		}
	}
}

// writing is a header whose fields are being set. What is in it escapes to the heap, so
// neither the Response nor its items are.
type writing struct {
	header http.Header
	memory interface{ Room() *Room }
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
	if x.memory == nil {
		r = new(Room)
	} else {
		r = x.memory.Room()
	}
	x.values, x.buf = r.values[:0], r.text[:0]
}

// set sets a field to the bytes of buf from start on. Those bytes are never written again,
// so the string can share them.
func (x *writing) set(name string, start int) {
	text := x.buf[start:]
	x.values = append(x.values, unsafe.String(unsafe.SliceData(text), len(text)))
	n := len(x.values)
	x.header[name] = x.values[n-1 : n : n]
}

func (x *writing) setInt(name string, n int64) {
	if value := x.recent.find(n); value != nil {
		x.header[name] = value
		return
	}
	x.setNew(name, n)
}

// setNew sets a field to an integer that no recent response had. If the response has no
// Memory, setNew remembers the integer for later responses. Otherwise it remembers only one in
// eight, because the Room holds the others without an allocation, and because no later
// response finds them if all integers differ.
func (x *writing) setNew(name string, n int64) {
	if x.memory == nil || rand.Uint32()%8 == 0 {
		x.header[name] = x.recent.add(n)
		return
	}
	x.room()
	start := len(x.buf)
	x.buf = strconv.AppendInt(x.buf, n, 10)
	x.set(name, start)
}

func (x *writing) write(w *Writer, r *Response, items []Item) {
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
		x.writeUnits(items, r.At)
	}
	if d&IETF != 0 {
		x.writePolicies(items)
		x.writeLimits(items, r.Refused)
	}
}

// writeUnits writes the tightest limit of each unit.
func (x *writing) writeUnits(items []Item, at time.Time) {
	for i := range items {
		if !firstOfUnit(items, i) {
			continue
		}
		if tight := tightest(items, items[i].unit); tight != nil {
			for j := range tight.named {
				x.writeTriple(&tight.named[j], tight, at)
			}
		}
	}
}

func (x *writing) writeTriple(t *triple, it *Item, at time.Time) {
	x.header[t.limit] = it.limit
	x.setInt(t.remaining, it.Remaining)
	switch t.format {
	case unixSeconds:
		x.setInt(t.reset, ceilSeconds(time.Duration(at.UnixMicro())*time.Microsecond+it.ResetAfter))
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
		x.buf = at.Add(it.ResetAfter+time.Second-1).UTC().Truncate(time.Second).AppendFormat(x.buf, time.RFC3339)
		x.set(t.reset, start)
	}
}

// writeRest writes the fields that dialects have besides a triple, or instead of one.
func (x *writing) writeRest(d Dialect, it *Item) {
	if d&GitHub != 0 {
		x.setInt(usedField, max(0, it.capacity-it.Remaining))
		x.header[resourceField] = it.resource
	}
	if d&(Draft07|Draft06) != 0 {
		x.header[policyField] = it.policy
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
		x.header[policyField] = first.policy
	case known != nil && known.are(items):
		x.header[policyField] = known.value
	default:
		known = &together{value: []string{string(appendPolicies(nil, items))}}
		for i := range items {
			known.policies = append(known.policies, items[i].Prepared)
		}
		first.together.Store(known)
		x.header[policyField] = known.value
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
func (x *writing) writeLimits(items []Item, refused bool) {
	x.room()
	start := len(x.buf)
	for i := range items {
		it := &items[i]
		if it.Remaining < 0 || refused && it.Allowed {
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
		delete(x.header, rateLimitField) // an outer Limiter set it, and the items include its limits
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
