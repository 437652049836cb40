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

// With these aliases, most programs do not have to import package quota.
type (
	Limit = quota.Limit // a number of units per period
	Store = quota.Store // keeps the counts
)

// A Rule specifies which requests share a quota and how large that quota is.
type Rule struct {
	// Name identifies the rule in stored keys and header fields. It must be printable ASCII, such
	// as "auth.createToken".
	Name string

	// Key returns the key whose quota a request spends. If the request has no key, ok is false. If
	// the client has hung up, the context of r may be done. Key must still return the key, because
	// clients could otherwise evade the rule by hanging up.
	Key KeyFunc

	// NoKey says what happens to a request for which Key returns no key; the zero value is
	// NoKeySkip. If none of the first 200 requests has a key, a warning with the likely reasons is
	// logged, whatever NoKey is.
	NoKey NoKey

	// Limits are the limits of each key, all of which apply, such as 20 per minute and 5 per 3
	// seconds. Policy or ForKey can return other limits. A limit without a name is named after its
	// period, such as "1m" or "3s". Counts are stored under that name, so give a limit a Name if
	// its period may change. If a rule has only one limit and that limit has no name, header fields
	// show it under the rule's name. A rule without Policy needs Limits.
	Limits []Limit

	// Policy returns the policy for a request, such as the limits of a tier; nil means Limits. It
	// is also called for a request without a key, so that clients in a denied network cannot evade
	// the denial by omitting their key. In that case only the results Allowed and Denied matter. It
	// is also called for a banned key, which Allowed exempts from the ban. The zero Policy means
	// Limits. If the rule has no Limits either, for example because a tier is misspelled, the
	// request is handled as if a limit were invalid (see Options.OnError). A limit that cannot be
	// counted exactly is replaced by a lower one that can, and a warning is logged. The context of
	// r is not canceled when the client hangs up, because a canceled lookup could change the
	// limits. Policy must therefore set its own timeout for lookups.
	Policy func(r *http.Request) Policy

	// ForKey returns the policy of a key that has its own, and the zero Policy for any other key;
	// nil means that no key has its own policy. ForKey is called with the key that Key returned,
	// for each request to which the rule applies, so it must be fast. The tables of package
	// overrides have such a method, and When builds such a function from the Has method of a
	// keys.List.
	//
	// If both Policy and ForKey return a non-zero policy, Allowed takes precedence over Denied, and
	// Denied over limits and Unlimited. Limits or Unlimited from ForKey take precedence over those
	// from Policy.
	//
	// The limits from ForKey replace those that the request would otherwise have from Policy or
	// Limits. A limit with a name replaces the limit with the same stored name. A limit without a
	// name replaces the limit with the same Period. If there is none, but the request has only one
	// limit and ForKey returns only one, the latter replaces the former. The new limit takes over
	// the stored name of the limit that it replaces, so units already spent still count. If its
	// Period or Algorithm is zero, it takes over that of the replaced limit. The same is true of a
	// zero Burst if both limits have the same Algorithm. If a limit is invalid, or is incomplete
	// and replaces no limit, the key's policy is ignored and a warning is logged.
	ForKey func(key string) Policy

	// Cost returns how many units a request costs; nil means 1. A request with cost 0 is admitted
	// and spends nothing. A request with a negative cost is refused, so that a ContentLength of −1
	// refunds no units. If the cost exceeds what a limit can ever admit, RetryAfter is quota.Never.
	// If this is true of each of the first 200 requests, a warning is logged. FreePreflight makes
	// CORS preflights free.
	Cost func(r *http.Request) int64

	// Settle returns the final cost of a request, and is called after the handler has returned; nil
	// means that the cost returned by Cost is final. Until Settle is called, that cost is reserved.
	// See Outcome.
	Settle func(o Outcome) int64

	// Enforce is the percentage of keys for which the rule is enforced; zero means all keys. For
	// the other keys the rule is in shadow mode: it is charged and observed, but refuses no
	// request, delays none and writes no header fields. Percent(10) enforces the rule for a tenth
	// of the keys, and Percent(0) for none of them. Every process enforces the rule for the same
	// keys, and it stays enforced for them if you raise the percentage. Once the other rules have
	// admitted the request and its wait, if any, is over, all rules in shadow mode are charged in a
	// second call to the store. If fewer than MaxWaiting requests wait, Observe receives the
	// additional Wait that these rules would cause, but the request does not wait for them.
	Enforce Enforcement

	// Penalty bans keys that the limits of this rule refuse repeatedly; nil bans no key.
	Penalty *Penalty

	// Unit is what Cost counts, such as "tokens" or "content-bytes"; "" means "requests".
	// Some dialects show it to clients.
	Unit string

	// PartitionKey returns the pk parameter of the IETF dialect, which tells the client which of
	// several quotas with the same name a request spends. Its argument is the charge's StoredKey
	// (see quota.Charge). The parameter is omitted if PartitionKey is nil, or returns "" or more
	// than 128 bytes. Proxies and scripts in web pages can read the parameter, and it may appear in
	// logs. Do not return a secret, or anything that the client does not know, such as its address
	// behind a proxy or the name of a shared account. A keyed digest of the key or the name of a
	// tier also distinguishes quotas.
	PartitionKey func(key string) string

	// Status is the response status code, 400 to 599, if a limit, ban or deny of the rule refuses a
	// request; 0 means 429. Use 503 if the limit protects an overloaded service and the client has
	// not sent too many requests. If several rules refuse a request, the Status of the rule named
	// in the Refusal applies.
	Status int

	// RetryJitter is the maximum random time that is added to Retry-After, so that clients that
	// were refused at the same time do not all retry at the same time; 0 adds none. The other
	// header fields, Decision and Refusal contain the exact wait. If several rules refuse a
	// request, the RetryJitter of the rule named in the Refusal applies.
	RetryJitter time.Duration
}

