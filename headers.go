package weir

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

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
		r.RetryAfter = v.retryAfter()
	}
	if v.outer == nil && len(v.items) == 1 && (l.o.Headers&headers.IETF == 0 || v.items[0].rule.PartitionKey == nil) {
		it := &v.items[0]
		one := [1]headers.Item{{Prepared: it.fields, Decision: &it.Decision}} // on the stack, where pointers cost the least
		l.writer.Write(&r, one[:])
		return
	}
	shown := l.show(v)
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

// show returns the items of v, and of the verdicts around it, in the form of package headers.
func (l *Limiter) show(v *verdict) []headers.Item {
	shown := v.shown
	for o := v; o != nil && len(v.items) > 0; o = o.outside() {
		for i := range o.items {
			it, partition := &o.items[i], ""
			if l.o.Headers&headers.IETF != 0 && it.rule.PartitionKey != nil {
				if partition = it.rule.PartitionKey(it.key); len(partition) > storedkey.Max {
					partition = ""
				}
			}
			shown = append(shown, headers.Item{Prepared: it.fields, Decision: &it.Decision, PartitionKey: partition})
		}
	}
	return shown
}

// retryAfter returns the wait of a refusal, with the jitter of the rule that refuses for the
// longest time. After an error there is no such rule.
func (v *verdict) retryAfter() time.Duration {
	wait, by := v.RetryAfter(), (*rule)(nil)
	if v.extra != nil && v.extra.denial.Reason != 0 {
		by = v.extra.by
	} else {
		by = v.items[v.longest].rule
	}
	if wait == quota.Never || by == nil || by.RetryJitter == 0 {
		return wait
	}
	return wait + rand.N(by.RetryJitter+1)
}
