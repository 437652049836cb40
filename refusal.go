package weir

import "time"

// A Refusal says why a request was refused. The zero Refusal: it was not.
//
// A Limiter sets it in the Transaction of an Event, of FromContext and of a
// LimitedError, and in the Event itself: the same value for handlers, logs and
// metrics. It never holds a key.
type Refusal struct {
	// Reason is why. If a limit refuses and the key is banned, it is ReasonBan.
	Reason Reason

	// Rule is the rule that refuses. If several do, it is the one with the longest
	// wait.
	Rule string

	// RetryAfter is when the request would pass, if nothing else is spent: the
	// longest wait of all that refuses, be it a limit or a ban, as in the field
	// Retry-After. During a ban that the process knows of, which asks no store, it is
	// that of the last request with these keys, and of no higher cost, that did ask. It
	// is Never after a deny, and 0, which means unknown, after an error.
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

// refusal returns what the limits of a decided transaction refuse, and the index
// of the charge that waits longest.
func (t *Transaction) refusal() (f Refusal, charge int) {
	for i := range t.Decisions {
		d := &t.Decisions[i]
		if !d.Allowed && (f.Reason == 0 || d.RetryAfter > f.RetryAfter) {
			f, charge = Refusal{ReasonLimit, t.Charges[i].Rule, d.RetryAfter}, i
			if _, paused := t.Charges[i].Limit.Algorithm.(gate); paused {
				f.Reason = ReasonPause
			}
		}
	}
	return f, charge
}
