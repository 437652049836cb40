package weir

import "time"

// A Refusal says why a request was refused. If it is zero, the request was not refused.
//
// A Limiter sets it in the Transaction of an Event, of FromContext and of a
// LimitedError, and in the Event itself, so handlers, logs and metrics get the same
// value. It never has a key.
type Refusal struct {
	// Reason says what refused. If a limit refuses and the key is banned, it is ReasonBan.
	Reason Reason

	// Rule is the name of the rule that refuses; if several do, of the one with the
	// longest wait.
	Rule string

	// RetryAfter is the wait until the request would pass, if nothing else is spent: the
	// longest of the waits for the limits and the bans that refuse it, as in the field
	// Retry-After without its jitter. If the process refuses it for a ban that it knows of, it does not ask
	// the limits. Their wait is then the one that it learned from the last request with
	// these keys and of no higher cost. RetryAfter is Never after a deny, and 0, which
	// means unknown, after an error.
	RetryAfter time.Duration
}

// A Reason is why a request is refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has no room for it
	ReasonBan                     // the Penalty of a rule has banned its key
	ReasonDeny                    // the Deny of a rule names its key
	ReasonError                   // it could not be decided; Options.OnError has the last word
	ReasonPause                   // Transport has paused its key, because the other side asked for it
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
