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

// Everyone who writes a rule types these two, so they have a name here as well.
type (
	Limit = quota.Limit // so many units per period
	Store = quota.Store // keeps the counts
)

// A Rule says which requests share a quota, and how large the quota is.
type Rule struct {
	// Name tells rules apart, in stored keys and in header fields. It is printable ASCII,
	// such as "auth.createToken".
	Name string

	// Key returns the key that a request counts against, or says that the rule does not
	// apply. If the client has hung up, the context of r may have ended. The rule must
	// apply all the same, because clients could otherwise escape it by hanging up.
	Key KeyFunc

	// NoKey says what happens to a request for which Key returns no key; the zero value is
	// NoKeySkip. If Key returns no key for the first 200 requests, the Logger gets a warning
	// with the likely reasons, whatever NoKey is.
	NoKey NoKey

	// Limits apply to the key together, such as 20 per minute and 5 per 3 seconds, unless
	// Policy or ForKey says something else. A limit without a name is named by its period:
	// "1m", "3s". Counts are stored under that name, so give a limit a Name if its
	// period may change. If the only limit of a rule has no name, header fields show it under
	// the name of the rule. A rule without Policy needs Limits.
	Limits []Limit

	// Policy says what the rule does with a request, such as the limits of a tier; nil means
	// Limits. It is also called for a request without a key, of which only Allowed and Denied
	// count, so that a client cannot escape a denied network by omitting its key, and for a
	// banned key, which Allowed exempts. The zero Policy means Limits. If the rule has
	// no Limits either, it is an error, such as a misspelt tier: an error of the request,
	// as an invalid limit is (see Options.OnError). A limit that cannot be counted exactly
	// is replaced by a lower limit that can be counted, and the Logger gets a warning. The
	// context of r does not end when the client hangs up, because a lookup that fails for
	// that reason would change the limits. Policy must therefore limit the time of its
	// lookup itself.
	Policy func(r *http.Request) Policy

	// ForKey returns the policy of a key that has one, and the zero Policy for any
	// other key; nil means that no key has one. It is called with the whole key, as Key
	// returns it, for each request to which the rule applies, so it must be fast. The tables
	// of package overrides have such a function, and the method Has of a keys.List becomes one
	// by When.
	//
	// If Policy and ForKey both say something, Allowed beats Denied, Denied beats limits, and
	// limits and Unlimited of ForKey beat those of Policy.
	//
	// A limit of ForKey with a name replaces the limit of the same stored name that the
	// request would have otherwise, by Policy or Limits. A limit without a name replaces the
	// limit of the same Period. If no limit has the same Period, but there is one limit and
	// ForKey returns one, it replaces that limit. A limit that replaces another keeps the
	// stored name of that limit, so what the key has spent still counts. If Period or
	// Algorithm is zero, the value of the replaced limit is used. A zero Burst also becomes
	// the Burst of the replaced limit, if both have the same Algorithm. If a limit is invalid,
	// or is incomplete and replaces no limit, the policy of the key is ignored, and the Logger
	// gets a warning.
	ForKey func(key string) Policy

	// Cost is how many units a request costs; nil means 1. A request of cost 0 is admitted
	// and spends nothing. A request of negative cost is refused, so that a ContentLength of
	// −1 refunds no units. If the cost exceeds what a limit can ever admit, RetryAfter is
	// quota.Never; if that is so in the first 200 requests, the Logger gets a warning. FreePreflight makes CORS preflights cost 0.
	Cost func(r *http.Request) int64

	// Settle is called after the handler has returned, and returns the final cost of the
	// request. Until then Cost is reserved. nil means that Cost is final. See Outcome.
	Settle func(o Outcome) int64

	// Enforce says for which share of its keys the rule is enforced; zero means all of them. For
	// the other keys it is in shadow: it is charged and observed, but refuses no request, delays
	// none and writes no fields. Percent(0) only tries the rule out, and Percent(10) enforces it
	// for a tenth of the keys. Every process enforces the rule for the same keys, and it stays
	// enforced for them if you raise the percentage. After the other rules have admitted the request,
	// and after its wait if it has to wait, a second call of the store charges all rules in
	// shadow. Observe gets the further Wait that these rules would cause, if fewer than
	// MaxWaiting requests wait, but the request does not wait for them.
	Enforce Enforcement

	// Penalty bans keys that this rule's limits refuse again and again; nil bans no key.
	Penalty *Penalty

	// Unit is what Cost counts, such as "tokens" or "content-bytes"; "" means "requests".
	// Some dialects show it to clients.
	Unit string

	// PartitionKey returns the parameter pk of the dialect IETF. Its argument is the key in
	// the form of Charge.StoredKey. The parameter tells the client which of several quotas
	// of the same name the request spends. The parameter is left out if PartitionKey is
	// nil, or returns "" or more than 128 bytes. Proxies and the scripts of web pages can
	// read the parameter, and logs may show it. Do not return a secret, or anything that
	// the client does not know, such as its address behind a proxy or the name of a shared
	// account. A keyed digest of the key, or the name of a tier, tells quotas apart as
	// well.
	PartitionKey func(key string) string

	// Status is the status code of the answer if the rule refuses a request, by a limit, a
	// ban or a deny: 400 to 599; 0 means 429. 503 says that the service is overloaded, not
	// that the client asks too often. If several rules refuse a request, the Status of the
	// rule in Refusal counts.
	Status int

	// RetryJitter > 0 adds a random time, from 0 to RetryJitter, to Retry-After, so that
	// clients that were refused together do not come back together. Only Retry-After has
	// the jitter: the other header fields, Decision and Refusal have the exact wait. If
	// several rules refuse a request, the RetryJitter of the rule in Refusal counts.
	RetryJitter time.Duration
}

