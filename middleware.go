package weir

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

// Options configure a Limiter. All fields except Rules may be zero.
type Options struct {
	// Rules are charged together: a request refused by one rule spends nothing under the others.
	Rules []Rule

	// Headers selects the rate-limit fields that responses contain; zero means headers.XRateLimit.
	// With headers.Exposed, scripts from other origins can read the fields.
	Headers headers.Dialect

	// OnLimited answers refused requests; nil means Refuse. The header fields are set before
	// OnLimited is called. FromContext returns the decision, whose Refusal says why the request was
	// refused. If OnError returned an error, the Reason is ReasonError.
	OnLimited http.Handler

	// OnError decides what happens to a request whose limits could not be checked, because the
	// store failed or a Policy had an invalid limit. If OnError returns nil, the request is allowed
	// without a limit. If it returns an error, the request is refused; the text of the error is
	// never sent to clients. A nil OnError allows requests while the store is down (it fails open).
	// It refuses requests if err is ErrBusy, because clients could otherwise remove their limits by
	// flooding the store. It also refuses them if err is ErrUnusable or concerns an invalid limit,
	// because such errors do not go away on their own. FailClosed refuses all of these requests.
	OnError func(r *http.Request, err error) error

	// MaxWait is the longest time that a request may wait for the limits to admit it; 0 means that
	// no request waits. A request that would have to wait longer is refused immediately. If the
	// context of a waiting request ends, its units are refunded. The status is then 503 if the
	// context's deadline has passed, and otherwise 499, which appears only in logs because the
	// client has hung up. All processes that share the store share each key's queue. If there are
	// several rules, a request that waits for one of them also takes a place in the queues of the
	// other rules' keys, and delays the requests behind it there. Put limits that many clients
	// share in a separate Limiter.
	//
	// A request under a concurrency limit (algorithms.InFlight) waits in its own process, in a
	// queue for the limit and key that refuse it, and takes no place in other queues: see
	// quota.TakeInLine. It spends and holds nothing until all limits admit it at the same time. If
	// that does not happen within MaxWait, it is refused.
	MaxWait time.Duration

	// MaxWaiting is the maximum number of requests that wait at a time; 0 means 10,000. Requests
	// whose call to the store is in progress count too. When this number is reached, a request that
	// exceeds a limit is refused without waiting.
	MaxWaiting int

	// Logger receives a warning with the rule's name and the Cause when the store fails or a limit
	// is invalid; nil means slog.Default(). At most one line a second is logged. ErrUnusable is
	// logged as an error. The message says what failed, for example "weir: units not refunded". If
	// OnError allowed the request, the message is "weir: request not decided" with passed=true.
	// These lines have their own rate limit, so that other errors do not hide them. No line
	// contains a key; watch.Log can log keys. A client that hangs up is not an error.
	Logger *slog.Logger

	// Observe, if not nil, is called with each decision and each error, before the request is
	// served or answered. If no rule charges or refuses the request, its Transaction has no
	// Charges. Observe must be safe for concurrent use.
	Observe func(Event)

	// NoFromContext passes the original request to the handler, instead of a copy whose context
	// holds the decision. The Limiter then takes only two thirds of the time and usually allocates
	// nothing, but FromContext returns nil in handlers. The header fields of an inner Limiter then
	// replace this Limiter's fields instead of adding to them. NoFromContext is ignored inside
	// another Limiter, and if a rule has Settle.
	NoFromContext bool
}

