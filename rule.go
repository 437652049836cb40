package weir

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/printable"
	"github.com/seed83679106/weir/quota"
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
	// "1m", "3s". Counts are stored under that name, so give a limit a name of its own if its
	// period may change. If the only limit of a rule has no name, header fields show it under
	// the name of the rule. A rule without Policy needs Limits.
	Limits []Limit

	// Policy says what the rule does with a request, such as the limits of a tier; nil means
	// Limits. It is also called for a request without a key, of which only Allowed and Denied
	// count, so that a client cannot escape a denied network by omitting its key, and for a
	// banned key, which an Allowed lets pass. The zero Policy means Limits. If the rule has
	// no Limits either, it is an error, such as a misspelt tier: an error of the request,
	// as an invalid limit is (see Options.OnError). A limit that cannot be counted exactly
	// is replaced by a lower limit that can be counted, and the Logger gets a warning. The
	// context of r does not end when the client hangs up, because a lookup that fails for
	// that reason would change the limits. Policy must therefore limit the time of its
	// lookup itself.
	Policy func(r *http.Request) Policy

	// ForKey returns the policy of a key that has one of its own, and the zero Policy for any
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
	// −1 gives no units back. FreePreflight makes CORS preflights cost 0.
	Cost func(r *http.Request) int64

	// Settle is called after the handler has returned, and returns the final cost of the
	// request. Until then Cost is reserved. nil means that Cost is final. See Outcome.
	Settle func(o Outcome) int64

	// Shadow is the share of keys, from 0 to 1, for which the rule is only tried out: it is
	// charged and observed, but refuses no request, delays none and writes no fields. With
	// 1 the rule is tried out for all keys, and with 0.75 it is enforced for a quarter of
	// them. Every process enforces the rule for the same keys. If you lower Shadow, the
	// rule stays enforced for these keys. After the other rules have admitted the request,
	// and after its wait if it has to wait, a second call of the store charges all rules in
	// shadow. Observe gets the further Wait that these rules would cause, if fewer than
	// MaxWaiting requests wait, but the request does not wait for them.
	Shadow float64

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

// A rule is a Rule with everything that New prepares.
type rule struct {
	Rule
	index    int             // in the rules of its Limiter
	policies []policy        // of Limits
	own      *prepared       // Limits; nil if there are none
	exceeded problem         // the body of a refusal by its limits
	abnormal problem         // the body of a refusal by a ban or a deny
	writer   *headers.Writer // of the Limiter
	log      *errorLog       // the same

	global            bool    // Key is Global, whose key is empty on purpose
	keyless, costless silence // see wiring.go
	unsettled         silence // the same
	emptied           atomic.Bool

	lists     sync.Map // hash → *prepared
	listCount atomic.Int64
}

// A RuleError is the error of New, and of Validate, for an invalid Rule.
type RuleError struct {
	Rule string // its name
	Err  error  // what is wrong, without the name
}

func (e *RuleError) Error() string { return fmt.Sprintf("weir: rule %q: %v", e.Rule, e.Err) }
func (e *RuleError) Unwrap() error { return e.Err }

func prepare(r Rule, w *headers.Writer) (*rule, error) {
	p, err := r.prepare(w)
	if err != nil {
		return nil, &RuleError{r.Name, err}
	}
	return p, nil
}