// A NoKey says what a rule does with a request for which its Key returns no key.
type NoKey uint8

const (
	// NoKeySkip does not apply the rule: a client that can leave out its key is not limited
	// by the rule.
	NoKeySkip NoKey = iota

	// NoKeyShare limits all requests without a key together, under the key "\x00", which no
	// client can have: a key that begins with "\x00" gets one more "\x00" in front.
	NoKeyShare

	// NoKeyRefuse refuses the request with 400 and ReasonNoKey, unless Rule.Policy allows it.
	NoKeyRefuse
)

// A Policy says what a rule does with a request: limit it, limit it in nothing, refuse it or
// ignore it. The zero Policy says nothing, so a map of policies returns it for a key that the
// map lacks: see Rule.Policy and Rule.ForKey. A Policy is found again by the values of its
// limits, so it does not matter whether a program keeps policies or makes one for each request.
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

// Limited returns the policy of these limits. Without limits it returns the zero Policy.
func Limited(limits ...Limit) Policy {
	if len(limits) == 0 {
		return Policy{}
	}
	return Policy{limitedKind, limits}
}

// Unlimited returns the policy without limits, such as that of a tier. If the key or the
// request is denied by the other of Rule.Policy and Rule.ForKey, it is refused all the same. A
// ban of the key does not hold while the policy is Unlimited.
func Unlimited() Policy { return Policy{kind: unlimitedKind} }

// Denied returns the policy that refuses every request, without a call of the store. It is for
// lists of keys and networks that are not served.
func Denied() Policy { return Policy{kind: deniedKind} }

// Allowed returns the policy for which the rule ignores the request, even if it is denied as
// well or lacks a key. It is for lists of keys and networks to which the rule does not apply.
func Allowed() Policy { return Policy{kind: allowedKind} }

// Limits returns the limits of Limited, and nil for any other policy.
func (p Policy) Limits() []Limit { return p.limits }

// Is reports whether both policies are Limited, by whatever limits, or both are Unlimited,
// Denied, Allowed or zero.
func (p Policy) Is(other Policy) bool { return p.kind == other.kind }

// When returns a function for Rule.ForKey or Rule.Policy. It returns p if is reports true, and
// otherwise the first policy of the other functions that is not zero:
//
//	ForKey: weir.When(partners.Has, weir.Allowed(), table.ForKey),
//	Policy: weir.When(pests.Match(keys.ClientAddr()), weir.Denied()),
//
// Functions that are nil are left out. If all are nil, When returns nil.
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

// A Penalty bans keys that are refused again and again. The store keeps the bans, so all
// processes that share it enforce them. Each process also remembers a ban for up to 10 s,
// so in each process the requests of a banned key cause about one call of the store in 10 s.
//
// Each refusal by a limit of the rule is a strike. A refusal by another rule is not a
// strike. Besides the call for the decision, the store is called this often:
//
//   - a strike: one call;
//   - the strike that begins a ban: one call as well, but usually two calls if this process
//     has not refused the key within the period of Strikes;
//   - a refusal during a ban that the process knows of: no call, not even the call for the
//     decision. Such a refusal is no strike. Every 10 s the process calls the store again.
//
// The call that begins a ban also clears the strikes that led to it. If that call fails,
// the next refusal tries again.
//
// Requests of banned keys are refused with problem details of the type
// abnormal-usage-detected. Retry-After is the wait until neither the ban nor the limits
// refuse the request. A process that does not know of a ban learns of it from the decision on
// the next request of the key. That request is refused and charged, unless it would have
// had to wait. A request that already waits keeps its place in the queue.
type Penalty struct {
	// Strikes says how many refusals within its period bring a ban, such as
	// algorithms.AnchoredWindow(10, time.Minute). A LeakyBucket or a concurrency limit
	// cannot count strikes.
	Strikes Limit

	// Duration is how long a first ban lasts, in whole microseconds. Each further ban
	// lasts twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is how long a ban lasts at most; 0 means 24 hours, or Duration if that is
	// longer. The bans of a key are forgotten after 32 times MaxDuration without a ban.
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

// Offenses are what the store remembers of the refusals of a key under a rule with a Penalty.
type Offenses struct {
	Banned   time.Duration // how much longer the key is banned; 0 if it is not banned
	SinceBan time.Duration // how long ago the last ban expired; 0 if the store remembers none
	Strikes  int64         // how many refusals count towards the next ban
}
