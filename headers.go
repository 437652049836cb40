package weir

import (
	"fmt"
	"math/bits"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// A Dialect is a way to tell clients about limits in response fields. Dialects
// are flags: IETF | GitHub sends both. Retry-After is sent with every refusal
// that a wait can cure, whatever the dialect.
//
// Where a response knows of several limits, the dialects that have room for one
// show the tightest: of those that refused the one with the longest wait, else
// the one with the smallest share left.
type Dialect uint16

const (
	// XRateLimit sends X-RateLimit-Limit (the most that can be spent at once),
	// X-RateLimit-Remaining, and X-RateLimit-Reset: when the key is as good as
	// new, in Unix seconds of the store's clock. It is what most clients read,
	// and what the zero Dialect means.
	XRateLimit Dialect = 1 << iota

	// IETF sends RateLimit-Policy and RateLimit as in drafts 08 to 11 of
	// draft-ietf-httpapi-ratelimit-headers, one item a limit; t is the time
	// until at least one more unit is free. The draft may still change.
	IETF

	// Draft07 sends RateLimit: limit=100, remaining=50, reset=5.
	Draft07

	// Draft06 sends RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset,
	// which counts seconds from now.
	Draft06

	// GitHub sends what XRateLimit does, and X-RateLimit-Used and
	// X-RateLimit-Resource, the rule's name.
	GitHub

	// OpenAI sends x-ratelimit-limit-requests and so on, by the rule's unit,
	// with durations such as 6m0s, and retry-after-ms.
	OpenAI

	// Anthropic sends anthropic-ratelimit-requests-limit and so on, by the
	// rule's unit, with times as in RFC 3339.
	Anthropic

	// Twitter sends x-rate-limit-limit, x-rate-limit-remaining and
	// x-rate-limit-reset, in Unix seconds.
	Twitter

	// NoHeaders sends nothing but Retry-After.
	NoHeaders
)

// A triple is a dialect that shows one limit in three fields. Names are in
// their canonical form; a %s stands for the rule's unit, where each unit has
// fields of its own. The table serves both ways: ParseHeaders reads by it.
type triple struct {
	dialect                 Dialect
	limit, remaining, reset string
	format                  timeFormat
}

// A timeFormat is how a field is written. A reader does without: others mix
// them up, and no two can be confused.
type timeFormat int

const (
	unixSeconds timeFormat = iota
	deltaSeconds
	goDuration
	rfc3339
)

var triples = [...]triple{
	{XRateLimit | GitHub, "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", unixSeconds},
	{Draft06, "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", deltaSeconds},
	{OpenAI, "X-Ratelimit-Limit-%s", "X-Ratelimit-Remaining-%s", "X-Ratelimit-Reset-%s", goDuration},
	{Anthropic, "Anthropic-Ratelimit-%s-Limit", "Anthropic-Ratelimit-%s-Remaining", "Anthropic-Ratelimit-%s-Reset", rfc3339},
	{Twitter, "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", unixSeconds},
}

// The fields that are not of a triple.
const (
	retryAfter    = "Retry-After"
	retryAfterMS  = "Retry-After-Ms"
	ietfField     = "Ratelimit"
	policyField   = "Ratelimit-Policy"
	usedField     = "X-Ratelimit-Used"
	resourceField = "X-Ratelimit-Resource"
	exposeField   = "Access-Control-Expose-Headers"
)

// The parameters of the IETF fields, and the members of Draft07's RateLimit.
const (
	quotaKey     = "q"
	unitKey      = "qu"
	windowKey    = "w"
	partitionKey = "pk"
	leftKey      = "r"
	timeKey      = "t"

	limitMember     = "limit"
	remainingMember = "remaining"
	resetMember     = "reset"
)

// validate refuses dialects that share a field and would say different things
// in it.
func (d Dialect) validate() error {
	switch {
	case d >= NoHeaders<<1:
		return fmt.Errorf("weir: dialect %#x is not one of the constants", uint16(d))
	case d&NoHeaders != 0 && d != NoHeaders:
		return fmt.Errorf("weir: NoHeaders goes with no other dialect")
	case bits.OnesCount16(uint16(d&(IETF|Draft07|Draft06))) > 1:
		return fmt.Errorf("weir: IETF, Draft07 and Draft06 use the same fields: choose one")
	}
	return nil
}

// fields lists the names that the dialect may send, for browsers, which show a
// script only the fields that they are told of.
func (d Dialect) fields(units []string) string {
	names := []string{retryAfter}
	for _, t := range triples {
		if d&t.dialect == 0 {
			continue
		}
		for _, unit := range units {
			names = append(names, t.named(unit).limit, t.named(unit).remaining, t.named(unit).reset)
			if !t.perUnit() {
				break
			}
		}
	}
	for _, f := range []struct {
		dialect Dialect
		name    string
	}{{IETF | Draft07, ietfField}, {IETF | Draft07 | Draft06, policyField}, {GitHub, usedField}, {GitHub, resourceField}, {OpenAI, retryAfterMS}} {
		if d&f.dialect != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ", ")
}

func (t *triple) perUnit() bool { return strings.Contains(t.limit, "%s") }

func (t triple) named(unit string) triple {
	if t.perUnit() {
		name := func(s string) string { return http.CanonicalHeaderKey(strings.Replace(s, "%s", unit, 1)) }
		t.limit, t.remaining, t.reset = name(t.limit), name(t.remaining), name(t.reset)
	}
	return t
}

// An item is what a response knows of one limit, for one key.
type item struct {
	*policy
	Decision
	key  string
	cost int64
}

// tighter reports whether a client is better told of a than of b.
func (a *item) tighter(b *item) bool {
	if a.RetryAfter != b.RetryAfter {
		return a.RetryAfter > b.RetryAfter
	}
	// a.Remaining/a.capacity < b.Remaining/b.capacity
	ah, al := bits.Mul64(uint64(a.Remaining), uint64(b.capacity))
	bh, bl := bits.Mul64(uint64(b.Remaining), uint64(a.capacity))
	return ah < bh || ah == bh && al < bl
}

// tightest returns the item to show where there is room for one, of the limits
// that count the unit ("" is any), and none of those whose state is unknown; or
// nil.
func tightest(items []item, unit string) (tight *item) {
	for i := range items {
		it := &items[i]
		if it.Remaining >= 0 && (unit == "" || it.rule.Unit == unit) && (tight == nil || it.tighter(tight)) {
			tight = it
		}
	}
	return tight
}

// A fieldWriter sets fields of h. All values that change from response to
// response lie in one block of memory.
type fieldWriter struct {
	h      http.Header
	values []string
	buf    []byte
}

// set sets a field to the bytes of buf from start on. They are never written to
// again, which is what makes a string of them.
func (w *fieldWriter) set(name string, start int) {
	text := w.buf[start:]
	w.values = append(w.values, unsafe.String(unsafe.SliceData(text), len(text)))
	n := len(w.values)
	w.h[name] = w.values[n-1 : n : n]
}

func (w *fieldWriter) setInt(name string, n int64) {
	start := len(w.buf)
	w.buf = strconv.AppendInt(w.buf, n, 10)
	w.set(name, start)
}

// write tells of the items in every dialect of d. at is the store's clock when
// it decided.
func (w *fieldWriter) write(d Dialect, items []item, at time.Time, refused bool) {
	for i := range triples {
		t := &triples[i]
		switch {
		case d&t.dialect == 0:
		case !t.perUnit():
			if it := tightest(items, ""); it != nil {
				w.writeTriple(t, it, at)
			}
		default:
			for j := range items {
				if it := tightest(items, items[j].rule.Unit); it != nil && firstOfUnit(items, j) {
					named := t.named(it.rule.Unit)
					w.writeTriple(&named, it, at)
				}
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

func (w *fieldWriter) writeTriple(t *triple, it *item, at time.Time) {
	w.h[t.limit] = it.capacityValue
	w.setInt(t.remaining, it.Remaining)
	switch t.format {
	case unixSeconds:
		w.setInt(t.reset, ceilSeconds(time.Duration(at.UnixMicro())*time.Microsecond+it.ResetAfter))
	case deltaSeconds:
		w.setInt(t.reset, ceilSeconds(it.ResetAfter))
	case goDuration:
		start := len(w.buf)
		w.buf = append(w.buf, ceil(it.ResetAfter, time.Millisecond).String()...)
		w.set(t.reset, start)
	case rfc3339:
		start := len(w.buf)
		reset := at.Add(it.ResetAfter + time.Second - 1).Truncate(time.Second)
		w.buf = reset.UTC().AppendFormat(w.buf, time.RFC3339)
		w.set(t.reset, start)
	}
}

// writeRest writes the fields of dialects that add some to a triple, or show
// one limit in a single field.
func (w *fieldWriter) writeRest(d Dialect, it *item) {
	if d&GitHub != 0 {
		w.setInt(usedField, max(0, it.capacity-it.Remaining))
		w.h[resourceField] = []string{it.rule.Name}
	}
	if d&(Draft07|Draft06) != 0 {
		w.h[policyField] = it.draft
	}
	if d&Draft07 != 0 {
		start := len(w.buf)
		w.buf = fmt.Appendf(w.buf, limitMember+"=%d, "+remainingMember+"=%d, "+resetMember+"=%d", it.capacity, it.Remaining, ceilSeconds(it.ResetAfter))
		w.set(ietfField, start)
	}
}

// writeIETF lists every policy, and of a refusal the violated limits only.
func (w *fieldWriter) writeIETF(items []item, refused bool) {
	if len(items) == 1 {
		w.h[policyField] = items[0].ietf
	} else {
		start := len(w.buf)
		for i := range items {
			if i > 0 {
				w.buf = append(w.buf, ", "...)
			}
			w.buf = append(w.buf, items[i].ietf[0]...)
		}
		w.set(policyField, start)
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
		w.buf = append(w.buf, ";"+leftKey+"="...)
		w.buf = strconv.AppendInt(w.buf, min(it.Remaining, maxInteger), 10)
		if it.NextAfter > 0 {
			w.buf = append(w.buf, ";"+timeKey+"="...)
			w.buf = strconv.AppendInt(w.buf, ceilSeconds(it.NextAfter), 10)
		}
	}
	if len(w.buf) > start {
		w.set(ietfField, start)
	} else {
		delete(w.h, ietfField) // what an outer limiter said is void now
	}
}

// writeRetryAfter says when to come again: in whole seconds, rounded up. There
// is nothing to say where no wait will do.
func (w *fieldWriter) writeRetryAfter(d Dialect, wait time.Duration) {
	if wait <= 0 || wait == Never {
		return
	}
	w.setInt(retryAfter, ceilSeconds(wait))
	if d&OpenAI != 0 {
		w.setInt(retryAfterMS, ceil(wait, time.Millisecond).Milliseconds())
	}
}

func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }

func ceilSeconds(d time.Duration) int64 { return int64(ceil(d, time.Second) / time.Second) }
