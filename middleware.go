package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Rule says whom to limit, and by how much.
type Rule struct {
	// Name tells rules apart, in stored keys and in header fields:
	// "auth.createToken". It is printable ASCII.
	Name string

	// Key says whose limit a request counts against, or that the rule does not
	// apply.
	Key KeyFunc

	// Limits are several windows of one key: 20 per minute and 5 per 3 seconds.
	// Those without a name get one from their period ("1m", "3s"), unless there
	// is one limit only. What was spent is kept under that name: give a limit
	// one of its own if its period may change.
	Limits []Limit

	// LimitsFor chooses limits for a request, such as those of a tier that a
	// database knows; nil means Limits. If it returns none the rule does not
	// apply: a tier that a map lacks is not limited. A limit that is invalid is
	// an error of this request: see OnError.
	LimitsFor func(r *http.Request) []Limit

	// Cost is how many units a request costs; nil means 1. 0 looks and spends
	// nothing. A negative cost is refused, as one that never fits: a
	// ContentLength of −1 gives nobody units back.
	Cost func(r *http.Request) int64

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
	// free of charge: a browser sends them unasked.
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
	// gives its turn back. There is one line for each key, in all processes that
	// share the store. Where rules of several keys are charged together, who
	// waits for one keeps his place in the others, and those behind him wait too:
	// limit what is shared in a Limiter of its own.
	MaxWait time.Duration

	// MaxWaiting bounds how many requests wait at a time; 0 means 10,000. Beyond
	// it nobody waits: what does not fit is refused.
	MaxWaiting int

	// Buffer is for Transport: by how much requests may arrive later than they
	// left. Periods are longer by it, so that the receiver sees no window over
	// the limit as long as delays differ by less.
	Buffer time.Duration

	// Logger gets the errors that go to OnError, as warnings, one line a second at
	// most; nil means slog.Default(). That a client hung up is no error of the
	// store and not logged.
	Logger *slog.Logger

	// Observe is called with each decision and each error, before the request
	// goes on; nil observes nothing. It must be safe for concurrent use.
	Observe func(Event)
}

// An Event is one decision, or the failure to make one.
type Event struct {
	Request *http.Request

	// Transaction is what was decided. It must not be changed. After an error
	// its Decisions mean nothing.
	Transaction *Transaction

	// Err is the error of the store, or nil.
	Err error
}

// A Limiter applies rules to requests. It is safe for concurrent use and can't
// be changed.
type Limiter struct {
	store  Store
	rules  []rule
	limits int // of all rules; those of LimitsFor don't count
	o      Options
	expose []string
	log    errorLog

	waiting atomic.Int64
}

// A rule is a Rule with all that can be prepared.
type rule struct {
	Rule
	policies []policy // nil if LimitsFor decides
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
	}{{"MaxWait", int64(o.MaxWait)}, {"MaxWaiting", int64(o.MaxWaiting)}, {"Buffer", int64(o.Buffer)}} {
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
		units = append(units, r.Unit)
	}
	if o.Expose {
		l.expose = []string{o.Headers.fields(units)}
	}
	return l, nil
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
		return rule{}, fmt.Errorf("weir: rule %q: a header field can carry printable ASCII only", r.Name)
	case r.Key == nil:
		return rule{}, fmt.Errorf("weir: rule %q has no key", r.Name)
	case len(r.Limits) == 0 && r.LimitsFor == nil:
		return rule{}, fmt.Errorf("weir: rule %q has no limits", r.Name)
	case len(r.Limits) > 0 && r.LimitsFor != nil:
		return rule{}, fmt.Errorf("weir: rule %q has both Limits and LimitsFor: choose one", r.Name)
	}
	if r.Unit == "" {
		r.Unit = requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return rule{}, fmt.Errorf("weir: rule %q: unit %q is not of lower-case letters, digits and hyphens", r.Name, r.Unit)
	}
	policies, err := policiesOf(&r, r.Limits)
	return rule{r, policies}, err
}

// policiesOf prepares limits of a rule: names them, validates them, and builds
// their fields.
func policiesOf(r *Rule, limits []Limit) ([]policy, error) {
	var policies []policy
	for _, l := range limits {
		if l.Name == "" && len(limits) > 1 {
			l.Name = periodName(l.Period)
		}
		if err := l.fault(); err != nil {
			return nil, fmt.Errorf("weir: rule %q: limit %q: %w", r.Name, l.Name, err)
		}
		if !printable(l.Name) {
			return nil, fmt.Errorf("weir: rule %q: limit %q: a header field can carry printable ASCII only", r.Name, l.Name)
		}
		for _, p := range policies {
			if p.limit.Name == l.Name {
				return nil, fmt.Errorf("weir: rule %q has two limits named %q", r.Name, l.Name)
			}
		}
		policies = append(policies, newPolicy(r.Name, r.Unit, len(limits) == 1, l))
	}
	return policies, nil
}

// printable reports whether a String of a structured field can hold s
// (RFC 9651, 3.3.3).
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// periodName returns a short name of a period: 1m, 3s, 1d, 1500ms.
func periodName(d time.Duration) string {
	for _, u := range []struct {
		d    time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d%u.d == 0 {
			return strconv.FormatInt(int64(d/u.d), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d/time.Microsecond), 10) + "us"
}

// Handler limits the requests to next. It does not wrap the ResponseWriter, so
// that whatever that can do it still can.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serve(w, r, next) })
}

