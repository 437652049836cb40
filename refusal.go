package weir

import "time"

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// A Limiter sets the Refusal of an Event, and of the Transaction of an Event, of
// FromContext and of the LimitedError of Transport. Handlers, logs and metrics therefore
// get the same value. A Refusal has no key.
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
	// is Never. After an error it is 0, which means unknown.
	RetryAfter time.Duration
}

// A Reason is why a request is refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has no room for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // a rule refuses by Deny, DenyFrom or Overrides
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
