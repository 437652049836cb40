package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// With these aliases, most programs do not have to import package quota.
type (
	Limit = quota.Limit // a number of units per period
	Store = quota.Store // stores how many units each key has spent
)

// A Rule specifies which requests share a quota and how large that quota is.
type Rule struct {
	// Name identifies the rule in stored keys and header fields. It must be printable ASCII, such
	// as "auth.createToken".
	Name string

	// Key returns the key whose quota a request spends. If the request has no key, ok is false. If
	// the client has hung up, the context of r may be done, and Key must still return the key.
	// Otherwise clients could evade the rule by hanging up.
	Key KeyFunc

	// NoKey determines what happens to a request for which Key returns no key; the zero value is
	// NoKeySkip. If none of the first 200 requests has a key, a warning with the likely reasons is
	// logged, whatever the value of NoKey.
	NoKey NoKey

	// Limits are the limits of each key, such as 20 per minute and 5 per 3 seconds. All of them
	// apply. Policy or ForKey can return other limits. A limit without a name is named after its
	// period, such as "1m" or "3s". Counts are stored under the name and the period. If a rule has
	// only one limit and that limit has no name, header fields show it under the rule's name. A
	// rule without Policy needs Limits.
	Limits []Limit

	// Buffer is added to the Period of every limit that is charged; 0 adds nothing. Buffer is for
	// rules of Limiter.Transport, because some requests take longer than others to reach the
	// server. If these delays differ by at most Buffer, the server never receives more requests in
	// a period than the limit allows. Buffer must be a whole number of microseconds. The stored
	// name of a count contains this sum, so all processes must use the same Buffer, and counts
	// start at 0 when Buffer changes. Header fields show the Period without Buffer.
	Buffer time.Duration

	// Policy returns the policy for a request, such as the limits of a tier; nil means Limits.
	// Policy is also called for a request without a key, so that clients in a denied network cannot
	// evade the denial by omitting their key. For such a request only the results Allowed and
	// Denied matter. Policy is also called for a banned key, and Allowed exempts the request from
	// the ban. The zero Policy means Limits. If the rule has no Limits either, for example because
	// a tier is misspelled, the request is handled as if a limit were invalid (see
	// Options.OnError). A limit that cannot be counted exactly is replaced by a lower limit that
	// can, and a warning is logged. The context of r is not canceled when the client hangs up,
	// because a canceled lookup could change the limits. Policy must therefore set its own timeout
	// for lookups.
	Policy func(r *http.Request) Policy

	// ForKey returns the policy of a key that has its own policy, and the zero Policy for any other
	// key; nil means that no key has its own policy. ForKey is called with the key that Key
	// returned, for each request to which the rule applies, so it must be fast. The tables of
	// package overrides have such a method, and When builds such a function from a KeyList.
	//
	// If both Policy and ForKey return a non-zero policy, Allowed takes precedence over Denied, and
	// Denied over limits and Unlimited. Limits or Unlimited from ForKey take precedence over those
	// from Policy.
	//
	// The limits from ForKey replace those that the request would otherwise have from Policy or
	// Limits. A limit with a name replaces the limit with the same name. A limit without a name
	// replaces the limit with the same Period. If no limit has the same Period, but the request has
	// only one limit and ForKey returns only one, ForKey's limit replaces the request's. The new
	// limit takes over the name of the limit that it replaces. If its period is the same, units
	// already spent still count. If the new limit's Period or Algorithm is zero, it takes over the
	// value of the replaced limit. It also takes over the Burst if its own Burst is zero and both
	// limits have the same Algorithm. If a limit is invalid, or is incomplete and replaces no
	// limit, the key's policy is ignored and a warning is logged.
	ForKey func(key string) Policy

	// Cost returns how many units a request costs; nil means 1. A request with cost 0 is admitted
	// and spends nothing. A request with a negative cost is refused, so that a ContentLength of −1
	// refunds no units. If the cost exceeds what a limit can ever admit, RetryAfter is quota.Never.
	// If each of the first 200 requests exceeds a limit in this way, a warning is logged.
	Cost func(r *http.Request) int64

	// Class returns the class of a request, such as "batch". It can be any KeyFunc, such as
	// ByHeader, ByUrgency, or ByContext for a tier. Headroom maps a class to the percentage of each
	// limit, from 1 to 99, that requests of this class must leave to others. If the percentage is
	// 30, a request is admitted only if it leaves 30 % of what the limit allows at once, rounded up
	// to whole units. Requests without a class, and requests whose class Headroom does not list,
	// leave nothing to others. All classes spend the same units. The decisions, header fields and
	// Retry-After of a request are computed for its class: see Headroom in quota.Charge. A client
	// that can choose its class can choose one that need not leave anything.
	//
	// A request that must leave headroom never waits, whatever Options.MaxWait is, and the refusal
	// of such a request does not count as a strike. Set both Class and Headroom, or neither.
	Class    KeyFunc
	Headroom map[string]int

	// FreePreflights makes CORS preflight requests free. A preflight is free only if it looks like
	// one sent by a browser: an OPTIONS request with Origin and Access-Control-Request-Method, but
	// without a body or any of the fields Authorization, Proxy-Authorization, Cookie, Expect and
	// Upgrade. Over HTTP/3, quic-go does not report that a request has no body, so preflights are
	// charged. Even a free preflight is refused if its key is denied or banned. By default,
	// preflights are charged like other requests, because clients could otherwise send any number of
	// them. CORS middleware in front of the Limiter answers preflights before they are charged.
	FreePreflights bool

	// Settle returns the final cost of a request; nil means that the cost returned by Cost is
	// final. Settle is called after the handler has returned. Until then, the cost returned by Cost
	// is reserved. See Outcome.
	Settle func(o Outcome) int64

	// Enforce is the percentage of keys for which the rule is enforced; zero means all keys. For
	// the other keys the rule is in shadow mode: the rule is charged and observed, but refuses or
	// delays no request and writes no header fields. Percent(10) enforces the rule for a tenth of
	// the keys, and Percent(0) for none of them. Every process enforces the rule for the same keys.
	// If you raise the percentage, the rule is still enforced for these keys. All rules in shadow
	// mode are charged in a second call to the store, after the other rules have admitted the
	// request and any wait is over. If fewer than MaxWaiting requests wait, Observe receives the
	// additional Wait that these rules would cause, but the request does not wait for them.
	Enforce Enforcement

	// Penalty bans keys that the limits of this rule refuse repeatedly; nil bans no key.
	Penalty *Penalty

	// Unit is the unit that Cost counts, such as "tokens" or "content-bytes"; "" means "requests".
	// Some dialects show the unit to clients.
	Unit string

	// PartitionKey returns the pk parameter of the IETF dialect, which tells the client which of
	// several quotas with the same name a request spends. Its argument is the charge's StoredKey
	// (see quota.Charge). The parameter is omitted if PartitionKey is nil, or returns "" or more
	// than 128 bytes. Proxies and scripts in web pages can read the parameter, and logs may contain
	// it. Do not return a secret, or anything that the client must not learn, such as its address
	// behind a proxy or the name of a shared account. A keyed digest of the key or the name of a
	// tier also distinguishes quotas.
	PartitionKey func(key string) string

	// Private hides the rule from clients: the rule's limits appear neither in header fields nor in
	// the body of a refusal. FromContext, Observe and logs still show these limits. Use Private for
	// quotas that clients share, because the size and usage of a shared quota show how busy the
	// service is. If only private limits refuse a request, the response has Retry-After, and no
	// field describes a limit.
	Private bool

	// Status is the status code, 400 to 599, of the response to a request that a limit, ban or
	// Denied policy of the rule refuses; 0 means 429. Use 503 if the limit protects an overloaded
	// service and the client has not sent too many requests. If several rules refuse a request, the
	// Status of the rule that the Refusal names applies.
	Status int

	// RetryJitter is the maximum random time that is added to Retry-After, so that clients that
	// were refused at the same time do not all retry at the same time; 0 adds none. The other
	// header fields, Decision and Refusal contain the exact wait. If several rules refuse a
	// request, the RetryJitter of the rule that the Refusal names applies.
	RetryJitter time.Duration
}

