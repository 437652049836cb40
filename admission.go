package weir

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/quota"
)

// An Admission is a Limiter's decision on a request. Limiter.Admit and FromContext return it.
type Admission struct {
	// Transaction holds the request's charges and the Decisions on them. It has no Charges if the
	// request was denied or if this process knew that its key was banned. If Refusal.Reason is
	// ReasonError, its Decisions are meaningless.
	quota.Transaction

	// Refusal says why the request was refused. It is zero if the request was admitted.
	Refusal Refusal

	stay *stay // nil unless Admit has returned the Admission
}

// WriteHeaders sets the rate-limit header fields in the Limiter's Dialect. If the request was
// refused, it also sets Retry-After. It does nothing for an Admission returned by FromContext,
// because the fields are already set.
func (a *Admission) WriteHeaders(h http.Header) {
	if s := a.stay; s != nil {
		s.l.writeHeaders(h, s.v, false)
	}
}

// Context returns the context of the request passed to Admit, extended with the decision.
// FromContext, ReportUsage, Draw, Refuse and other Limiters find the decision in this context. It
// returns nil for an Admission returned by FromContext.
func (a *Admission) Context() context.Context {
	if a.stay == nil {
		return nil
	}
	return a.stay.v
}

// Allowed reports whether the request was admitted and charged.
func (a *Admission) Allowed() bool { return a.Refusal.Reason == 0 && a.Transaction.Allowed() }

// RetryAfter returns how long to wait until the request could be admitted, assuming that no other
// request spends units in the meantime. It may be quota.Never.
func (a *Admission) RetryAfter() time.Duration {
	return max(a.Refusal.RetryAfter, a.Transaction.RetryAfter())
}

// A RefusedError is the error for a refused request. Limiter.Admit and the RoundTripper returned by
// Limiter.Transport return it. Use errors.As to find it in a chain of errors. errors.As also finds
// a *quota.LimitedError with the same charges.
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

// RetryAfter returns how long to wait until the request could be admitted, assuming that no other
// request spends units in the meantime. It may be quota.Never.
func (e *RefusedError) RetryAfter() time.Duration { return e.Admission.RetryAfter() }

// FromContext returns the decision on the request whose context is ctx, or nil if no Limiter has
// charged or refused the request. If several Limiters have done so, it returns the innermost
// Limiter's decision. It returns nil if Options.NoFromContext is set. The Admission must not be
// modified. A handler can use it to do less work when few units remain. OnLimited can read its
// Refusal to find out why the request was refused.
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
	} else if v.reason != 0 {
		t.Refusal = Refusal{v.reason, t.Charges[v.longest].Rule, t.Decisions[v.longest].RetryAfter}
	}
	return t
}

// An Event describes one decision, or one failed attempt to make a decision.
type Event struct {
	Request *http.Request

	// Transaction holds the charges and the decisions on them. It is never nil and must not be
	// modified. It is reused after Observe returns, so copy what you keep. If Err is not nil, its
	// Decisions are meaningless. If the request was denied, or if this process knew that its key
	// was banned, the store was not called and the Transaction has no Charges.
	Transaction *quota.Transaction

	// Refusal says why, by which rule, and for how long the request was refused. It is zero if the
	// request was not refused. If Shadow is true, it says why the request would have been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may contain personal data.
	Key string

	// Err is the store's error or the error in a Policy, or nil if there was none. Cause returns
	// its class.
	Err error

	// Passed reports whether the request was allowed, or sent by Transport, although no decision
	// was possible. It is false if Err is nil or Shadow is true.
	Passed bool

	// Took is how long the call to the store took. It is 0 for a memstore.Store, because reading
	// the clock would take as long as the call itself.
	Took time.Duration

	// Shadow reports whether the rules in this Transaction are in shadow mode.
	Shadow bool

	// BanBegan reports whether this refusal is the strike that begins a ban.
	BanBegan bool
}

// A Refusal says why a request was refused. The zero Refusal means that the request was not
// refused.
//
// A Refusal is part of every Admission and every Event. It contains no key.
type Refusal struct {
	// Reason says what refused the request. It is ReasonBan if the key is banned, even if a limit
	// also refuses the request.
	Reason Reason

	// Rule is the name of the rule that refused the request for that Reason. If several rules did,
	// it is the one with the longest wait.
	Rule string

	// RetryAfter is how long to wait until the request would be admitted, provided that nothing
	// else is spent. It is the longest wait imposed by any limit or ban that refuses the request.
	// The Retry-After field also includes the rule's jitter. If the process already knows of a ban,
	// it does not call the store. The waits for the limits then come from the store's last decision
	// on a banned request with the same keys, unless that request cost more. RetryAfter is
	// quota.Never for ReasonDeny and ReasonNoKey. For ReasonError it is one second if the store is
	// busy, and otherwise 0, which means that the wait is unknown.
	RetryAfter time.Duration
}

// A Reason says why a request was refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has too few units left for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // the Policy of a rule is Denied
	ReasonError                   // no decision was possible: see Options.OnError
	ReasonPause                   // Transport has paused the key because the server asked for it
	ReasonNoKey                   // the request has no key, and the rule has NoKeyRefuse
)

// String returns "limit", "ban", "deny", "error", "pause" or "no-key", and "" for the zero
// Reason.
func (r Reason) String() string {
	if int(r) >= len(reasons) {
		return ""
	}
	return reasons[r]
}

var reasons = [...]string{"", "limit", "ban", "deny", "error", "pause", "no-key"}

// Refuse is the default OnLimited handler. It responds with the Status of the rule that refused the
// request, which is 429 by default. The response body contains JSON problem details (RFC 9457), or
// text or HTML if the client prefers it. If the key is banned or denied, the problem type is
// abnormal-usage-detected. If a limit refused the request, the problem type is quota-exceeded, or
// temporary-reduced-capacity if the Status is 503. If a rule with NoKeyRefuse refused the request,
// the status is 400 and the problem type is about:blank, whatever the rule's Status. If no decision
// was possible and Options.OnError refused the request, the status is 503 and the problem type is
// temporary-reduced-capacity.
//
// Refuse recognizes gRPC, gRPC-Web and Connect clients by their Content-Type and sends them the
// corresponding error code. Status 400 becomes invalid_argument, 401 unauthenticated, 404 not_found
// and 503 unavailable. Status 403 becomes permission_denied, and so does status 429 if the key is
// denied. Any other status becomes resource_exhausted. If waiting helps, the response includes a
// google.rpc.RetryInfo.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if v := verdictOf(r.Context()); v != nil {
		refusal, violated := v.problem()
		refusal.Write(w, r, false, violated...)
		return
	}
	answer.QuotaExceeded.Write(w, r, false)
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