func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !l.o.ChargePreflight && preflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	v := l.newVerdict(r)
	err := l.charge(v, r)
	if err == nil {
		if len(v.Charges) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		v.Within = l.within(v.Context)
		err = l.store.Take(v.Context, &v.Transaction)
	}
	if l.o.Observe != nil {
		l.o.Observe(Event{Request: r, Transaction: &v.Transaction, Err: err})
	}
	if err != nil {
		if r.Context().Err() == nil {
			l.log.warn(r.Context(), err)
		}
		l.o.OnError(w, r, next, err)
		return
	}
	allowed := v.Allowed()
	l.tell(w.Header(), v, allowed)
	if !allowed {
		if l.o.OnLimited == nil {
			v.refuse(w, r)
			return
		}
		l.o.OnLimited.ServeHTTP(w, r.WithContext(v))
		return
	}
	if v.Wait > 0 && l.wait(v.Context, &v.Transaction) != nil {
		return // nobody is there to be answered
	}
	next.ServeHTTP(w, r.WithContext(v))
}

// within is how long a request may wait, now that others do.
func (l *Limiter) within(ctx context.Context) time.Duration {
	if l.o.MaxWait == 0 || l.waiting.Load() >= int64(l.o.MaxWaiting) {
		return 0
	}
	return atMost(ctx, l.o.MaxWait)
}

// wait returns when the turn of t has come, or gives it back when ctx ends.
func (l *Limiter) wait(ctx context.Context, t *Transaction) error {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	r := Reservation{store: l.store, t: *t, turn: time.Now().Add(t.Wait)}
	return r.Wait(ctx)
}

// charge asks every rule what the request owes.
func (l *Limiter) charge(v *verdict, r *http.Request) error {
	for i := range l.rules {
		rule := &l.rules[i]
		key, ok := rule.Key(r)
		if !ok {
			continue
		}
		policies := rule.policies
		if rule.LimitsFor != nil {
			var err error
			if policies, err = policiesOf(&rule.Rule, rule.LimitsFor(r)); err != nil {
				return err
			}
		}
		cost := int64(1)
		if rule.Cost != nil {
			if cost = rule.Cost(r); cost < 0 {
				cost = math.MaxInt64
			}
		}
		for j := range policies {
			v.Charges = append(v.Charges, Charge{Rule: rule.Name, Key: key, Limit: policies[j].limit, Cost: cost})
			v.items = append(v.items, item{policy: &policies[j]})
		}
	}
	return nil
}

// tell writes what was decided into the response fields, along with what outer
// limiters decided on the same request.
func (l *Limiter) tell(h http.Header, v *verdict, allowed bool) {
	for i := range v.items {
		v.items[i].Decision = &v.Decisions[i]
	}
	f := fieldWriter{h: h, values: v.values[:0], buf: v.buf[:0]}
	items := v.items
	for o := v.outer; o != nil; o = o.outer {
		items = slices.Concat(items, o.items)
	}
	f.write(l.o.Headers, items, v.At, !allowed)
	if !allowed {
		f.writeRetryAfter(l.o.Headers, v.RetryAfter())
	}
	if l.expose != nil {
		h[exposeField] = append(h[exposeField], l.expose...)
	}
}

// A verdict is what a Limiter decided about a request. It is the context of the
// handlers after it, and one piece of memory with what most of them need.
type verdict struct {
	context.Context
	Transaction
	items []item
	outer *verdict

	values [3]string
	buf    [32]byte
}

type verdictKey struct{}

// newVerdict returns a verdict with room for the limits of the Limiter.
func (l *Limiter) newVerdict(r *http.Request) (v *verdict) {
	switch {
	case l.limits <= 1:
		m := new(struct {
			verdict
			charges   [1]Charge
			decisions [1]Decision
			next      [1]State
			items     [1]item
		})
		v = &m.verdict
		v.Charges, v.Decisions, v.next, v.items = m.charges[:0], m.decisions[:0], m.next[:0], m.items[:0]
	case l.limits <= 4:
		m := new(struct {
			verdict
			charges   [4]Charge
			decisions [4]Decision
			next      [4]State
			items     [4]item
		})
		v = &m.verdict
		v.Charges, v.Decisions, v.next, v.items = m.charges[:0], m.decisions[:0], m.next[:0], m.items[:0]
	default:
		v = &verdict{items: make([]item, 0, l.limits)}
		v.Charges = make([]Charge, 0, l.limits)
	}
	v.Context = r.Context()
	v.outer, _ = v.Context.Value(verdictKey{}).(*verdict)
	return v
}

func (v *verdict) Value(key any) any {
	if key == (verdictKey{}) {
		return v
	}
	return v.Context.Value(key)
}

// FromContext returns what the innermost Limiter decided about the request of
// that context, or nil if none did. It must not be changed. A handler behind
// the limiter may serve less when little Remaining is left; OnLimited may serve
// something cheaper than an error.
func FromContext(ctx context.Context) *Transaction {
	if v, ok := ctx.Value(verdictKey{}).(*verdict); ok {
		return &v.Transaction
	}
	return nil
}

// preflight reports whether a browser asks for permission, unasked by its user
// (Fetch standard, CORS-preflight request).
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// Refuse is OnLimited unless another is given: it answers 429 with problem
// details of the type quota-exceeded, text or HTML, as the client prefers.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if v, ok := r.Context().Value(verdictKey{}).(*verdict); ok {
		v.refuse(w, r)
		return
	}
	quotaExceeded.write(w, r)
}

// refuse names the limits that refused: mostly it is one, and its answer ready.
func (v *verdict) refuse(w http.ResponseWriter, r *http.Request) {
	var one *policy
	n := 0
	for i := range v.items {
		if !v.Decisions[i].Allowed {
			one = v.items[i].policy
			n++
		}
	}
	if n == 1 {
		one.refusal.write(w, r)
		return
	}
	var names [][]byte
	for i := range v.items {
		if !v.Decisions[i].Allowed {
			names = append(names, v.items[i].json)
		}
	}
	p := quotaExceeded.violating(names...)
	p.write(w, r)
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
