package weir

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/quota"
)

// These aliases allow most programs to use package weir without importing package quota.
type (
	Limit = quota.Limit // a number of units per period
	Store = quota.Store // keeps the counts
)

// A Rule says which requests share a quota, and how large the quota is.
type Rule struct {
	// Name distinguishes rules in stored keys and in header fields. It is printable ASCII, such as
	// "auth.createToken".
	Name string

	// Key returns the key whose quota a request spends; ok false means that the rule does not
	// apply. If the client has hung up, the context of r may be done. Key must still return the
	// key, because clients could otherwise escape the rule by hanging up.
	Key KeyFunc

	// NoKey says what happens to a request for which Key returns no key; the zero value is
	// NoKeySkip. Whatever NoKey is, the Logger gets a warning with the likely reasons if none of
	// the first 200 requests has a key.
	NoKey NoKey

	// Limits apply to the key together, such as 20 per minute and 5 per 3 seconds, unless Policy
	// or ForKey returns other limits. A limit without a name is named after its period, such as
	// "1m" or "3s". Counts are stored under that name, so give a limit a Name if its period may
	// change. If the only limit of a rule has no name, header fields show it under the name of the
	// rule. A rule without Policy needs Limits.
	Limits []Limit

	// Policy returns the policy for a request, such as the limits of a tier; nil means Limits. It
	// is also called for a request without a key, so that a client cannot escape a denied network
	// by omitting its key; only the results Allowed and Denied then matter. It is also called for
	// a banned key, which Allowed exempts from the ban. The zero Policy means Limits. If the rule
	// has no Limits either, as after a misspelled tier, the request fails as it does with an
	// invalid limit (see Options.OnError). A limit that cannot be counted exactly is replaced by a
	// lower limit that can, and the Logger gets a warning. The context of r is not cancelled when
	// the client hangs up, because a lookup that was cancelled could change the limits. Policy
	// must therefore set its own timeout for a lookup.
	Policy func(r *http.Request) Policy

	// ForKey returns the policy of a key that has its own policy, and the zero Policy for any
	// other key; nil means that no key has its own policy. ForKey is called with the whole key, as
	// Key returns it, for each request to which the rule applies, so it must be fast. The tables
	// of package overrides have such a function, and When makes one from the Has method of a
	// keys.List.
	//
	// If both Policy and ForKey return a policy that is not zero, Allowed takes precedence over
	// Denied, and Denied over limits and Unlimited. Limits or Unlimited from ForKey take
	// precedence over those from Policy.
	//
	// The limits from ForKey replace limits that the request would otherwise have from Policy or
	// Limits. A limit with a name replaces the limit with the same stored name. A limit without a
	// name replaces the limit with the same Period. If no limit has the same Period, but the
	// request has only one limit and ForKey returns only one, the latter replaces the former. The
	// new limit keeps the stored name of the limit that it replaces, so what the key has spent
	// still counts. If its Period or Algorithm is zero, the value of the replaced limit is used. A
	// zero Burst also becomes the Burst of the replaced limit if both have the same Algorithm. If
	// a limit is invalid, or is incomplete and replaces no limit, the policy of the key is
	// ignored, and the Logger gets a warning.
	ForKey func(key string) Policy

	// Cost is how many units a request costs; nil means 1. A request with cost 0 is admitted and
	// spends nothing. A request with a negative cost is refused, so that a ContentLength of −1
	// refunds no units. If the cost exceeds what a limit can ever admit, RetryAfter is
	// quota.Never. If this happens in each of the first 200 requests, the Logger gets a warning.
	// FreePreflight makes CORS preflights cost 0.
	Cost func(r *http.Request) int64

	// Settle is called after the handler has returned, and returns the final cost of the request.
	// Until then the units that Cost returned are reserved. nil means that Cost is final. See
	// Outcome.
	Settle func(o Outcome) int64

	// Enforce is the share of its keys for which the rule is enforced; zero means all of them. For
	// the other keys the rule is in shadow: it is charged and observed, but refuses no request,
	// delays none and writes no header fields. Percent(10) enforces the rule for a tenth of the
	// keys, and Percent(0) only tries it out. Every process enforces the rule for the same keys,
	// and it stays enforced for them if you raise the percentage. After the other rules have
	// admitted the request and its wait, if any, is over, a second call to the store charges all
	// rules in shadow. If fewer than MaxWaiting requests wait, Observe gets the additional Wait
	// that these rules would cause, but the request does not wait for them.
	Enforce Enforcement

	// Penalty bans keys that the limits of this rule refuse repeatedly; nil bans no key.
	Penalty *Penalty

	// Unit is what Cost counts, such as "tokens" or "content-bytes"; "" means "requests".
	// Some dialects show it to clients.
	Unit string

	// PartitionKey returns the pk parameter of the IETF dialect. Its argument is the StoredKey of
	// the charge (see quota.Charge). The parameter tells the client which of several quotas with
	// the same name the request spends. It is omitted if PartitionKey is nil, or returns "" or
	// more than 128 bytes. Proxies and scripts in web pages can read the parameter, and it may
	// appear in logs. Do not return a secret, or anything that the client does not know, such as
	// its address behind a proxy or the name of a shared account. A keyed digest of the key, or
	// the name of a tier, also distinguishes quotas.
	PartitionKey func(key string) string

	// Status is the status code of the response if the rule refuses a request, by a limit, a ban
	// or a deny: 400 to 599; 0 means 429. 503 means that the service is overloaded, not that the
	// client sends too many requests. If several rules refuse a request, the Status of the rule
	// named in the Refusal applies.
	Status int

	// RetryJitter is the maximum random time that is added to Retry-After, so that clients that
	// were refused together do not retry together; 0 adds none. Only Retry-After includes the
	// jitter; the other header fields, Decision and Refusal have the exact wait. If several rules
	// refuse a request, the RetryJitter of the rule named in the Refusal applies.
	RetryJitter time.Duration
}