// New returns a Limiter, or an error that says which argument is invalid and why. It validates all
// Limits, so only Policy and ForKey can later return an invalid limit. Create Limiters before the
// server starts, not in a handler. New logs a warning if ten Limiters are created for the same rule
// within a minute. It also logs a warning if another Limiter that uses the same store has a rule
// with the same name but different limits.
func New(store Store, o Options) (*Limiter, error) {
	if store == nil {
		return nil, errors.New("weir: the store is nil")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Limiter{store: store, unpaid: unpaid(store), o: o, log: errorLog{logger: o.Logger}, passed: errorLog{logger: o.Logger}, instant: isInstant(store)}
	names := map[string]bool{}
	var err error
	if l.writer, err = newWriter(o.Headers, o.Rules); err != nil {
		return nil, err
	}
	for i := range o.Rules {
		r, err := newRule(o.Rules[i], l.writer)
		if err == nil {
			err = o.admit(r, names)
		}
		if err != nil {
			return nil, err
		}
		r.index, r.log = i, &l.log
		l.rules = append(l.rules, r)
		l.limits += len(r.policies)
		l.settles = l.settles || r.Settle != nil
	}
	for _, rider := range []rider{newShadows(l), newCosts(l), newBans(l), newFlights(l)} {
		if rider != nil {
			l.riders = append(l.riders, rider)
		}
	}
	l.checkWiring()
	return l, nil
}

// unpaid returns the store that decides without granted units: see quota.Payer.
func unpaid(store Store) Store {
	if s, ok := store.(quota.Payer); ok {
		return s.Unpaid()
	}
	return store
}

// isInstant reports whether s decides in memory: see quota.Instant.
func isInstant(s Store) bool {
	i, ok := s.(quota.Instant)
	return ok && compare.Equal(i.Instant(), s)
}

// admit validates a rule against the options, and against the names of earlier rules and of
// their limits. It adds the names of r to these names.
func (o *Options) admit(r *rule, names map[string]bool) error {
	if names[r.Name] {
		return fmt.Errorf("weir: two rules are named %q", r.Name)
	}
	names[r.Name] = true
	for _, p := range r.policies {
		if p.name != r.Name && names[p.name] {
			return fmt.Errorf("weir: header fields could not tell two limits apart: both are named %q", p.name)
		}
		names[p.name] = true
	}
	return nil
}

// complete validates options and replaces zeros by defaults.
func (o *Options) complete() error {
	if len(o.Rules) == 0 {
		return errors.New("weir: Rules is empty")
	}
	for _, d := range []struct {
		name string
		n    int64
		is   any
	}{{"MaxWait", int64(o.MaxWait), o.MaxWait}, {"MaxWaiting", int64(o.MaxWaiting), o.MaxWaiting}} {
		if d.n < 0 {
			return fmt.Errorf("weir: %s is %v; want at least 0", d.name, d.is)
		}
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 10_000
	}
	if o.OnError == nil {
		o.OnError = failOpen
	}
	return nil
}

// Rules returns the rules that the Limiter applies. Each limit's Name is its stored name.
func (l *Limiter) Rules() []Rule {
	rules := make([]Rule, len(l.rules))
	for i := range l.rules {
		r := l.rules[i]
		rules[i] = r.Rule
		rules[i].Limits = limitsOf(r.policies)
	}
	return rules
}

// Middleware returns middleware that applies a rule with one or more limits. It panics if New would
// return an error.
//
//	r.Use(weir.Middleware(store, "api", weir.ByIP(), algorithms.GCRA(100, time.Minute)))
func Middleware(store Store, rule string, key KeyFunc, limits ...Limit) func(http.Handler) http.Handler {
	l, err := New(store, Options{Rules: []Rule{{Name: rule, Key: key, Limits: limits}}})
	if err != nil {
		panic(err)
	}
	return l.Handler
}

// Handler returns an http.Handler that applies the rules and calls the next handler for each
// admitted request. It wraps the ResponseWriter only if a rule has a Settle function. The wrapper
// still supports http.Flusher, http.Hijacker, io.ReaderFrom and http.ResponseController.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
}

// FailClosed is an OnError function that refuses every request whose limits could not be checked.
func FailClosed(_ *http.Request, err error) error { return err }

// PolicyOf returns a key's policy under a rule: the policy that ForKey returns or, if ForKey
// returns none, the rule's Limits. In the result, each limit's Name is its stored name. PolicyOf
// does not call Rule.Policy, which needs a request. For a rule without Limits, it therefore returns
// the zero Policy unless ForKey returns Unlimited, Denied or Allowed. It returns an error if there
// is no such rule, or if one of the key's limits is invalid.
func (l *Limiter) PolicyOf(rule, key string) (Policy, error) {
	for _, r := range l.rules {
		if r.Name == rule {
			return r.policyOf(key)
		}
	}
	return Policy{}, fmt.Errorf("weir: there is no rule %q", rule)
}
