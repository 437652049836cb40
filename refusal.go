package weir

import "time"

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// A Limiter sets it in the Transaction of an Event, of FromContext and of a
// LimitedError, and in the Event itself, so handlers, logs and metrics get the same
// value. It never has a key.
type Refusal struct {
	// Reason says what refused the request: ReasonBan if the key is banned, even if a limit
	// refuses as well.
	Reason Reason

	// Rule is the name of the rule that refuses. If several rules refuse, it is the rule
	// with the longest wait.
	Rule string

	// RetryAfter is the wait until the request would pass, if nothing else is spent: the
	// longest of the waits for the limits and the bans that refuse it, as in the field
	// Retry-After without its jitter. If the process refuses the request because of a ban
	// that it remembers, it does not ask the store. The waits for the limits are then the
	// waits that the store gave to the last banned request with the same keys, if that
	// request cost no more. RetryAfter is Never after a deny, and 0, which means unknown,
	// after an error.
	RetryAfter time.Duration
}

// A Reason is why a request is refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has no room for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // Deny, DenyFrom or Overrides of a rule refuse the key or the request
	ReasonError                   // the request could not be decided, and Options.OnError decides what to do
	ReasonPause                   // Transport has paused the key, because the server asked for a pause
)

// String returns "limit", "ban", "deny", "error" or "pause", and "" for the zero Reason.
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
	}
	return ""
}
