package weir

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the options of New. All fields except Rules may be zero.
type Options struct {
	// Rules are charged together: a request that one rule refuses spends nothing under the
	// others.
	Rules []Rule

	// Headers says which response header fields tell clients of limits; zero means
	// XRateLimit.
	Headers Dialect

	// ExposeHeaders sends Access-Control-Expose-Headers with the names of the fields about
	// limits and of Retry-After, so that scripts from another origin may read these fields.
	ExposeHeaders bool

	// ChargePreflight charges CORS preflight requests too. By default they are free,
	// because a browser sends them by itself. Only requests in the form that browsers send
	// are free: OPTIONS with Origin and Access-Control-Request-Method, without a body,
	// Authorization, Proxy-Authorization, Cookie, Expect or Upgrade. A deny or a ban
	// refuses a free preflight as well. If a rule has a Penalty, the store is therefore
	// asked whether the key is banned. A preflight has no credentials, so a key made of
	// credentials cannot tell which client sent it.
	ChargePreflight bool

	// OnLimited answers a request that was refused; nil means Refuse. The header fields are
	// set before OnLimited is called, and FromContext returns the decision.
	OnLimited http.Handler

	// OnError answers a request that could not be decided, because the store failed or
	// LimitsFor returned an invalid limit. nil calls next if the store failed (it fails
	// open), and answers as FailClosed does if a limit is invalid, because such a mistake
	// does not go away by itself. The text of err is not for clients.
	OnError func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)

	// MaxWait > 0 makes a request that does not fit wait for its turn, instead of refusing
	// it, if the turn comes within MaxWait. No lock is held during the wait. If the context
	// of the request ends, the turn is given back. The answer is then 503 after a deadline,
	// and otherwise 499, which only logs see, because the client has hung up. All processes
	// that share the store share the queue of a key. When several rules are charged
	// together, a request that waits in the queue of one key also takes a place in the
	// queues of the other rules' keys, and delays the requests behind it there. Put limits
	// that many clients share in a Limiter of their own.
	MaxWait time.Duration

	// MaxWaiting bounds how many requests wait at a time; 0 means 10,000. Requests that
	// are being decided count too, because each takes its place before the store is
	// asked. Beyond the bound a request does not wait: if it does not fit, it is
	// refused.
	MaxWaiting int

	// Buffer is for Transport. It is added to every period, because some requests take
	// longer to the server than others. If these delays differ by no more than Buffer, the
	// server sees no period with more requests than the limit.
	Buffer time.Duration

	// MaxPause is for Transport: how long a response may pause a key; 0 means one minute.
	// Few servers ask for more. Without the bound, a mistake in one response could stop all
	// processes for a day. When MaxPause is over, requests go out again, and their
	// responses can renew the pause. GitHub has windows of an hour and punishes requests
	// that come too early. For such a server, set MaxPause to the length of its window. The
	// first pause that is cut is logged.
	MaxPause time.Duration

	// Logger gets the errors of the store and of invalid limits, as warnings with the name
	// of the rule, at most one line a second; nil means slog.Default(). The message says
	// what failed: "weir: could not decide", or, for example, "weir: could not give units
	// back" for a request that was decided. These lines have no keys. watch.Log can log
	// keys. A client that hangs up is no error.
	Logger *slog.Logger

	// Observe is called with each decision and each error, before the request goes on; nil
	// observes nothing. A request that no rule charges or refuses is not observed. Observe
	// must be safe for concurrent use.
	Observe func(Event)

	// NoFromContext passes each request on as it is, instead of a copy whose context has
	// the decision. FromContext then returns nil in the handlers, and the Limiter takes two
	// thirds of the time and usually allocates nothing. The header fields of an inner
	// Limiter then replace the fields of this Limiter, instead of adding to them.
	// NoFromContext is ignored inside another Limiter, and if a rule has Settle.
	NoFromContext bool
}

// A Limiter applies rules to requests. It is safe for concurrent use and cannot be
// changed.
type Limiter struct {
	store   Store
	rules   []*rule
	limits  int // how many limits all rules have, without the limits of LimitsFor
	o       Options
	settles bool     // a rule has Settle
	guards  bool     // a rule can refuse requests that it does not charge
	jitters bool     // a rule has RetryJitter
	single  bool     // serveSingle serves the requests
	triples []triple // that the dialect sends
	expose  []string
	log     errorLog

	waiting atomic.Int64
	cut     atomic.Bool // a pause was cut to MaxPause, which is logged once
	pool    sync.Pool   // of *verdict

	instant  bool // the store decides in memory: see isInstant
	integers integers
}

