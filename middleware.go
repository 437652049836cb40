package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Rule says whom to limit, and by how much.
type Rule struct {
	// Name tells rules apart, in stored keys and in header fields:
	// "auth.createToken". It is printable ASCII.
	Name string

	// Key says whose limit a request counts against, or that the rule does not
	// apply. The client may be gone already: what that ends must not be what says
	// that the rule does not apply.
	Key KeyFunc

	// Limits are several windows of one key: 20 per minute and 5 per 3 seconds.
	// The period names a limit that has no name: "1m", "3s". What was spent is
	// kept under that name, also if it is the only limit: give a limit a name of
	// its own if its period may change. Header fields show an only limit that
	// has no name under the name of the rule.
	Limits []Limit

	// LimitsFor chooses limits for a request, such as those of a tier that a
	// database knows; nil means Limits. If it returns none the rule does not
	// apply: a tier that a map lacks is not limited. A limit that is invalid is
	// an error of this request: see OnError. The context of r does not end when
	// the client hangs up, or a lookup that fails for it would let the client
	// pass: bound its time.
	LimitsFor func(r *http.Request) []Limit

	// Cost is how many units a request costs; nil means 1. 0 looks and spends
	// nothing. A negative cost is refused, as one that never fits: a
	// ContentLength of −1 gives nobody units back.
	Cost func(r *http.Request) int64

	// Settle says what a request cost after all, when the handler has returned:
	// until then Cost is reserved. Nil means Cost. See Outcome.
	Settle func(o Outcome) int64

	// Shadow is the share of keys, from 0 to 1, for which the rule is charged and
	// observed as ever but refuses nobody, delays nobody and tells nobody: 1 tries
	// a rule out, 0.75 enforces it for a quarter of the keys. Which keys those are
	// is the same in every process, and a key that is enforced stays so as Shadow
	// falls. A rule in shadow is charged when the others have let the request
	// pass, by a call of its own. What MaxWait would delay is observed with its
	// Wait, for as long as MaxWaiting leaves a place; it takes none.
	Shadow float64

	// Allow names keys that the rule does not apply to, Deny those that are
	// refused, without asking the store. Allow comes first. Nil is nobody; List
	// has both. The key is what Key returns, all of it.
	Allow, Deny func(key string) bool

	// AllowFrom and DenyFrom do the same by the request, such as the address that it
	// comes from, whatever the key is; AddrList has both. What DenyFrom reports is
	// refused also if the rule has no key for it: a client must not escape by leaving
	// its key out.
	AllowFrom, DenyFrom func(r *http.Request) bool

	// Penalty bans keys that are refused again and again; nil bans nobody.
	Penalty *Penalty

	// Unit is what Cost counts, for the dialects that say so: "tokens",
	// "content-bytes". The zero Unit means "requests".
	Unit string
}

const requests = "requests"

