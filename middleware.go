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

// Options of New. All but Rules may be zero.
type Options struct {
	// Rules are charged together, all or nothing: what one refuses spends
	// nothing of another.
	Rules []Rule

	// Headers is how clients are told; zero means XRateLimit.
	Headers Dialect

	// ExposeHeaders sends Access-Control-ExposeHeaders-Headers with the names of these
	// fields, so that scripts from another origin may read them.
	ExposeHeaders bool

	// ChargePreflight charges CORS preflight requests too. By default they pass
	// free of charge, because a browser sends them unasked, and only as a browser
	// sends them: OPTIONS with Origin and Access-Control-Request-Method, without a
	// body, Authorization, Proxy-Authorization, Cookie, Expect or Upgrade. Deny and bans refuse them
	// like any other request; with a Penalty that is a look at the store. They have
	// no credentials: under a key made of these, their key is that of strangers.
	ChargePreflight bool

	// OnLimited answers a request that was refused; nil is Refuse. Fields are
	// set before it is called, and FromContext tells it what was decided.
	OnLimited http.Handler

	// OnError answers a request that could not be decided, because the store
	// failed or LimitsFor gave an invalid limit; nil fails open: it calls next.
	// FailClosed is another choice. The text of err is not for clients.
	OnError func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)

	// MaxWait > 0 delays a request that would be refused until its turn, if that
	// comes within MaxWait. The wait holds no lock, and a client that hangs up
	// gives its turn back: it is answered 499 for the logs, or 503 if a deadline
	// has ended its request. There is one line for each key, in all processes that
	// share the store. Where rules of several keys are charged together, who
	// waits for one keeps his place in the others, and those behind him wait too:
	// limit what is shared in a Limiter of its own.
	MaxWait time.Duration

	// MaxWaiting bounds how many requests wait at a time; 0 means 10,000. A request
	// takes its place before the store is asked, so those that are being decided
	// count. Beyond the bound a request does not wait: if it does not fit, it is
	// refused.
	MaxWaiting int

	// Buffer is for Transport: by how much requests may arrive later than they
	// left. Periods are longer by it, so that the receiver sees no window over
	// the limit as long as delays differ by less.
	Buffer time.Duration

	// MaxPause is for Transport: how long an answer of the other side may pause a
	// key; 0 means one minute. Few servers ask for more; without the bound a mistake
	// in one answer would stop all processes for a day. After MaxPause requests go
	// out again, and the next answer renews the pause. A server with longer windows
	// that holds such requests against their sender, as GitHub does, wants a MaxPause
	// of its window: an hour. The first pause that is cut is logged.
	MaxPause time.Duration

	// Logger gets the errors that go to OnError, as warnings, one line a second at
	// most, with the name of the rule; nil means slog.Default(). No line has a key:
	// watch.Log has them if asked. That a client hung up is no error.
	Logger *slog.Logger

	// Observe is called with each decision and each error, before the request
	// goes on; nil observes nothing. It must be safe for concurrent use.
	Observe func(Event)
}

// A Limiter applies rules to requests. It is safe for concurrent use and can't
// be changed.
type Limiter struct {
	store   Store
	rules   []*rule
	limits  int // of all rules; those of LimitsFor don't count
	o       Options
	settles bool // a rule has Settle
	guards  bool // a rule has a Deny or a Penalty
	expose  []string
	log     errorLog

	waiting atomic.Int64
	cut     atomic.Bool // a pause has been, to MaxPause
	pool    sync.Pool   // of *inquiry
}

// New returns a Limiter, or an error that names what is wrong with its
// arguments. After that nothing can be misconfigured but what LimitsFor returns.
func New(store Store, o Options) (*Limiter, error) {
	if store == nil {
		return nil, errors.New("weir: the store is nil")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Limiter{store: store, o: o, log: errorLog{logger: o.Logger}}
	names := map[string]bool{}
	var units []string
	for i := range o.Rules {
		r, err := prepare(o.Rules[i])
		if err != nil {
			return nil, err
		}
		if names[r.Name] {
			return nil, fmt.Errorf("weir: two rules are named %q", r.Name)
		}
		names[r.Name] = true
		for _, p := range r.policies {
			p.limit.Period += o.Buffer
			if err := p.limit.fault(); err != nil {
				return nil, fmt.Errorf("weir: rule %q: limit %q with a buffer of %v: %w", r.Name, p.limit.Name, o.Buffer, err)
			}
			if p.name != r.Name && names[p.name] {
				return nil, fmt.Errorf("weir: header fields could not tell two limits apart: both are named %q", p.name)
			}
			names[p.name] = true
		}
		l.rules = append(l.rules, r)
		l.limits += len(r.policies)
		l.settles = l.settles || r.Settle != nil
		l.guards = l.guards || r.guards()
		units = append(units, r.Unit)
	}
	if o.ExposeHeaders {
		l.expose = []string{o.Headers.exposed(units)}
	}
	return l, nil
}

// complete validates options and gives those that are zero their defaults.
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

// Rules returns the rules as they are in force: every limit has its stored name.
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

// Middleware limits requests by one key, and any number of limits. It panics
// on a mistake in its arguments, as chi does.
//
//	r.Use(weir.Middleware(store, "api", weir.ByIP(), algorithms.GCRA(100, time.Minute)))
func Middleware(store Store, rule string, key KeyFunc, limits ...Limit) func(http.Handler) http.Handler {
	l, err := New(store, Options{Rules: []Rule{{Name: rule, Key: key, Limits: limits}}})
	if err != nil {
		panic(err)
	}
	return l.Handler
}

// Handler limits the requests to next. It does not wrap the ResponseWriter unless
// a rule has Settle, and then it forwards what the writer can: Flusher, Hijacker,
// io.ReaderFrom and http.ResponseController keep working.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
}

func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	free := !l.o.ChargePreflight && preflight(r)
	if free && !l.guards {
		next.ServeHTTP(w, r)
		return
	}
	v := l.newVerdict(r)
	v.free = free
	if err := l.decide(v, r, l.o.MaxWait, 0); err != nil {
		l.o.OnError(w, r, next, err) // the transaction is not released: an error promises nothing
		return
	}
	if !v.refused && v.Wait > 0 {
		if err := l.wait(v); err != nil {
			unserved(w, r, err)
			return
		}
	}
	if len(v.items) > 0 || v.refused {
		l.writeHeaders(w.Header(), v)
	}
	l.release(v)
	switch {
	case v.refused:
		l.refuse(w, r, v)
	case l.settles:
		l.serveAndSettle(w, r, v, next)
	case len(v.items) > 0:
		next.ServeHTTP(w, r.WithContext(v))
	default:
		next.ServeHTTP(w, r)
	}
}

// preflight reports whether a browser asks for permission, unasked by its user
// (Fetch standard, CORS-preflight request): that has no body and no credentials.
// A client certificate is of the connection and says nothing.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Header["Expect"]) == 0 && len(r.Header["Upgrade"]) == 0 &&
		len(r.Header["Authorization"]) == 0 && len(r.Header["Proxy-Authorization"]) == 0 && len(r.Header["Cookie"]) == 0
}

// failOpen is OnError unless another is given.
func failOpen(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	next.ServeHTTP(w, r)
}

// FailClosed is an OnError that refuses what could not be decided: it answers
// 503 with problem details of the type temporary-reduced-capacity.
func FailClosed(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	reducedCapacity.write(w, r)
}
