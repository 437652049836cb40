package weir

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// An Admission is what a Limiter has decided about a request: see Limiter.Admit and FromContext.
type Admission struct {
	// Transaction has the charges of the request and their Decisions. After a deny, or a ban
	// that the process knows of, it has no Charges. After an error its Decisions mean nothing.
	quota.Transaction

	// Refusal says why the request was refused. It is zero if the request was admitted.
	Refusal Refusal

	stay *stay // nil unless Admit has returned the Admission
}

// A stay is what an admitted request leaves to be done when it is over.
type stay struct {
	l     *Limiter
	v     *verdict
	ends  ends
	begun time.Time
	over  atomic.Bool
	watch runtime.Cleanup

	refused RefusedError
}

// Admit decides about a request exactly as Handler does: it charges the rules, and waits for up
// to MaxWait. The caller serves the request and then calls Done. Admit is for servers that are
// not an http.Handler, such as gRPC servers and workers, and for the parts of a request, such as
// the messages of a WebSocket, which a separate Limiter charges under the keys of the request
// that has opened it.
//
// If err is nil, the request was admitted, perhaps by OnError after an error. If the request was
// refused, err is a *RefusedError, whose Admission has the Refusal and the header fields. Its
// Reason is ReasonError if the request could not be decided. Otherwise err is the error of the
// context of r, which ended while the request waited.
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

// Done ends an admitted request: each rule with Settle charges its final cost, and units in
// flight become free. The Outcome may be zero: Done sets Request, Cost, and Took, Used and
// Reported if ReportUsage or Draw was called, and Status if it is 0, to 500 if the request has Panicked and otherwise
// to 200. HungUp is also set if the context of the request has ended. Only the first call does
// something. It takes a round trip if there is something to refund or to charge. An Admission
// that was never done is logged once it is garbage: its reserved cost then stays spent.
//
// Done does nothing for an Admission of FromContext or of a RefusedError.
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

// WriteHeaders sets the header fields of the response that tell clients of limits, in the
// Dialect of the Limiter, and after a refusal Retry-After. An Admission of FromContext has no
// fields to set: they are set already.
func (a *Admission) WriteHeaders(h http.Header) {
	if s := a.stay; s != nil {
		s.l.writeHeaders(h, s.v, false)
	}
}

// Context returns the context of a request that Admit has decided, with the decision, for
// FromContext, ReportUsage, Refuse, and other Limiters. For an Admission of FromContext it is
// nil.
func (a *Admission) Context() context.Context {
	if a.stay == nil {
		return nil
	}
	return a.stay.v
}

// Allowed reports whether the request was admitted. Its charges were then spent.
func (a *Admission) Allowed() bool { return a.Refusal.Reason == 0 && a.Transaction.Allowed() }

// RetryAfter is the wait until the request would be admitted, if nothing else is spent. It may
// be Never.
func (a *Admission) RetryAfter() time.Duration {
	return max(a.Refusal.RetryAfter, a.Transaction.RetryAfter())
}

// A RefusedError is the error of a request that Limiter.Admit has refused, or that
// Limiter.Transport has not sent, because its rules refused it. errors.As finds it, and a
// *LimitedError with the same charges.
type RefusedError struct {
	Admission *Admission
}

func (e *RefusedError) Error() string {
	switch f := e.Admission.Refusal; f.Reason {
	case ReasonBan:
		return fmt.Sprintf("weir: rule %q has banned the key, retry after %v", f.Rule, e.RetryAfter())
	case ReasonDeny:
		return fmt.Sprintf("weir: rule %q denies the key", f.Rule)
	case ReasonNoKey:
		return fmt.Sprintf("weir: the request has no key for rule %q", f.Rule)
	case ReasonPause:
		return fmt.Sprintf("weir: rule %q has paused the key, retry after %v", f.Rule, e.RetryAfter())
	case ReasonError:
		return fmt.Sprintf("weir: rule %q could not decide", f.Rule)
	}
	return e.Unwrap().Error()
}

func (e *RefusedError) Unwrap() error {
	return &quota.LimitedError{Transaction: &e.Admission.Transaction}
}

// RetryAfter is the wait until the request would be sent, if nothing else is spent. It may be
// Never.
func (e *RefusedError) RetryAfter() time.Duration { return e.Admission.RetryAfter() }

// FromContext returns the decision on the request with that context, or nil if no Limiter
// has charged or refused the request. If there are several decisions, it returns the
// decision of the innermost Limiter. Options.NoFromContext makes it return nil. The
// Admission must not be changed. A handler may serve less if Remaining is low. OnLimited may
// read from Refusal why the request was refused.
func FromContext(ctx context.Context) *Admission {
	if v := verdictOf(ctx); v != nil {
		return v.admission()
	}
	return nil
}

// admission returns the Admission of the inquiry or, if v has none, makes one of the items
// of v.
func (v *verdict) admission() *Admission {
	if v.inquiry != nil {
		return &v.Admission
	}
	t := &Admission{Transaction: quota.Transaction{Result: quota.Result{At: time.UnixMicro(v.at), Wait: v.waited}}}
	for i := range v.items {
		it := &v.items[i]
		t.Charges = append(t.Charges, quota.Charge{Rule: it.rule.Name, Key: it.key, Limit: it.limit, Cost: it.cost})
		t.Decisions = append(t.Decisions, it.Decision)
	}
	if v.extra != nil && v.extra.denial.Reason != 0 {
		t.Refusal = v.extra.denial
	} else {
		t.Refusal, _ = refusalOf(&t.Transaction, len(v.items))
	}
	return t
}
