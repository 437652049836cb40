package weir

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// newVerdict returns a verdict with room for the limits of the Limiter.
func (l *Limiter) newVerdict(r *http.Request) (v *verdict) {
	switch {
	case l.limits <= 1:
		m := new(struct {
			verdict
			items [1]item
		})
		v = &m.verdict
		v.items = m.items[:0]
	case l.limits <= 4:
		m := new(struct {
			verdict
			items [4]item
		})
		v = &m.verdict
		v.items = m.items[:0]
	default:
		v = &verdict{items: make([]item, 0, l.limits)}
	}
	v.Context = r.Context()
	v.outer, _ = v.Context.Value(verdictKey{}).(*verdict)
	if v.inquiry, _ = l.pool.Get().(*inquiry); v.inquiry == nil {
		v.inquiry = new(inquiry)
	}
	return v
}

// decide charges the rules that apply to r and records the outcome in v. It does not
// sleep: the caller waits for v.Wait, up to maxWait. buffer is added to every period.
func (l *Limiter) decide(v *verdict, r *http.Request, maxWait, buffer time.Duration) error {
	e := Event{Request: r, Transaction: &v.Transaction}
	e.Err = l.charge(v, r, buffer)
	atOnce, owes, waits := e.Err != nil || v.refused, len(v.Charges) > 0, false
	if v.refused {
		e.Key = v.extra.key
	}
	var within time.Duration
	if !atOnce {
		within = l.enter(v, maxWait)
		defer func() { // even if the store panics
			if !waits {
				l.leave(v)
			}
		}()
		if owes {
			v.Within = within
			l.ask(v, &e)
		}
	}
	if nothing := v.free && v.Refusal.Reason == 0; (atOnce || owes) && !nothing {
		l.observe(v, e)
	}
	if e.Err != nil {
		return e.Err
	}
	v.refused = v.Refusal.Reason != 0
	if !v.refused && v.extra != nil && len(v.extra.shadow.Charges) > 0 {
		l.askInShadow(v, r, within)
	}
	waits = !v.refused && v.Wait > 0
	return nil
}

// ask has the store decide what v owes, with its bans and pauses, in one call.
func (l *Limiter) ask(v *verdict, e *Event) {
	v.appendPauses()
	e.Took, e.Err = l.timedTake((*asking)(v), &v.Transaction)
	e.judge()
	if e.Err == nil {
		l.applyPenalties(v, e)
	}
	v.hideChecks()
	if v.refused && v.Wait > 0 { // for a ban: nobody will wait for the turn
		l.giveBack(v)
	}
}

// askInShadow charges rules in shadow, which refuse nobody.
func (l *Limiter) askInShadow(v *verdict, r *http.Request, within time.Duration) {
	t := &v.extra.shadow
	t.Within = within
	e := Event{Request: r, Transaction: t, Shadow: true}
	e.Took, e.Err = l.timedTake((*asking)(v), t)
	e.judge()
	v.extra.spent = t.Refusal.Reason == 0
	l.observe(v, e)
}

// hideChecks leaves in the transaction what users may see: what the request owes.
func (v *verdict) hideChecks() {
	n := len(v.items)
	if len(v.Charges) == n {
		return
	}
	clear(v.Charges[n:]) // keys are not kept
	clear(v.checks)      // nor here
	v.Charges, v.Decisions, v.checks = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))], v.checks[:0]
}

// judge says in the event, and in its transaction, why a request is refused, as
// far as limits and errors go.
func (e *Event) judge() {
	t, charge := e.Transaction, 0
	if e.Err != nil {
		t.Refusal = Refusal{Reason: ReasonError, Rule: t.Charges[0].Rule}
	} else if t.Refusal, charge = t.refusal(); t.Refusal.Reason == 0 {
		return
	}
	e.Key = t.Charges[charge].Key
}

// timedTake asks the store, and measures how long that takes if there is an observer.
func (l *Limiter) timedTake(ctx context.Context, t *Transaction) (took time.Duration, err error) {
	if l.o.Observe == nil {
		return 0, l.store.Take(ctx, t)
	}
	start := time.Now()
	err = l.store.Take(ctx, t)
	return time.Since(start), err
}

// observe logs the error of an event and calls Observe.
func (l *Limiter) observe(v *verdict, e Event) {
	if e.Err != nil {
		l.log.warn(v.Context, e.Transaction.Refusal.Rule, e.Err)
	}
	if l.o.Observe != nil {
		e.Refusal = e.Transaction.Refusal
		l.o.Observe(e)
	}
}

// writeHeaders writes what was decided into the response fields, along with what
// outer limiters decided on the same request.
func (l *Limiter) writeHeaders(h http.Header, v *verdict) {
	for i := range v.items {
		v.items[i].Decision = v.Decisions[i]
	}
	f := fieldWriter{h: h, values: v.values[:0], buf: v.buf[:0]}
	if len(v.items) > 0 {
		items := v.items
		for o := v.outer; o != nil; o = o.outer {
			items = slices.Concat(items, o.items)
		}
		f.write(l.o.Headers, items, v.At, v.refused)
	}
	if v.refused {
		f.writeRetryAfter(l.o.Headers, v.RetryAfter())
	}
	if l.expose != nil {
		h[exposeField] = append(h[exposeField], l.expose...)
	}
}

// release lets another request use the inquiry, unless somebody may still look at
// it.
func (l *Limiter) release(v *verdict) {
	if l.o.Observe != nil || l.settles {
		return
	}
	q := v.inquiry
	t := &q.Transaction
	v.inquiry, v.at, v.waited = nil, t.At.UnixMicro(), t.Wait
	clear(t.Charges) // keys are not kept
	clear(t.next)    // nor logs
	*t = Transaction{Charges: t.Charges[:0], Decisions: t.Decisions[:0], Undo: t.Undo[:0], next: t.next[:0], first: t.first, others: t.others}
	l.pool.Put(q)
}

// refuse answers a request that was refused.
func (l *Limiter) refuse(w http.ResponseWriter, r *http.Request, v *verdict) {
	if l.o.OnLimited == nil {
		v.refuse(w, r)
		return
	}
	l.o.OnLimited.ServeHTTP(w, r.WithContext(v))
}

// Refuse is OnLimited unless another is given: it answers 429 with problem
// details of the type quota-exceeded, text or HTML, as the client prefers.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if v, ok := r.Context().Value(verdictKey{}).(*verdict); ok {
		v.refuse(w, r)
		return
	}
	quotaExceeded.write(w, r)
}

// refuse names the limits that refused: mostly it is one, and its answer ready.
func (v *verdict) refuse(w http.ResponseWriter, r *http.Request) {
	if v.extra != nil && v.extra.refusal.Reason != 0 {
		abnormalUsage.write(w, r)
		return
	}
	var one *policy
	n := 0
	for i := range v.items {
		if !v.items[i].Allowed {
			one = v.items[i].policy
			n++
		}
	}
	if n == 1 {
		one.refusal.write(w, r)
		return
	}
	var names [][]byte
	for i := range v.items {
		if !v.items[i].Allowed {
			names = append(names, v.items[i].json)
		}
	}
	p := quotaExceeded.violating(names...)
	p.write(w, r)
}