// A NoKey says how a rule handles a request for which its Key function returns no key.
type NoKey uint8

const (
	// NoKeySkip does not apply the rule, so clients that can omit their key can evade the rule.
	NoKeySkip NoKey = iota

	// NoKeyShare limits all requests without a key together, under the key "\x00". No client can
	// send this key, because a key that begins with "\x00" is prefixed with another "\x00".
	NoKeyShare

	// NoKeyRefuse refuses the request with 400 and ReasonNoKey, unless Rule.Policy allows it.
	NoKeyRefuse
)

// A Policy says whether a rule limits a request, allows it without a limit, refuses it, or does not
// apply to it at all. The zero Policy means that there is no policy, so Rule.Policy and Rule.ForKey
// can return the result of a map lookup even if the map has no entry. Policies with equal limits
// are equivalent, so a program may create a new Policy for each request.
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

// Limited returns a policy with the given limits, or the zero Policy if no limits are given.
func Limited(limits ...Limit) Policy {
	if len(limits) == 0 {
		return Policy{}
	}
	return Policy{limitedKind, limits}
}

// Unlimited returns a policy without limits, for example for a premium tier. If one of Rule.Policy
// and Rule.ForKey returns Unlimited and the other returns Denied, the request is refused. A ban has
// no effect while the key's policy is Unlimited.
func Unlimited() Policy { return Policy{kind: unlimitedKind} }

// Denied returns a policy that refuses every request without calling the store. It is intended for
// blocklists of keys and networks.
func Denied() Policy { return Policy{kind: deniedKind} }

// Allowed returns a policy that exempts a request from the rule, even if the request is also denied
// or lacks a key. It is intended for allowlists of keys and networks.
func Allowed() Policy { return Policy{kind: allowedKind} }

// Limits returns a Limited policy's limits, or nil for any other policy.
func (p Policy) Limits() []Limit { return p.limits }

// Is reports whether the policies p and other are of the same kind: Limited, Unlimited, Denied,
// Allowed or zero. Two Limited policies are of the same kind even if their limits differ.
func (p Policy) Is(other Policy) bool { return p.kind == other.kind }

// When returns a function f for Rule.ForKey or Rule.Policy. If is(x) returns true, f(x) returns the
// policy p. Otherwise, f calls the remaining functions with x, one after another, and returns the
// first non-zero policy:
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

// A Penalty bans keys that are refused repeatedly. Bans are kept in the store, so all processes
// that share the store enforce them. Each process also remembers a ban for up to 10 s, so requests
// with a banned key cause only about one store call every 10 s.
//
// Each refusal by one of the rule's own limits is a strike, unless this process already knows that
// the key is banned. A strike requires one additional store call, and the strike that begins a ban
// may require two. A ban clears the key's strikes.
//
// Requests with a banned key are refused with the problem type abnormal-usage-detected. Retry-After
// is the time until the ban has ended and the limits allow the request. A process that does not yet
// know of a ban learns of it from the decision on the next request with the banned key. That
// request is always refused. It is also charged, except if it would have had to wait. Requests that
// are already waiting when a ban begins keep their places in the queue.
type Penalty struct {
	// Strikes is a limit on refusals, such as algorithms.AnchoredWindow(10, time.Minute). The
	// refusal that exhausts the limit begins a ban. Strikes cannot be a LeakyBucket or a
	// concurrency limit.
	Strikes Limit

	// Duration is the length of a key's first ban, in whole microseconds. Each further ban lasts
	// twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is the maximum length of a ban; 0 means 24 hours, or Duration if that is longer.
	// A key's earlier bans are forgotten after 32 times MaxDuration without a ban.
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

// Offenses describe a key's recent refusals and bans under a rule with a Penalty.
type Offenses struct {
	Banned   time.Duration // how much longer the key is banned; 0 if it is not banned
	SinceBan time.Duration // how long ago the last ban expired; 0 if the store remembers none
	Strikes  int64         // how many refusals count towards the next ban
}
