package weir

import (
	"encoding/base64"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/internal/fields"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// An item is the decision on one limit of a request, with the parts of its header fields.
type item struct {
	*policy
	quota.Decision
	key  string
	cost int64
}

// tighter reports whether a has a longer wait than b or, if the waits are equal, a smaller
// share of its capacity left.
func (a *item) tighter(b *item) bool {
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
func tightest(items []item, unit string) (tight *item) {
	for i := range items {
		it := &items[i]
		if it.Remaining >= 0 && (unit == "" || it.rule.Unit == unit) && (tight == nil || it.tighter(tight)) {
			tight = it
		}
	}
	return tight
}

// A fieldWriter sets fields of h. It takes an integer from shared if shared has it. The
// other values that change from response to response lie in one block of memory with the
// verdict told.
type fieldWriter struct {
	h      http.Header
	shared *integers
	v      *verdict
	tells  bool
	told   *verdict // what the next handler gets as its context; nil until tell or room makes it
	values []string
	buf    []byte
}

// A text is room for the values of one response.
type text struct {
	values [3]string
	buf    [48]byte
}

// room makes w.told, a verdict with room for values. If the next handler needs no verdict,
// room does nothing, and each value is allocated by itself.
func (w *fieldWriter) room() {
	if w.tells && w.told == nil {
		var t *text
		w.told, t = makeVerdict(len(w.v.items), true)
		w.values, w.buf = t.values[:0], t.buf[:0]
	}
}

// set sets a field to the bytes of buf from start on. Those bytes are never written again,
// so the string can share them.
func (w *fieldWriter) set(name string, start int) {
	text := w.buf[start:]
	w.values = append(w.values, unsafe.String(unsafe.SliceData(text), len(text)))
	n := len(w.values)
	w.h[name] = w.values[n-1 : n : n]
}

func (w *fieldWriter) setInt(name string, n int64) {
	if value := w.shared.find(n); value != nil {
		w.h[name] = value
		return
	}
	w.setNew(name, n)
}

// setNew sets a field to an integer that is not in shared. If the next handler needs no
// verdict, setNew adds the integer to shared. Otherwise it adds only every eighth integer,
// because the verdict has room for the others, and because no later response finds them in
// shared if all integers differ.
func (w *fieldWriter) setNew(name string, n int64) {
	if w.v.misses++; !w.tells || w.v.misses%8 == 0 {
		w.h[name] = w.shared.add(n)
		return
	}
	w.room()
	start := len(w.buf)
	w.buf = strconv.AppendInt(w.buf, n, 10)
	w.set(name, start)
}

// write writes the items in every dialect of d. The triples are those of d, and at is the
// store's clock at the decision.
func (w *fieldWriter) write(d Dialect, triples []triple, items []item, at time.Time, refused bool) {
	if d&withTexts != 0 {
		w.room()
	}
	for i := range triples {
		t := &triples[i]
		if t.dialect&perUnit == 0 {
			if it := tightest(items, ""); it != nil {
				w.writeTriple(t.Triple, it, at)
			}
			continue
		}
		for j := range items {
			if it := tightest(items, items[j].rule.Unit); it != nil && firstOfUnit(items, j) {
				w.writeTriple(t.of(it.rule.Unit), it, at)
			}
		}
	}
	if d&(GitHub|Draft07|Draft06) != 0 {
		if it := tightest(items, ""); it != nil {
			w.writeRest(d, it)
		}
	}
	if d&IETF != 0 {
		w.writeIETF(items, refused)
	}
}

func firstOfUnit(items []item, i int) bool {
	for j := range items[:i] {
		if items[j].rule.Unit == items[i].rule.Unit {
			return false
		}
	}
	return true
}

func (w *fieldWriter) writeTriple(t *fields.Triple, it *item, at time.Time) {
	w.h[t.Limit] = it.capacityValue
	w.setInt(t.Remaining, it.Remaining)
	switch t.Format {
	case fields.UnixSeconds:
		w.setInt(t.Reset, ceilSeconds(time.Duration(at.UnixMicro())*time.Microsecond+it.ResetAfter))
	case fields.DeltaSeconds:
		w.setInt(t.Reset, ceilSeconds(it.ResetAfter))
	case fields.GoDuration:
		start := len(w.buf)
		w.buf = append(w.buf, ceil(it.ResetAfter, time.Millisecond).String()...)
		w.set(t.Reset, start)
	case fields.RFC3339:
		start := len(w.buf)
		reset := at.Add(it.ResetAfter + time.Second - 1).Truncate(time.Second)
		w.buf = reset.UTC().AppendFormat(w.buf, time.RFC3339)
		w.set(t.Reset, start)
	}
}

// writeRest writes the fields that dialects have besides a triple, or instead of one.
func (w *fieldWriter) writeRest(d Dialect, it *item) {
	if d&GitHub != 0 {
		w.setInt(fields.Used, max(0, it.capacity-it.Remaining))
		w.h[fields.Resource] = []string{it.rule.Name}
	}
	if d&(Draft07|Draft06) != 0 {
		w.h[fields.Policy] = it.draft
	}
	if d&Draft07 != 0 {
		start := len(w.buf)
		w.buf = append(w.buf, fields.LimitMember+"="...)
		w.buf = strconv.AppendInt(w.buf, it.capacity, 10)
		w.buf = append(w.buf, ", "+fields.RemainingMember+"="...)
		w.buf = strconv.AppendInt(w.buf, it.Remaining, 10)
		w.buf = append(w.buf, ", "+fields.ResetMember+"="...)
		w.buf = strconv.AppendInt(w.buf, ceilSeconds(it.ResetAfter), 10)
		w.set(fields.RateLimit, start)
	}
}

// writeIETF writes every policy to RateLimit-Policy. To RateLimit it writes the limits
// whose Remaining is known, and after a refusal only those that refuse.
func (w *fieldWriter) writeIETF(items []item, refused bool) {
	if len(items) == 1 && items[0].rule.PartitionKey == nil {
		w.h[fields.Policy] = items[0].ietf
	} else {
		start := len(w.buf)
		for i := range items {
			if i > 0 {
				w.buf = append(w.buf, ", "...)
			}
			w.buf = append(w.buf, items[i].ietf[0]...)
			w.appendPartition(&items[i])
		}
		w.set(fields.Policy, start)
	}
	start := len(w.buf)
	for i := range items {
		it := &items[i]
		if it.Remaining < 0 || refused && it.Allowed {
			continue
		}
		if len(w.buf) > start {
			w.buf = append(w.buf, ", "...)
		}
		w.buf = append(w.buf, quoted(it.name)...)
		w.buf = append(w.buf, ";"+fields.RemainingParam+"="...)
		w.buf = strconv.AppendInt(w.buf, min(it.Remaining, maxInteger), 10)
		if it.NextAfter > 0 {
			w.buf = append(w.buf, ";"+fields.TimeParam+"="...)
			w.buf = strconv.AppendInt(w.buf, ceilSeconds(it.NextAfter), 10)
		}
		w.appendPartition(it)
	}
	if len(w.buf) > start {
		w.set(fields.RateLimit, start)
	} else {
		delete(w.h, fields.RateLimit) // an outer Limiter set it, and items include its limits
	}
}

// appendPartition appends the parameter pk, a Byte Sequence, if PartitionKey of the rule
// returns one.
func (w *fieldWriter) appendPartition(it *item) {
	if it.rule.PartitionKey == nil {
		return
	}
	if pk := it.rule.PartitionKey(it.key); pk != "" && len(pk) <= storedkey.Max {
		w.buf = append(w.buf, ";"+fields.PartitionParam+"=:"...)
		w.buf = base64.StdEncoding.AppendEncode(w.buf, []byte(pk))
		w.buf = append(w.buf, ':')
	}
}

// writeRetryAfter writes the wait in whole seconds, rounded up. It writes nothing if no
// wait helps.
func (w *fieldWriter) writeRetryAfter(d Dialect, wait time.Duration) {
	if wait <= 0 || wait == quota.Never {
		return
	}
	w.setInt(fields.RetryAfter, ceilSeconds(wait))
	if d&OpenAI != 0 {
		w.setInt(fields.RetryAfterMS, ceil(wait, time.Millisecond).Milliseconds())
	}
}

func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// jitter returns the random part of the Retry-After of a refusal.
func (v *verdict) jitter() time.Duration {
	if v.extra != nil && v.extra.by != nil {
		return rand.N(v.extra.by.RetryJitter + 1)
	}
	longest, _ := v.longest()
	return rand.N(longest.rule.RetryJitter + 1)
}

// writeHeaders writes the decision into the response fields, together with the decisions
// of outer limiters on the same request.
func (l *Limiter) writeHeaders(f *fieldWriter) {
	v := f.v
	if len(v.items) == 0 && !v.refused {
		return
	}
	for i := range v.items {
		it, d := &v.items[i], &v.Decisions[i] // copied field by field, as in charge
		it.Allowed, it.Remaining, it.RetryAfter, it.NextAfter, it.ResetAfter, it.At = d.Allowed, d.Remaining, d.RetryAfter, d.NextAfter, d.ResetAfter, d.At
	}
	if len(v.items) > 0 {
		items := v.items
		for o := v.outer; o != nil; o = verdictOf(o.Context) {
			items = slices.Concat(items, o.items)
		}
		f.write(l.o.Headers, l.triples, items, v.At, v.refused)
	}
	if v.refused {
		wait := v.RetryAfter()
		if l.jitters && wait != quota.Never {
			wait += v.jitter()
		}
		f.writeRetryAfter(l.o.Headers, wait)
	}
	if l.expose != nil {
		if f.h[exposeField] == nil {
			f.h[exposeField] = l.expose // has no room, so whoever appends to it copies it
		} else {
			f.h[exposeField] = append(f.h[exposeField], l.expose...)
		}
	}
}
