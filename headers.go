package weir

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// newWriter returns the writer of header fields for the rules of o.
func newWriter(o *Options) (*headers.Writer, error) {
	units := make([]string, len(o.Rules))
	for i := range o.Rules {
		if units[i] = o.Rules[i].Unit; units[i] == "" {
			units[i] = headers.Requests
		}
	}
	w, err := headers.NewWriter(o.Headers, units...)
	if err != nil {
		return nil, fmt.Errorf("weir: %w", err)
	}
	return w, nil
}

// An item is the decision on one limit of a request.
type item struct {
	*policy
	quota.Decision
	key  string
	cost int64
}

// Room makes v.told, the context of the next handler, with Room for values of header fields.
func (v *verdict) Room() (r *headers.Room) {
	v.told, r = makeVerdict(len(v.items), true)
	return r
}

// writeHeaders writes the decision into the response fields, together with the decisions
// of outer limiters on the same request. tells says whether the next handler gets the
// decision as its context.
func (l *Limiter) writeHeaders(h http.Header, v *verdict, tells bool) {
	if len(v.items) == 0 && v.reason == 0 {
		return
	}
	v.note()
	if l.o.Headers == headers.None && v.reason == 0 {
		return
	}
	r := headers.Response{Header: h, At: v.At, Refused: v.reason != 0}
	if tells {
		r.Memory = v
	}
	if v.reason != 0 {
		r.RetryAfter = l.retryAfter(v)
	}
	if v.outer == nil && len(v.items) == 1 && (l.o.Headers&headers.IETF == 0 || v.items[0].rule.PartitionKey == nil) {
		it := &v.items[0]
		one := [1]headers.Item{{Prepared: it.fields, Decision: &it.Decision}} // on the stack, where pointers cost the least
		l.writer.Write(&r, one[:])
		return
	}
	shown := l.show(v.shown, v.items)
	for o := v.outer; o != nil && len(shown) > 0; o = verdictOf(o.Context) {
		shown = l.show(shown, o.items)
	}
	l.writer.Write(&r, shown)
	clear(shown) // it would keep keys alive in the pool
	v.shown = shown[:0]
}

// note copies the decisions to the items, which the context of the next handler keeps.
func (v *verdict) note() {
	for i := range v.items {
		it, d := &v.items[i], &v.Decisions[i] // copied field by field, as in charge
		it.Allowed, it.Remaining, it.RetryAfter, it.NextAfter, it.ResetAfter, it.At = d.Allowed, d.Remaining, d.RetryAfter, d.NextAfter, d.ResetAfter, d.At
	}
}

// show appends items in the form of package headers.
func (l *Limiter) show(shown []headers.Item, items []item) []headers.Item {
	for i := range items {
		it, partition := &items[i], ""
		if l.o.Headers&headers.IETF != 0 && it.rule.PartitionKey != nil {
			if partition = it.rule.PartitionKey(it.key); len(partition) > storedkey.Max {
				partition = ""
			}
		}
		shown = append(shown, headers.Item{Prepared: it.fields, Decision: &it.Decision, PartitionKey: partition})
	}
	return shown
}

// retryAfter returns the wait of a refusal, with the jitter of the rule that refuses for the
// longest time.
func (l *Limiter) retryAfter(v *verdict) time.Duration {
	wait := v.RetryAfter()
	if !l.jitters || wait == quota.Never || v.reason == ReasonError {
		return wait
	}
	if v.extra != nil && v.extra.by != nil {
		return wait + rand.N(v.extra.by.RetryJitter+1)
	}
	longest, _ := v.longest()
	return wait + rand.N(longest.rule.RetryJitter+1)
}

// longest returns the item that refuses for the longest time, and how many items refuse.
// The Refusal names the rule of that item.
func (v *verdict) longest() (longest *item, n int) {
	for i := range v.items {
		if it := &v.items[i]; !it.Allowed {
			if n++; longest == nil || it.RetryAfter > longest.RetryAfter {
				longest = it
			}
		}
	}
	return longest, n
}
