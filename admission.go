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

// An Admission is what a Limiter has decided about a request: see Limiter.Admit and FromContext.
type Admission struct {
	// Transaction has the charges of the request and their Decisions. After a deny, or a ban
	// that the process knows of, it has no Charges. After an error its Decisions mean nothing.
	quota.Transaction

	// Refusal says why the request was refused. It is zero if the request was admitted.
	Refusal Refusal

	stay *stay // nil unless Admit has returned the Admission
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
	} else if v.reason != 0 {
		t.Refusal = Refusal{v.reason, t.Charges[v.longest].Rule, t.Decisions[v.longest].RetryAfter}
	}
	return t
}

// An Event is one decision, or the failure to make one.
type Event struct {
	Request *http.Request

	// Transaction is what was decided. It is never nil and must not be changed. When
	// Observe has returned, other requests reuse the Transaction, so copy what you keep.
	// After an error its Decisions mean nothing. After a deny, and after a ban that the
	// process knows of, the store was not asked, and the Transaction has no Charges.
	Transaction *quota.Transaction

	// Refusal says why the request was refused, by which rule, and for how long. It is zero if
	// the request was not refused. In an event with Shadow, it says why the request would have
	// been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may be personal
	// data.
	Key string

	// Err is the error of the store or of a Policy, or nil. Cause returns its class.
	Err error

	// Passed says that OnError allowed the request, although it could not be decided, or
	// that Transport sends it. It is false if Err is nil, and if Shadow is true.
	Passed bool

	// Took is how long the store took. It is 0 for a memstore.Store, because reading the
	// clock would take as long as the store.
	Took time.Duration

	// Shadow says that the rules of this transaction refuse no request.
	Shadow bool

	// BanBegan says that this refusal is the strike that begins a ban.
	BanBegan bool
}

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// Handlers get the Refusal with the Admission, logs and metrics with the Event, and callers of
// a Transport with the RefusedError: it is the same value. A Refusal has no key.
type Refusal struct {
	// Reason says what refused the request: ReasonBan if the key is banned, even if a limit
	// refuses as well.
	Reason Reason

	// Rule is the name of the rule that refuses for that Reason. If there are several such
	// rules, it is the rule with the longest wait.
	Rule string

	// RetryAfter is the wait until the request would pass, if nothing else is spent: the
	// longest of the waits for the limits and the bans that refuse it. To this wait, the
	// field Retry-After adds the jitter of the rule. If the process refuses the request
	// because of a ban that it remembers, it does not call the store. The waits for the
	// limits are then the waits that the store gave to the last banned request with the
	// same keys, if that request cost no more. After a deny, and for ReasonNoKey, RetryAfter
	// is Never. After an error it is 0, which means unknown, or a second if the store is busy.
	RetryAfter time.Duration
}

// A Reason is why a request is refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has no room for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // a rule refuses by a Policy that is Denied
	ReasonError                   // no decision was possible: see Options.OnError
	ReasonPause                   // Transport has paused the key, as the server has asked
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

// Refuse is the default of OnLimited. It answers with the Status of the rule that refuses,
// usually 429, and with problem details, or with text or HTML if the client prefers that.
// After a ban or a deny, the type of the problem is abnormal-usage-detected. After a
// refusal by a limit it is quota-exceeded, or temporary-reduced-capacity if the Status is
// 503. A request without the key that it must have (NoKeyRefuse) gets 400, whatever the
// Status is, because no wait helps, and problem details of the type about:blank. A request that
// could not be decided, and that Options.OnError does not allow, gets 503 and
// temporary-reduced-capacity.
//
// Clients of gRPC, gRPC-Web and Connect, which are known by their Content-Type, get the same in
// the words of their protocol: resource_exhausted, with google.rpc.RetryInfo if a wait helps,
// permission_denied after a deny, invalid_argument without a key, and unavailable for 503.
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