// A NoKey determines how a rule handles a request for which its Key function returns no key.
type NoKey uint8

const (
	// With NoKeySkip, the rule does not apply to such a request, so clients that can omit their key
	// can evade the rule.
	NoKeySkip NoKey = iota

	// NoKeyShare limits all requests without a key together, under the key "\x00". No client can
	// send this key, because a key that begins with "\x00" is prefixed with another "\x00".
	NoKeyShare

	// NoKeyRefuse refuses the request with 400 and ReasonNoKey, unless Rule.Policy allows it.
	NoKeyRefuse
)

// A Policy determines whether a rule limits a request, allows it without a limit, refuses it, or does not
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
	missingKind // the request lacks a required key; no Policy is of this kind
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
//	ForKey: weir.When(partners, weir.Allowed(), table.ForKey),
//	Policy: weir.When(pests, weir.Denied()),
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

// A rule holds a Rule and everything that New prepares for it.
type rule struct {
	Rule
	own      *policy         // the policy prepared from Limits
	exceeded answer.Problem  // the body of a refusal by its limits
	abnormal answer.Problem  // the body of a refusal by a ban or a deny
	penalty  *ban.Penalty    // nil if Penalty is nil
	limiter  *Limiter        // nil until New has added the rule to one
	writer   *headers.Writer // the Limiter's
	global   bool            // Key is Global, so empty keys are intended

	// For warnings: see warnings.go.
	keyless, classless, costless, negative, unfit, unsettled, named streak

	firstName atomic.Value // the name of the first limit that Policy has returned, a string
	emptied   atomic.Bool  // a key was empty, or had the port of the peer, and this was logged
	unread    atomic.Bool  // usage was reported, but the rule has no Settle function

	policies    sync.Map // hash → *policy
	policyCount atomic.Int64
}

