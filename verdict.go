package weir

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// makeVerdict returns a verdict that has no inquiry, with room for the given number of
// limits. If withRoom, the same memory has Room for values of header fields.
func makeVerdict(limits int, withRoom bool) (*verdict, *headers.Room) {
	switch {
	case limits <= 1 && !withRoom:
		m := new(struct {
			verdict
			items [1]item
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, nil
	case limits <= 1:
		m := new(struct {
			verdict
			items [1]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	case limits <= 4:
		m := new(struct {
			verdict
			items [4]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	}
	m := new(struct {
		verdict
		headers.Room
	})
	m.items = make([]item, 0, limits)
	return &m.verdict, &m.Room
}

// begin empties v for the request r.
func (v *verdict) begin(r *http.Request) {
	v.Context = r.Context()
	v.outer = verdictOf(v.Context)
	v.event.Request = r
	v.items = v.items[:0]
	t := &v.Transaction
	t.Charges = t.Charges[:0]
	t.Decisions = t.Decisions[:0]
	t.Undo = t.Undo[:0]
	v.riding = v.riding[:0]
	t.Within, t.Wait, t.At = 0, 0, time.Time{}
}

// Room makes v.told, the context of the next handler, with Room for values of header fields.
func (v *verdict) Room() (r *headers.Room) {
	v.told, r = makeVerdict(len(v.items), true)
	return r
}

// tell returns the context of the handler that gets the request: a copy of the verdict
// without the inquiry, because another request will use the inquiry.
func (v *verdict) tell() *verdict {
	told := v.told
	if told == nil {
		told, _ = makeVerdict(len(v.items), false)
	}
	told.Context, told.extra, told.reason, told.longest = v.Context, v.extra, v.reason, v.longest
	told.items = append(told.items, v.items...)
	told.at, told.waited = v.At.UnixMicro(), v.Wait
	return told
}

// recycle puts v, with its inquiry, into the pool for another request. The pool must keep
// neither keys nor logs of states alive. charge and trim clear what they cut, so no key is left
// beyond the lengths. After an error v is not recycled, because a store that failed may still use
// it.
func (l *Limiter) recycle(v *verdict) {
	if v.event.Err != nil {
		return
	}
	v.Release()
	for i := range v.items {
		v.items[i].key = ""
		if !l.instant { // such a store may have changed the charges
			v.items[i].policy = nil
		}
	}
	if v.reason != 0 {
		v.reason, v.Refusal = 0, Refusal{}
	}
	v.Context, v.outer, v.told, v.extra, v.event.Request, v.event.Key = nil, nil, nil, nil, nil, ""
	v.event.Took, v.event.BanBegan, v.least = 0, false, 0
	l.pool.Put(v)
}

// problem returns the answer to a refused request. After a refusal by limits, the answer names
// them. Usually one limit refuses, and its answer is prepared already; otherwise these are the names
// of the limits that the answer violates, in JSON.
func (v *verdict) problem() (p *answer.Problem, violated [][]byte) {
	if v.extra != nil && v.extra.denial.Reason != 0 {
		switch v.extra.denial.Reason {
		case ReasonNoKey:
			return &answer.MissingKey, nil
		case ReasonError:
			return &answer.ReducedCapacity, nil
		}
		return &v.extra.by.abnormal, nil
	}
	refusing := 0
	for i := range v.items {
		if !v.items[i].Allowed {
			refusing++
		}
	}
	if refusing == 0 { // a handler calls Refuse for a request that was admitted
		return &answer.QuotaExceeded, nil
	}
	longest := &v.items[v.longest]
	if refusing == 1 {
		return &longest.policy.problem, nil
	}
	for i := range v.items {
		if !v.items[i].Allowed {
			violated = append(violated, v.items[i].json)
		}
	}
	return &longest.rule.exceeded, violated
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