// A NoKey says what a rule does with a request for which its Key returns no key.
type NoKey uint8

const (
	// NoKeySkip does not apply the rule, so a client that can omit its key is not limited by the
	// rule.
	NoKeySkip NoKey = iota

	// NoKeyShare limits all requests without a key together, under the key "\x00", which no client
	// can have, because a key that begins with "\x00" gets another "\x00" in front.
	NoKeyShare

	// NoKeyRefuse refuses the request with 400 and ReasonNoKey, unless Rule.Policy allows it.
	NoKeyRefuse
)

// A Policy says what a rule does with a request: limit it, allow it without limits, refuse it, or
// ignore it. The zero Policy specifies nothing, so a function may return the result of a map
// lookup even if the map lacks the key: see Rule.Policy and Rule.ForKey. A Limiter recognizes a
// Policy by the values of its limits, so a program may either keep a Policy or make a new one for
// each request.
type Policy struct {
	kind   kind
	limits []Limit
}

type kind uint8

const (
	limitedKind kind = iota + 1
	unlimitedKind
	deniedKind
	allowedKind
)

// Limited returns the policy with the given limits. Without limits it returns the zero Policy.
func Limited(limits ...Limit) Policy {
	if len(limits) == 0 {
		return Policy{}
	}
	return Policy{limitedKind, limits}
}

// Unlimited returns a policy without limits, for example for a tier. If one of Rule.Policy and
// Rule.ForKey returns Unlimited and the other returns Denied, the request is refused. While the
// policy is Unlimited, a ban of the key has no effect.
func Unlimited() Policy { return Policy{kind: unlimitedKind} }

// Denied returns the policy that refuses every request, without calling the store. It is for lists
// of keys and networks that are not served.
func Denied() Policy { return Policy{kind: deniedKind} }

// Allowed returns the policy under which the rule ignores a request, even if the request is also
// denied or lacks a key. It is for lists of keys and networks to which the rule does not apply.
func Allowed() Policy { return Policy{kind: allowedKind} }

// Limits returns the limits of a Limited policy, and nil for any other policy.
func (p Policy) Limits() []Limit { return p.limits }

// Is reports whether p and other are of the same kind: Limited (even if their limits differ),
// Unlimited, Denied, Allowed or zero.
func (p Policy) Is(other Policy) bool { return p.kind == other.kind }