// New returns a Limiter, or an error that says what is wrong with the arguments. It
// validates all Limits, so that only LimitsFor and Overrides can bring an invalid limit
// later.
func New(store Store, o Options) (*Limiter, error) {
	if store == nil {
		return nil, errors.New("weir: the store is nil")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Limiter{store: store, o: o, triples: o.Headers.triples(), log: errorLog{logger: o.Logger}, instant: isInstant(store)}
	names := map[string]bool{}
	var units []string
	for i := range o.Rules {
		r, err := prepare(o.Rules[i])
		if err == nil {
			err = o.admit(r, names)
		}
		if err != nil {
			return nil, err
		}
		r.log = &l.log
		l.rules = append(l.rules, r)
		l.limits += len(r.policies)
		l.settles = l.settles || r.Settle != nil
		l.guards = l.guards || r.guards()
		l.jitters = l.jitters || r.RetryJitter > 0
		units = append(units, r.Unit)
	}
	if o.ExposeHeaders {
		l.expose = []string{o.Headers.exposed(units)}
	}
	l.single = l.isSingle()
	return l, nil
}

// admit validates a rule against the options, and against the names of earlier rules and of
// their limits. It adds the names of r to these names.
func (o *Options) admit(r *rule, names map[string]bool) error {
	if names[r.Name] {
		return fmt.Errorf("weir: two rules are named %q", r.Name)
	}
	names[r.Name] = true
	for _, p := range r.policies {
		if p.inFlight && o.MaxWait > 0 {
			return fmt.Errorf("weir: rule %q: limit %q counts requests in flight, for which no request can wait: give it a Limiter without MaxWait", r.Name, p.limit.Name)
		}
		p.limit.Period += o.Buffer
		if err := p.limit.fault(); err != nil {
			return fmt.Errorf("weir: rule %q: limit %q with a buffer of %v: %w", r.Name, p.limit.Name, o.Buffer, err)
		}
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
		return errors.New("weir: there are no rules")
	}
	if o.Headers == 0 {
		o.Headers = XRateLimit
	}
	if err := o.Headers.validate(); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		n    int64
	}{{"MaxWait", int64(o.MaxWait)}, {"MaxWaiting", int64(o.MaxWaiting)}, {"Buffer", int64(o.Buffer)}, {"MaxPause", int64(o.MaxPause)}} {
		if d.n < 0 {
			return fmt.Errorf("weir: %s is below 0", d.name)
		}
	}
	if o.Buffer%time.Microsecond != 0 {
		return fmt.Errorf("weir: Buffer %v is not in whole microseconds", o.Buffer)
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 10_000
	}
	if o.MaxPause == 0 {
		o.MaxPause = time.Minute
	}
	if o.OnError == nil {
		o.OnError = failOpen
	}
	return nil
}

// Rules returns the rules as the Limiter applies them: every limit has its stored name.
func (l *Limiter) Rules() []Rule {
	rules := make([]Rule, len(l.rules))
	for i := range l.rules {
		r := l.rules[i]
		rules[i] = r.Rule
		rules[i].Limits = make([]Limit, len(r.policies))
		for j := range r.policies {
			rules[i].Limits[j] = r.policies[j].limit
		}
	}
	return rules
}

// Middleware limits requests by one key, with any number of limits. It panics if New would
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

// Handler limits the requests to next. It wraps the ResponseWriter only if a rule has
// Settle, and Flusher, Hijacker, io.ReaderFrom and http.ResponseController then keep
// working.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
}

// failOpen is the default of OnError.
func failOpen(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	if errors.Is(err, errLimitsFor) {
		FailClosed(w, r, next, err)
		return
	}
	next.ServeHTTP(w, r)
}

// FailClosed is an OnError that refuses requests that could not be decided: it answers
// 503 with problem details of the type temporary-reduced-capacity.
func FailClosed(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	reducedCapacity.write(w, r)
}
