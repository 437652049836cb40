package weir

import (
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

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
	// because of a ban that it remembers, it does not ask the store. The waits for the
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
	switch r {
	case ReasonLimit:
		return "limit"
	case ReasonBan:
		return "ban"
	case ReasonDeny:
		return "deny"
	case ReasonError:
		return "error"
	case ReasonPause:
		return "pause"
	case ReasonNoKey:
		return "no-key"
	}
	return ""
}