// Options of New. All but Rules may be zero.
type Options struct {
	// Rules are charged together, all or nothing: what one refuses spends
	// nothing of another.
	Rules []Rule

	// Headers is how clients are told; zero means XRateLimit.
	Headers Dialect

	// Expose sends Access-Control-Expose-Headers with the names of these
	// fields, so that scripts from another origin may read them.
	Expose bool

	// ChargePreflight charges CORS preflight requests too. By default they pass
	// free of charge, because a browser sends them unasked, and only as a browser
	// sends them: OPTIONS with Origin and Access-Control-Request-Method, without a
	// body, Authorization, Proxy-Authorization or Cookie. Deny and bans refuse them
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

// An Event is one decision, or the failure to make one.
type Event struct {
	Request *http.Request

	// Transaction is what was decided, and never nil. It must not be changed.
	// After an error its Decisions mean nothing. It has no Charges if the store was
	// not asked: after a deny, and after a ban that the process knows of.
	Transaction *Transaction

	// Refusal is that of the Transaction: why the request was refused, by which
	// rule, and until when. Its zero value: the request was not refused. That of an
	// event in Shadow says why it would have been.
	Refusal Refusal

	// Key is the key that the Refusal is about, "" without one. It may be personal
	// data.
	Key string

	// Err is the error of the store or of LimitsFor, or nil.
	Err error

	// Took is how long the store took.
	Took time.Duration

	// Shadow says that the rules of this transaction refuse nobody.
	Shadow bool
}

// Observers returns an Observe that calls each of fs.
func Observers(fs ...func(Event)) func(Event) {
	return func(e Event) {
		for _, f := range fs {
			f(e)
		}
	}
}

// A Limiter applies rules to requests. It is safe for concurrent use and can't
// be changed.
type Limiter struct {
	store   Store
	rules   []rule
	limits  int // of all rules; those of LimitsFor don't count
	o       Options
	settles bool // a rule has Settle
	bans    bool // a rule has a Penalty
	guards  bool // or a Deny
	expose  []string
	log     errorLog

	waiting atomic.Int64
	cut     atomic.Bool // a pause has been, to MaxPause
	spare   sync.Pool   // of *Transaction
}

// A rule is a Rule with all that can be prepared.
type rule struct {
	Rule
	policies []policy // nil if LimitsFor decides
	bans     *bans    // nil without a Penalty
}

// New returns a Limiter, or an error that names what is wrong with its
// arguments. After that nothing can be misconfigured but what LimitsFor returns.
func New(store Store, o Options) (*Limiter, error) {
	if store == nil {
		return nil, errors.New("weir: the store is nil")
	}
	if len(o.Rules) == 0 {
		return nil, errors.New("weir: there are no rules")
	}
	if o.Headers == 0 {
		o.Headers = XRateLimit
	}
	if err := o.Headers.validate(); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		name string
		n    int64
	}{{"MaxWait", int64(o.MaxWait)}, {"MaxWaiting", int64(o.MaxWaiting)}, {"Buffer", int64(o.Buffer)}, {"MaxPause", int64(o.MaxPause)}} {
		if d.n < 0 {
			return nil, fmt.Errorf("weir: %s is below 0", d.name)
		}
	}
	if o.Buffer%time.Microsecond != 0 {
		return nil, fmt.Errorf("weir: Buffer %v is not in whole microseconds", o.Buffer)
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
		l.bans = l.bans || r.bans != nil
		l.guards = l.guards || r.guards()
		units = append(units, r.Unit)
	}
	if o.Expose {
		l.expose = []string{o.Headers.fields(units)}
	}
	return l, nil
}

// Rules returns the rules as they are in force: every limit has its stored name.
func (l *Limiter) Rules() []Rule {
	rules := make([]Rule, len(l.rules))
	for i := range l.rules {
		r := &l.rules[i]
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

func prepare(r Rule) (rule, error) {
	switch {
	case r.Name == "":
		return rule{}, errors.New("weir: a rule has no name")
	case !printable(r.Name):
		return rule{}, fmt.Errorf("weir: rule %q: %w", r.Name, errNotPrintable)
	case r.Key == nil:
		return rule{}, fmt.Errorf("weir: rule %q has no key", r.Name)
	case len(r.Limits) == 0 && r.LimitsFor == nil:
		return rule{}, fmt.Errorf("weir: rule %q has no limits", r.Name)
	case len(r.Limits) > 0 && r.LimitsFor != nil:
		return rule{}, fmt.Errorf("weir: rule %q has both Limits and LimitsFor: choose one", r.Name)
	case !(r.Shadow >= 0 && r.Shadow <= 1):
		return rule{}, fmt.Errorf("weir: rule %q: Shadow %v is not from 0 to 1", r.Name, r.Shadow)
	}
	if r.Unit == "" {
		r.Unit = requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return rule{}, fmt.Errorf("weir: rule %q: unit %q is not of lower-case letters, digits and hyphens", r.Name, r.Unit)
	}
	policies, err := policiesOf(&r, r.Limits)
	if err != nil {
		return rule{}, err
	}
	bans, err := newBans(&r)
	return rule{r, policies, bans}, err
}

// policiesOf prepares limits of a rule: names them, validates them, and builds
// their fields.
func policiesOf(r *Rule, limits []Limit) ([]policy, error) {
	var policies []policy
	for _, l := range limits {
		rules := l.Name == "" && len(limits) == 1 // fields show it under the rule's name
		l.Name = l.StoredName()
		if err := l.fault(); err != nil {
			return nil, fmt.Errorf("weir: rule %q: limit %q: %w", r.Name, l.Name, err)
		}
		for _, p := range policies {
			if p.limit.Name == l.Name {
				return nil, fmt.Errorf("weir: rule %q has two limits named %q", r.Name, l.Name)
			}
		}
		p := newPolicy(r.Name, r.Unit, rules, l)
		p.settle = r.Settle
		policies = append(policies, p)
	}
	return policies, nil
}

// printable reports whether a String of a structured field can hold s
// (RFC 9651, 3.3.3).
//
// Stores ask for every name of every charge, so it looks at eight bytes at a time.
func printable(s string) bool {
	n := len(s)
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			if !printable8(eight(s[i:])) {
				return false
			}
		}
		return printable8(eight(s[n-8:]))
	case n >= 4:
		return printable8(uint64(four(s)) | uint64(four(s[n-4:]))<<32)
	case n > 0:
		const spaces = 0x2020202020000000
		return printable8(spaces | uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16)
	}
	return true
}