// A policy is a Policy prepared for one rule, with everything that stays the same from request to
// request.
type policy struct {
	rule     *rule // nil unless kind is limitedKind
	kind     kind
	limits   []limit // nil unless kind is limitedKind
	inFlight bool    // one of the limits is a concurrency limit
	err      error   // not nil if a limit is invalid

	of   []Limit // the limits from which the policy was prepared
	base *policy // the policy whose limits this policy replaces; nil in rule.own
	kept bool    // the rule's policies contains this policy
}

// A limit holds a Limit of a rule, together with the parts of responses that are the same for every
// request and key.
type limit struct {
	Limit
	name    string // in header fields: the rule's name, or rule/limit
	fields  *headers.Prepared
	json    []byte         // the name as JSON
	problem answer.Problem // the answer if this limit alone refuses
}

func newRule(r Rule, w *headers.Writer) (*rule, error) {
	p, err := r.prepare(w)
	if err != nil {
		return nil, r.fault(err)
	}
	return p, nil
}

// fault returns the error that New returns for the rule. The error wraps err, which does not name
// the rule.
func (r *Rule) fault(err error) error { return fmt.Errorf("weir: rule %q: %w", r.Name, err) }

// check returns an error if a field of the rule, other than its limits and its unit, is invalid.
func (r *Rule) check() error {
	switch {
	case r.Name == "":
		return errors.New("the Name is empty")
	case !storedkey.IsName(r.Name):
		return storedkey.ErrName
	case r.Key == nil:
		return errors.New("the Key is nil")
	case len(r.Limits) == 0 && r.Policy == nil:
		return errors.New("the list of Limits is empty; want one, or a Policy")
	case !(r.Enforce.shadow >= 0 && r.Enforce.shadow <= 100):
		return fmt.Errorf("the Enforce is %v; want 0%% to 100%%", r.Enforce)
	case r.Status != 0 && (r.Status < 400 || r.Status > 599):
		return fmt.Errorf("the status is %d; want 400 to 599", r.Status)
	case r.NoKey > NoKeyRefuse:
		return fmt.Errorf("the NoKey is %d; want NoKeySkip, NoKeyShare or NoKeyRefuse", r.NoKey)
	}
	return cmp.Or(r.checkHeadroom(), r.checkDurations())
}

func (r *Rule) checkHeadroom() error {
	if (r.Class == nil) != (len(r.Headroom) == 0) {
		return errors.New("one of Class and Headroom is set; want both or none")
	}
	for class, percent := range r.Headroom {
		if percent < 1 || percent > 99 {
			return fmt.Errorf("the Headroom of class %q is %d%%; want 1%% to 99%%", class, percent)
		}
		if safe.SameFunc(r.Class, urgency) && (len(class) != 1 || class < "0" || class > "7") {
			return fmt.Errorf("the Headroom has the class %q; want the classes of ByUrgency, \"0\" to \"7\"", class)
		}
	}
	return nil
}

func (r *Rule) checkDurations() error {
	if r.Buffer < 0 || r.Buffer%time.Microsecond != 0 {
		return fmt.Errorf("the Buffer is %v; want whole microseconds, at least 0", r.Buffer)
	}
	if r.RetryJitter < 0 || r.RetryJitter > quota.MaxTicks*time.Microsecond {
		return fmt.Errorf("the RetryJitter is %v; want 0 to 2^50 µs", r.RetryJitter)
	}
	return period.CheckUnit("the RetryJitter", r.RetryJitter)
}

