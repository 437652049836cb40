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

// An Admission is the decision of a Limiter on a request: see Limiter.Admit and FromContext.
type Admission struct {
	// Transaction has the charges of the request and their Decisions. After a deny, or a ban that
	// the process knows of, it has no Charges. After an error its Decisions are meaningless.
	quota.Transaction

	// Refusal says why the request was refused. It is zero if the request was admitted.
	Refusal Refusal

	stay *stay // nil unless Admit has returned the Admission
}

// WriteHeaders sets the header fields that describe the limits, in the Dialect of the Limiter.
// After a refusal it also sets Retry-After. For an Admission from FromContext it sets nothing,
// because the fields are already set.
func (a *Admission) WriteHeaders(h http.Header) {
	if s := a.stay; s != nil {
		s.l.writeHeaders(h, s.v, false)
	}
}

// Context returns the context of the request that was passed to Admit, with the decision added for
// FromContext, ReportUsage, Refuse and other Limiters. It returns nil for an Admission from
// FromContext.
func (a *Admission) Context() context.Context {
	if a.stay == nil {
		return nil
	}
	return a.stay.v
}

// Allowed reports whether the request was admitted. If so, its charges were spent.
func (a *Admission) Allowed() bool { return a.Refusal.Reason == 0 && a.Transaction.Allowed() }

// RetryAfter returns the wait until the request would be admitted, if nothing else is spent. It
// may be quota.Never.
func (a *Admission) RetryAfter() time.Duration {
	return max(a.Refusal.RetryAfter, a.Transaction.RetryAfter())
}

// A RefusedError is the error for a request that Limiter.Admit has refused, or that
// Limiter.Transport has not sent because a rule refused it. Use errors.As to find it, or a
// *quota.LimitedError with the same charges.
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

// RetryAfter returns the wait until the request would be admitted, if nothing else is spent. It
// may be quota.Never.
func (e *RefusedError) RetryAfter() time.Duration { return e.Admission.RetryAfter() }

// FromContext returns the decision on the request whose context is ctx, or nil if no Limiter has
// charged or refused the request. If there are several decisions, it returns that of the innermost
// Limiter. With Options.NoFromContext it returns nil. The Admission must not be modified. A
// handler can use it to serve less if Remaining is low, and OnLimited can read Refusal to find out
// why the request was refused.
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

// An Event is one decision, or one failure to make a decision.
type Event struct {
	Request *http.Request

	// Transaction has the charges and the decisions on them. It is never nil and must not be
	// modified. After Observe has returned, other requests reuse the Transaction, so copy what you
	// keep. After an error its Decisions are meaningless. After a deny, or a ban that the process
	// knows of, the store was not called, and the Transaction has no Charges.
	Transaction *quota.Transaction

	// Refusal says why the request was refused, by which rule, and for how long. It is zero if the
	// request was not refused. If Shadow is true, it says why the request would have been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may contain personal data.
	Key string

	// Err is the error of the store or of a Policy, or nil. Cause returns its class.
	Err error

	// Passed reports whether a request was allowed, or sent by Transport, although no decision was
	// possible. It is false if Err is nil or Shadow is true.
	Passed bool

	// Took is how long the call to the store took. It is 0 for a memstore.Store, because reading
	// the clock would take as long as the call itself.
	Took time.Duration

	// Shadow reports whether the rules of this transaction are in shadow.
	Shadow bool

	// BanBegan reports whether this refusal is the strike that begins a ban.
	BanBegan bool
}

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// Handlers find the Refusal in the Admission, logs and metrics find it in the Event, and callers
// of a Transport find it in the RefusedError. A Refusal contains no key.
type Refusal struct {
	// Reason says what refused the request. It is ReasonBan if the key is banned, even if a limit
	// refuses the request as well.
	Reason Reason

	// Rule is the name of the rule that refused the request for that Reason. If there are several,
	// it is the one with the longest wait.
	Rule string

	// RetryAfter is the wait until the request would be admitted, if nothing else is spent. It is
	// the longest wait for any limit or ban that refuses the request. The Retry-After field also
	// includes the jitter of the rule. If the process refuses the request because it remembers a
	// ban, it does not call the store. The waits for the limits then come from the store's last
	// decision on a banned request with the same keys, unless that request cost more. After a
	// deny, and for ReasonNoKey, RetryAfter is quota.Never. After an error it is 0, which means
	// unknown, or one second if the store is busy.
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

// Refuse is the default OnLimited handler. It answers with the Status of the rule that refuses,
// usually 429. The body contains problem details, or text or HTML if the client prefers that.
// After a ban or a deny, the problem type is abnormal-usage-detected. After a refusal by a limit,
// it is quota-exceeded, or temporary-reduced-capacity if the Status is 503. A request that lacks a
// required key (NoKeyRefuse) gets 400 with problem type about:blank, whatever the Status is,
// because waiting does not help. If no decision was possible and Options.OnError does not allow
// the request, it gets 503 with temporary-reduced-capacity.
//
// Clients of gRPC, gRPC-Web and Connect, which Refuse recognizes by their Content-Type, get the
// corresponding code of their protocol: resource_exhausted, with google.rpc.RetryInfo if waiting
// helps; permission_denied after a deny; invalid_argument without a key; and unavailable for 503.
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