func (r Rule) prepare(w *headers.Writer) (*rule, error) {
	switch {
	case r.Name == "":
		return nil, errors.New("it has no name")
	case !printable.Is(r.Name):
		return nil, printable.Err
	case r.Key == nil:
		return nil, errors.New("it has no key")
	case len(r.Limits) == 0 && r.Policy == nil:
		return nil, errors.New("it has no limits")
	case !(r.Shadow >= 0 && r.Shadow <= 1):
		return nil, fmt.Errorf("the Shadow %v is not from 0 to 1", r.Shadow)
	case r.Status != 0 && (r.Status < 400 || r.Status > 599):
		return nil, fmt.Errorf("the Status %d is not from 400 to 599", r.Status)
	case r.NoKey > NoKeyRefuse:
		return nil, fmt.Errorf("the NoKey %d is not NoKeySkip, NoKeyShare or NoKeyRefuse", r.NoKey)
	case r.RetryJitter < 0 || r.RetryJitter > quota.MaxTicks*time.Microsecond:
		return nil, fmt.Errorf("the RetryJitter %v is not from 0 to 2^50 µs", r.RetryJitter)
	}
	if r.Unit == "" {
		r.Unit = headers.Requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("unit %q is not of lower-case letters, digits and hyphens", r.Unit)
	}
	p := &rule{Rule: r, writer: w, global: isGlobal(r.Key), exceeded: quotaExceeded.withStatus(r.Status), abnormal: abnormalUsage.withStatus(r.Status)}
	if r.Status == reducedCapacity.status {
		p.exceeded = reducedCapacity
	}
	var err error
	if p.policies, err = p.policiesOf(r.Limits, nil); err == nil {
		err = p.checkLimits()
	}
	if err != nil {
		return nil, err
	}
	if len(r.Limits) > 0 {
		p.own = &prepared{policies: p.policies}
	}
	if r.Penalty != nil {
		if err := r.Penalty.validate(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Validate returns the error that New would return for the rule alone, or nil. errors.Unwrap
// of the error returns the reason, which does not name the rule.
func (r Rule) Validate() error {
	_, err := prepare(r, defaultWriter)
	return err
}

// defaultWriter is for rules that no Limiter has.
var defaultWriter, _ = newWriter(&Options{})

// checkLimits returns an error if a limit, or a Settle, does nothing.
func (r *rule) checkLimits() error {
	settles := r.Settle == nil || len(r.policies) == 0
	for i := range r.policies {
		a := &r.policies[i]
		settles = settles || !a.inFlight
		if err := checkBurst(&a.limit); err != nil {
			return fmt.Errorf("limit %q: %w", a.limit.Name, err)
		}
		for j := range r.policies {
			// A Settle, or a policy of a key, may exceed one limit and not the other.
			if b := &r.policies[j]; i != j && r.Settle == nil && r.ForKey == nil && a.limit.Redundant(&b.limit) {
				return fmt.Errorf("limit %q never refuses a request that limit %q admits: remove it or change its numbers", a.limit.Name, b.limit.Name)
			}
		}
	}
	if !settles {
		return errors.New("the Settle changes nothing, because requests in flight give their units back")
	}
	return nil
}

// checkBurst returns an error if the algorithm ignores Burst. The limit must be valid.
func checkBurst(l *Limit) error {
	one, two := l.WithBurst(1), l.WithBurst(2)
	if l.Burst == 0 || one.Capacity() != two.Capacity() {
		return nil
	}
	return fmt.Errorf("%s has no burst", l.Algorithm.Name())
}

// policiesOf prepares limits of a rule: it names them, validates them, and builds their
// fields. If the limits are of a key, base has the limits that they replace.
func (r *rule) policiesOf(limits []Limit, base []policy) ([]policy, error) {
	var policies []policy
	for _, l := range limits {
		alone := l.Name == "" && len(limits) == 1 // fields show it under the rule's name
		from := replaced(&l, base, len(limits))
		if from != nil {
			inherit(&l, &from.limit)
			alone = len(limits) == 1 && from.name == r.Name
		}
		err := l.Fault()
		if l.Algorithm == nil && len(base) > 0 {
			err = fmt.Errorf("%w, and replaces none of the limits %s", err, namesOf(base))
		}
		if l.Period != 0 {
			l.Name = l.StoredName()
		}
		if err != nil {
			return nil, fmt.Errorf("limit %q: %w", l.Name, err)
		}
		for _, p := range policies {
			if p.limit.Name == l.Name {
				return nil, fmt.Errorf("two limits are named %q", l.Name)
			}
		}
		policies = append(policies, newPolicy(r, len(limits), alone, l))
	}
	return policies, nil
}

// namesOf returns the stored names of limits, for an error.
func namesOf(policies []policy) string {
	var names []string
	for i := range policies {
		names = append(names, strconv.Quote(policies[i].limit.Name))
	}
	return strings.Join(names, ", ")
}

// A policy is a limit with what is the same in every response, for every key.
type policy struct {
	rule     *rule
	limits   int // how many limits of the rule are charged together
	limit    Limit
	name     string // the rule's, or rule/limit
	inFlight bool   // it counts requests that have not ended

	fields  *headers.Prepared
	json    []byte  // the name as JSON
	problem problem // the answer if this limit alone refuses
}

// newPolicy prepares a limit. If alone, header fields show the limit under the name of the
// rule, and otherwise as rule/limit.
func newPolicy(r *rule, limits int, alone bool, l Limit) policy {
	p := policy{rule: r, limits: limits, limit: l, name: r.Name, inFlight: l.InFlight()}
	if !alone {
		p.name += "/" + l.Name
	}
	p.fields = r.writer.Prepare(headers.Policy{Name: p.name, Resource: r.Name, Unit: r.Unit, Limit: l})
	p.json, _ = json.Marshal(p.name) // a string can always be marshalled
	p.problem = r.exceeded.violating(p.json)
	return p
}

// replaced returns the one of the policies that l, one of n limits, replaces, or nil if l
// replaces none. A limit with a name replaces the policy of the same name. A limit without a
// name replaces the policy of the same period. If no policy has the same period, but n is 1
// and there is one policy, l replaces that policy.
func replaced(l *Limit, policies []policy, n int) *policy {
	var same *policy
	for i := range policies {
		p := &policies[i]
		if l.Name != "" && l.Name == p.limit.Name || l.Name == "" && l.Period == p.limit.Period {
			same = p
		}
	}
	if same == nil && n == 1 && len(policies) == 1 && l.Name == "" {
		same = &policies[0]
	}
	return same
}

// inherit sets the Name of l, and fields of l that are zero, to the values of the limit
// that l replaces.
func inherit(l, from *Limit) {
	l.Name = from.Name
	if l.Period == 0 {
		l.Period = from.Period
	}
	switch {
	case l.Algorithm == nil:
		l.Algorithm = from.Algorithm
	case l.Algorithm.Name() != from.Algorithm.Name():
		return
	}
	if l.Burst == 0 {
		l.Burst = from.Burst
	}
}