func (r Rule) prepare(w *headers.Writer) (*rule, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.Headroom = maps.Clone(r.Headroom)
	r.Unit = cmp.Or(r.Unit, headers.Requests)
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("the unit is %q; want lower-case letters, digits and hyphens", r.Unit)
	}
	p := &rule{
		Rule: r, writer: w, global: safe.SameFunc(r.Key, global),
		exceeded: answer.QuotaExceeded.WithStatus(r.Status), abnormal: answer.AbnormalUsage.WithStatus(r.Status),
	}
	if r.Status == answer.ReducedCapacity.Status {
		p.exceeded = answer.ReducedCapacity
	}
	if err := p.prepareLimits(); err != nil {
		return nil, err
	}
	if err := p.checkLimits(); err != nil {
		return nil, err
	}
	if safe.SameFunc(r.Class, urgency) {
		p.classless.end()
	}
	if r.Penalty != nil {
		if err := r.Penalty.validate(); err != nil {
			return nil, err
		}
		p.penalty = ban.NewPenalty(r.Name, r.Penalty.Strikes, r.Penalty.Duration, r.Penalty.longest())
	}
	return p, nil
}

// prepareLimits prepares the Limits of a rule as its own policy. If there are no Limits, the
// prepared policy has an error. This error occurs only for requests for which Policy and ForKey
// return no policy.
func (r *rule) prepareLimits() (err error) {
	r.own = &policy{rule: r, kind: limitedKind}
	if r.own.limits, err = r.limitsOf(r.Limits, nil); err != nil {
		return err
	}
	if r.own.inFlight = anyInFlight(r.own.limits); len(r.Limits) == 0 {
		r.own.err = r.fault(fmt.Errorf("%w: the policy is zero, and the rule has no Limits", quota.ErrLimit))
	}
	return nil
}

// Validate returns the error that New would return for a Limiter with only this rule. To obtain the
// cause without the rule's name, call [errors.Unwrap] on the error.
func (r Rule) Validate() error {
	_, err := newRule(r, defaultWriter)
	return err
}

// checkLimits returns an error if a limit or the Settle function would have no effect.
func (r *rule) checkLimits() error {
	limits := r.own.limits
	settles := r.Settle == nil || len(limits) == 0
	for i := range limits {
		a := &limits[i]
		settles = settles || !a.InFlight()
		if err := checkBurst(&a.Limit); err != nil {
			return fmt.Errorf("limit %q: %w", a.Name, err)
		}
		for class, percent := range r.Headroom {
			if n := a.Capacity(); a.Limit.Headroom(percent) >= n {
				return fmt.Errorf("limit %q holds %d, of which a Headroom of %d%% leaves nothing to class %q",
					a.Name, n, percent, class)
			}
		}
		for j := range limits {
			// With Settle or ForKey, a limit that looks redundant may still refuse requests.
			b := &limits[j]
			if i != j && r.Settle == nil && r.ForKey == nil && a.Redundant(&b.Limit) {
				return fmt.Errorf("limit %q never refuses a request that limit %q admits: remove it or change its numbers",
					a.Name, b.Name)
			}
		}
	}
	if !settles {
		return errors.New("the Settle is set, but all limits are concurrency limits; " +
			"want nil, because these release their units themselves")
	}
	return nil
}

// checkBurst returns an error if the algorithm ignores Burst. The limit must be valid.
func checkBurst(l *Limit) error {
	one, two := l.WithBurst(1), l.WithBurst(2)
	if l.Burst == 0 || one.Capacity() != two.Capacity() {
		return nil
	}
	return fmt.Errorf("burst is %d; want 0, because %s has no burst", l.Burst, l.Algorithm.Name())
}

// PolicyOf returns a key's policy in the same way as Limiter.PolicyOf. If the rule is invalid, it
// returns the error from Validate.
func (r Rule) PolicyOf(key string) (Policy, error) {
	rule, err := newRule(r, defaultWriter)
	if err != nil {
		return Policy{}, err
	}
	return rule.policyOf(key)
}

// maxPolicies is the maximum number of prepared policies that a rule keeps. When one more is
// prepared, the rule drops all others. Each of those is prepared again when it is next used.
const maxPolicies = 1 << 14