// When returns a function for Rule.ForKey or Rule.Policy. For an argument x, the function returns
// p if is(x) is true. Otherwise it calls the functions in otherwise with x, and returns the first
// policy that is not zero:
//
//	ForKey: weir.When(partners.Has, weir.Allowed(), table.ForKey),
//	Policy: weir.When(pests.Match(keys.ClientAddr()), weir.Denied()),
//
// Nil functions are skipped. If all functions are nil, When returns nil.
func When[T string | *http.Request](is func(T) bool, p Policy, otherwise ...func(T) Policy) func(T) Policy {
	otherwise = slices.DeleteFunc(slices.Clone(otherwise), func(f func(T) Policy) bool { return f == nil })
	if is == nil && len(otherwise) == 0 {
		return nil
	}
	return func(of T) Policy {
		if is != nil && is(of) {
			return p
		}
		for _, f := range otherwise {
			if p := f(of); p.kind != 0 {
				return p
			}
		}
		return Policy{}
	}
}

// A Penalty bans keys that are refused again and again. The store keeps the bans, so all processes
// that share it enforce them. Each process also remembers a ban for up to 10 s, so it calls the
// store only about once every 10 s for the requests of a banned key.
//
// Each refusal by a limit of the rule is a strike. A refusal by another rule is not a strike. In
// addition to the call for the decision, penalties cause these calls to the store:
//
//   - a strike: one call;
//   - the strike that begins a ban: also one call, but usually two if this process has not refused
//     the key within the period of Strikes;
//   - a refusal during a ban that the process knows of: no call, not even for the decision. Such a
//     refusal is not a strike. Every 10 s the process calls the store again.
//
// The call that begins a ban also clears the strikes that led to it. If that call fails, it is
// repeated at the next refusal.
//
// Requests of banned keys are refused with problem details of the type abnormal-usage-detected.
// Retry-After is the wait until neither the ban nor the limits refuse the request. A process that
// does not know about a ban learns about it from the decision on the next request with that key.
// That request is refused and charged, unless it would have had to wait. A request that already
// waits keeps its place in the queue.
type Penalty struct {
	// Strikes is a limit on refusals, such as algorithms.AnchoredWindow(10, time.Minute). The
	// refusal that exhausts it begins a ban. A LeakyBucket or a concurrency limit cannot count
	// strikes.
	Strikes Limit

	// Duration is how long a first ban lasts, in whole microseconds. Each further ban
	// lasts twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is the maximum length of a ban; 0 means 24 hours, or Duration if that is longer.
	// The earlier bans of a key are forgotten after 32 times MaxDuration without a ban.
	MaxDuration time.Duration
}

// A rule is a Rule with everything that New prepares.
type rule struct {
	Rule
	index    int             // in the rules of its Limiter
	buffer   time.Duration   // is added to every period that is charged: see TransportOptions
	policies []policy        // of Limits
	own      *prepared       // Limits; nil if there are none
	exceeded answer.Problem  // the body of a refusal by its limits
	abnormal answer.Problem  // the body of a refusal by a ban or a deny
	writer   *headers.Writer // of the Limiter
	log      *errorLog       // the same

	global            bool    // Key is Global, whose key is empty on purpose
	keyless, costless silence // see wiring.go
	negative, unfit   silence // the same
	unsettled         silence // the same
	emptied           atomic.Bool
	unread            atomic.Bool // usage was reported, and the rule has no Settle

	lists     sync.Map // hash → *prepared
	listCount atomic.Int64
}

// A policy is a limit with what is the same in every response, for every key.
type policy struct {
	rule     *rule
	limits   int // how many limits of the rule are charged together
	limit    Limit
	name     string // the rule's, or rule/limit
	inFlight bool   // it counts requests that have not ended

	fields  *headers.Prepared
	json    []byte         // the name as JSON
	problem answer.Problem // the answer if this limit alone refuses
}

// strikesName is the name of the limits in which a store keeps strikes. Clients do not see them.
const strikesName = "penalty strikes"

// Offenses describe what the store remembers about a key's refusals under a rule with a Penalty.
type Offenses struct {
	Banned   time.Duration // how much longer the key is banned; 0 if it is not banned
	SinceBan time.Duration // how long ago the last ban expired; 0 if the store remembers none
	Strikes  int64         // how many refusals count towards the next ban
}