// printable8 reports whether all bytes of w are. The lowest that is not sets its
// highest bit in one of three: it is set already, or when 1 is added to 0x7f, or
// when 0x20 is subtracted from less.
func printable8(w uint64) bool {
	const each = 0x0101010101010101
	return (w|(w+each)|(w-' '*each))&(0x80*each) == 0
}

func four(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

var errNotPrintable = errors.New("a header field can carry printable ASCII only")

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
		l.tell(w.Header(), v)
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

// enter returns how long a request may wait: at most maxWait, and next to nothing if
// MaxWaiting others wait or ask whether they must. If it may wait it is one of them from
// now on, until it leaves: places that were taken after the store was asked would
// bound nothing.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
	if maxWait <= 0 {
		return 0
	}
	within := atMost(v.Context, maxWait)
	if within > 0 && l.waiting.Add(1) > int64(l.o.MaxWaiting) {
		l.waiting.Add(-1)
		within = 0
	}
	if within == 0 {
		return noPlace
	}
	v.entered = true
	return within
}

// noPlace is the Within of a request that can't wait although others do. It is not 0,
// which would turn the queue of a LeakyBucket into a meter.
const noPlace = time.Microsecond

func (l *Limiter) leave(v *verdict) {
	if v.entered {
		v.entered = false
		l.waiting.Add(-1)
	}
}

// wait returns when the turn of v has come, or gives it back when the context of
// the request ends.
func (l *Limiter) wait(v *verdict) error {
	defer l.leave(v)
	r := Reservation{store: l.store, t: *v.Transaction, turn: time.Now().Add(v.Wait)}
	return r.Wait(v.Context)
}

// clientClosedRequest is what nginx logs where a client hung up before it was
// answered.
const clientClosedRequest = 499

// unserved answers a request that was not served because its context ended with
// err. The client may be gone, but a log must not read as if it was served, and a
// cache must keep nothing.
func unserved(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		reducedCapacity.write(w, r)
		return
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	delete(h, "Content-Length") // there is no body
	delete(h, "Content-Encoding")
	w.WriteHeader(clientClosedRequest)
}

// FromContext returns what the innermost Limiter decided about the request of
// that context, or nil if none did. It must not be changed. A handler behind
// the limiter may serve less when little Remaining is left; OnLimited may serve
// something cheaper than an error, and tell from its Refusal why. The Transaction
// of a deny, or of a ban that the process knows of, has no Charges.
func FromContext(ctx context.Context) *Transaction {
	if v, ok := ctx.Value(verdictKey{}).(*verdict); ok {
		return v.transaction()
	}
	return nil
}

// preflight reports whether a browser asks for permission, unasked by its user
// (Fetch standard, CORS-preflight request): that has no body and no credentials.
// A client certificate is of the connection and says nothing.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
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