// countable prepares limits that Policy has returned. If a limit cannot be counted exactly,
// countable logs the error and prepares a lower limit that can be counted. It also logs a warning
// if each of the rule's first requests has a named limit that no earlier request had.
func (rule *rule) countable(ctx context.Context, limits []Limit) *policy {
	before := rule.policyCount.Load()
	p := rule.limited(limits, unlimitedPolicy)
	if rule.named.isOpen() {
		rule.checkName(limits, rule.policyCount.Load() != before)
	}
	if p.err == nil {
		return p
	}
	limits = slices.Clone(limits)
	for i := range limits {
		if err, ok := limits[i].Fault().(optional.Uncountable); ok {
			limits[i] = err.Nearest()
		}
	}
	nearest := rule.limited(limits, unlimitedPolicy)
	if nearest.err == nil {
		rule.limiter.log.warn(ctx, "limit of Policy lowered", rule.Name, p.err)
	}
	return nearest
}

// limited returns a policy prepared from limits, which replace the limits of base. The rule keeps
// the policy and returns it again for equal limits. The caller may change the slice later. Limits
// whose algorithm is not comparable are prepared for each request.
func (rule *rule) limited(limits []Limit, base *policy) *policy {
	hash, comparable := hashOf(limits, base)
	if comparable {
		known, _ := rule.policies.Load(hash)
		if p, _ := known.(*policy); p != nil && p.base == base && slices.Equal(p.of, limits) {
			return p
		}
	}
	p := &policy{rule: rule, kind: limitedKind, of: slices.Clone(limits), base: base, kept: comparable}
	var err error
	if p.limits, err = rule.limitsOf(p.of, base.limits); err != nil {
		p.err = rule.fault(fmt.Errorf("%w: %w", quota.ErrLimit, err))
	}
	p.inFlight = anyInFlight(p.limits)
	if !comparable {
		return p
	}
	if rule.policyCount.Add(1) > maxPolicies {
		rule.policies.Clear()
		rule.policyCount.Store(1)
	}
	rule.policies.Store(hash, p)
	return p
}

var policySeed = maphash.MakeSeed()

// hashOf hashes limits and base, the policy that they replace. It returns false if a policy
// prepared from them cannot be found again by this hash.
func hashOf(limits []Limit, base *policy) (hash uint64, comparable bool) {
	if base.of != nil && !base.kept {
		return 0, false // base was prepared for this request
	}
	hash = maphash.Comparable(policySeed, base)
	for i := range limits {
		if !safe.Comparable(limits[i].Algorithm) {
			return 0, false
		}
		hash = maphash.Comparable(policySeed, struct {
			before uint64
			Limit
		}{hash, limits[i]})
	}
	return hash, true
}

// policyOf returns the policy of a key, with stored names.
func (rule *rule) policyOf(key string) (Policy, error) {
	var own Policy
	if rule.ForKey != nil {
		own = rule.ForKey(key)
	}
	p := rule.own
	switch {
	case own.kind > limitedKind:
		return own, nil
	case len(p.limits) == 0:
		return Policy{}, nil
	case own.kind == limitedKind:
		if p = rule.limited(own.limits, p); p.err != nil {
			return Policy{}, p.err
		}
	}
	return Limited(p.storedLimits()...), nil
}

// The policies without limits, for all rules.
var (
	unlimitedPolicy = &policy{kind: unlimitedKind}
	deniedPolicy    = &policy{kind: deniedKind}
	allowedPolicy   = &policy{kind: allowedKind}
	missingPolicy   = &policy{kind: missingKind}
)

func anyInFlight(limits []limit) bool {
	return slices.ContainsFunc(limits, func(l limit) bool { return l.InFlight() })
}

// storedLimits returns the limits of a policy. Each limit's Name is its stored name.
func (p *policy) storedLimits() []Limit {
	limits := make([]Limit, len(p.limits))
	for i := range p.limits {
		limits[i] = p.limits[i].Limit
	}
	return limits
}

