package weir

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/quota"
)

// serve is the way of a request: it is decided, it waits for its turn, and it is answered.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := l.newVerdict(r)
	switch err := l.admit(v); {
	case err == nil && !v.event.Passed:
		l.answer(w, r, next, v)
	case err == nil:
		next.ServeHTTP(w, r)
	default:
		answer.Ended(w, r, err)
	}
}

// newVerdict returns an empty verdict of r, recycled or new, with room for the limits of all
// rules. A recycled verdict keeps its memory, its plans, and beyond their length the charges and
// items of an earlier request.
func (l *Limiter) newVerdict(r *http.Request) *verdict {
	v, _ := l.pool.Get().(*verdict)
	if v == nil {
		v, _ = makeVerdict(l.limits, false)
		v.inquiry = new(inquiry)
	}
	v.begin(r)
	return v
}

// admit decides the request of v and returns when its turn has come, or the error of its context
// if that ends first. If the request could not be decided, OnError says whether it passes.
func (l *Limiter) admit(v *verdict) error {
	err := l.decide(v, l.rules, l.riders, l.o.MaxWait)
	if v.event.Err != nil {
		l.fail(v)
	}
	return err
}

// decide charges the rules that apply to the request of v, has the store decide the charges and
// records the outcome in v. A request that is admitted then waits for its turn, for up to maxWait.
// decide returns the error of the context of the request if that ends first. The caller observes
// an error of the store, because it knows whether the request passes.
func (l *Limiter) decide(v *verdict, rules []*rule, riders []rider, maxWait time.Duration) error {
	l.charge(v, rules, riders)
	switch {
	case v.reason != 0 || v.event.Err != nil:
	case maxWait > 0:
		return l.askInLine(v, riders, maxWait)
	default:
		l.ask(v, riders)
	}
	if v.event.Err == nil {
		l.observe(v)
	}
	return nil
}

// answer writes the header fields, writes the refusal or calls next, and recycles the
// verdict.
func (l *Limiter) answer(w http.ResponseWriter, r *http.Request, next http.Handler, v *verdict) {
	h, settles := w.Header(), l.settles && v.reason == 0
	tells := !settles && l.tells(v)
	fresh := len(h) == 0 // the response will have no other fields
	l.writeHeaders(h, v, tells)
	if v.outer != nil {
		l.checkNesting(v)
	}
	if v.reason == 0 && len(l.riders) > 0 {
		next = startAll(l.riders, v).handler(next)
	}
	if settles {
		l.serveAndSettle(w, r, v, next)
		return
	}
	var refusal *answer.Problem
	var violated [][]byte
	switch {
	case v.reason != 0 && !tells:
		refusal, violated = v.problem()
	case tells:
		if v.reason != 0 {
			next = l.o.OnLimited
		}
		r = r.WithContext(v.tell())
	}
	l.recycle(v)
	if refusal != nil {
		refusal.Write(w, r, fresh, violated...)
		return
	}
	next.ServeHTTP(w, r)
}

// tells reports whether the handler that gets the request, next or OnLimited, gets the
// decision in its context.
func (l *Limiter) tells(v *verdict) bool {
	if v.reason != 0 {
		return l.o.OnLimited != nil
	}
	return len(v.items) > 0 && (!l.o.NoFromContext || v.outer != nil)
}

// Admit applies the rules to a request exactly as Handler does, and waits for up to MaxWait. The
// caller serves the request and then calls Done. Admit is for servers that do not use http.Handler,
// such as gRPC servers and workers. It can also limit parts of a request. For example, a separate
// Limiter can charge each WebSocket message to the keys of the request that opened the connection.
//
// If the error is nil, the request was admitted, either by the rules or, if no decision was
// possible, by OnError. If the request was refused, the error is a *RefusedError, whose Admission
// contains the Refusal. Call the Admission's WriteHeaders method to set the header fields. The
// Refusal's Reason is ReasonError if no decision was possible. If r's context ends while the
// request waits, Admit returns the context's error.
func (l *Limiter) Admit(r *http.Request) (*Admission, error) {
	s := newStay(l, r)
	v := s.v
	if err := l.admit(v); err != nil {
		return nil, err
	}
	v.note()
	if v.outer != nil {
		l.checkNesting(v)
	}
	a := &v.Admission // v is not recycled, because the caller keeps a
	a.stay = s
	if v.reason != 0 {
		s.refused.Admission = a
		return nil, &s.refused
	}
	if !v.event.Passed {
		s.begin()
	}
	return a, nil
}

// newStay returns a stay with an empty verdict of r, in one piece of memory if there is one limit.
func newStay(l *Limiter, r *http.Request) *stay {
	m := new(struct {
		stay
		verdict
		inquiry
		items     [1]item
		charges   [1]quota.Charge
		decisions [1]quota.Decision
	})
	m.stay.l, m.stay.v = l, &m.verdict
	m.verdict.inquiry, m.verdict.items = &m.inquiry, m.items[:0]
	m.inquiry.Charges, m.inquiry.Decisions = m.charges[:0], m.decisions[:0]
	m.verdict.begin(r)
	return &m.stay
}

// begin has riders start the request, and logs if Done is never called although it has something
// to do.
func (s *stay) begin() {
	s.ends = startAll(s.l.riders, s.v)
	if !s.l.settles && len(s.ends) == 0 {
		return
	}
	s.v.extras().settledBy(s.l, s.l.o.OnError)
	s.begun = time.Now()
	dropped := func(l *Limiter, ends ends, ctx context.Context, rule string) func(struct{}) {
		return func(struct{}) {
			loggerOr(l.o.Logger).WarnContext(ctx, "weir: admission dropped without Done", "rule", rule, "effect", "its cost was not settled")
			go ends.run()
		}
	}(s.l, s.ends, asking{s.v.Context}, s.l.rules[0].Name)
	s.watch = runtime.AddCleanup(s, dropped, struct{}{})
}

// Done completes an admitted request. It charges the request's final cost under each rule with a
// Settle function, and releases its units in flight. The Outcome may be zero. Done sets o.Request
// and o.Cost, and also o.Used and o.Reported if ReportUsage or Draw was called. If o.Took is 0,
// Done sets it to the time since the call to Admit. If o.Status is 0, Done sets it to 500 if
// o.Panicked is true, and to 200 otherwise. If the request's context has ended, Done sets o.HungUp.
// Only the first call to Done has an effect. It calls the store only if there are units to refund,
// charge or release. If Done is never called, the reserved units remain charged, and a warning is
// logged when the Admission is garbage-collected.
//
// Done does nothing for an Admission that was returned by FromContext or is contained in a
// RefusedError.
func (a *Admission) Done(o Outcome) {
	s := a.stay
	if s == nil || s.v.reason != 0 || s.over.Swap(true) {
		return
	}
	s.watch.Stop()
	s.ends.run()
	if !s.l.settles {
		return
	}
	if o.Took == 0 {
		o.Took = time.Since(s.begun)
	}
	o.HungUp = o.HungUp || s.v.Err() != nil
	o.complete()
	s.l.settle(s.v, o)
}