// limitsOf prepares limits of a rule: it names and validates each limit, and builds its header
// fields. If the limits are those of a single key, base contains the limits that they replace.
func (r *rule) limitsOf(limits []Limit, base []limit) ([]limit, error) {
	var prepared []limit
	for _, l := range limits {
		alone := l.Name == "" && len(limits) == 1 // header fields then show the limit under the rule's name
		from := replaced(&l, base, len(limits))
		if from != nil {
			inherit(&l, &from.Limit)
			alone = len(limits) == 1 && from.name == r.Name
		}
		err := l.Fault()
		if l.Algorithm == nil && len(base) > 0 {
			err = fmt.Errorf("%w, and the limit replaces none of the limits %s", err, namesOf(base))
		}
		if l.Period != 0 {
			l.Name = l.Label()
		}
		if err != nil {
			return nil, fmt.Errorf("limit %q: %w", l.Name, err)
		}
		long := l
		long.Period += r.Buffer
		if err := long.Fault(); err != nil {
			return nil, fmt.Errorf("limit %q with a buffer of %v: %w", l.Name, r.Buffer, err)
		}
		if slices.ContainsFunc(prepared, func(p limit) bool { return p.Name == l.Name }) {
			return nil, fmt.Errorf("two limits are named %q; name one of them, in Go with .Named", l.Name)
		}
		prepared = append(prepared, r.newLimit(l, alone))
	}
	return prepared, nil
}

// newLimit prepares a limit. If alone is true, header fields show the limit under the name of the
// rule, and otherwise as rule/limit.
func (r *rule) newLimit(l Limit, alone bool) limit {
	p := limit{Limit: l, name: r.Name}
	if !alone {
		p.name += "/" + l.Name
	}
	p.fields = r.writer.Prepare(headers.Policy{Name: p.name, Resource: r.Name, Unit: r.Unit, Limit: l})
	p.json = strconv.AppendQuote(nil, p.name) // valid JSON, because names are printable ASCII
	p.problem = r.exceeded.Violating(p.json)
	return p
}

// namesOf returns the names of limits, for the text of an error.
func namesOf(limits []limit) string {
	var names []string
	for i := range limits {
		names = append(names, strconv.Quote(limits[i].Name))
	}
	return strings.Join(names, ", ")
}

// replaced returns the element of limits that l replaces, or nil: the limit with the same name or,
// if l has no name, with the same period. If there is none, l replaces the only element of limits,
// provided that l is the only new limit (n is 1) and has no name.
func replaced(l *Limit, limits []limit, n int) *limit {
	var found *limit
	for i := range limits {
		p := &limits[i]
		if l.Name != "" && l.Name == p.Name || l.Name == "" && l.Period == p.Period {
			found = p
		}
	}
	if found == nil && n == 1 && len(limits) == 1 && l.Name == "" {
		found = &limits[0]
	}
	return found
}

// inherit sets the Name of l, and the fields of l that are zero, to the values of the limit that l
// replaces.
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

// An Enforcement is the percentage of keys for which a rule is enforced. The zero Enforcement is
// Percent(100). Enforcements are comparable.
type Enforcement struct{ shadow float64 } // percentage of keys for which the rule is in shadow mode

// Percent returns an Enforcement that enforces a rule for p percent of its keys. New returns an
// error if p is not in the range from 0 to 100. A client can tell that the rule is in shadow mode
// for its key, because the responses lack the rule's header fields. A client that can obtain many
// keys can therefore try them until it finds such a key.
func Percent(p float64) Enforcement { return Enforcement{100 - p} }

// Percent returns the percentage of keys for which the rule is enforced, from 0 to 100.
func (e Enforcement) Percent() float64 { return 100 - e.shadow }

// String returns the percentage with at most four significant digits, such as "10%".
func (e Enforcement) String() string { return strconv.FormatFloat(e.Percent(), 'g', 4, 64) + "%" }

// Enforces reports whether a rule with the given name and this Enforcement is enforced for a key.
// The rule is in shadow mode for the other keys. The StoredKey of a key (see quota.Charge) gives
// the same result as the key.
func (e Enforcement) Enforces(rule, key string) bool {
	return e.shadow == 0 || e.enforcesSome(rule, key) // this check is inlined, so most rules cost no call
}

// enforcesSome is Enforces for a rule in shadow mode for some keys. These are the keys for which a
// hash of the rule's name and the key, in [0, 1), is below their share.
func (e Enforcement) enforcesSome(rule, key string) bool {
	return fraction(rule, storedkey.Of(key)) >= e.shadow/100
}

// fraction hashes two strings to a number in [0, 1), which is the same in every process and
// release. The upper bits of FNV-1a are unevenly distributed, so a mixing step follows.
func fraction(a, b string) float64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{a, "\x00", b} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return float64((h^h>>33)>>11) / (1 << 53)
}

// rule returns the rule with the given name, or an error if there is none.
func (l *Limiter) rule(name string) (*rule, error) {
	for _, r := range l.rules {
		if r.Name == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("weir: there is no rule %q", name)
}
