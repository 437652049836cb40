// Package weir provides rate limiting for HTTP servers and clients.
//
//	package main
//
//	import (
//		"fmt"
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		store := memstore.New(memstore.Options{})
//		limit := weir.Middleware(store, "search", weir.ByIP(), algorithms.GCRA(100, time.Minute))
//		http.Handle("GET /search", limit(http.HandlerFunc(search)))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
//	func search(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "found") }
//
// This server accepts 100 requests a minute from each client address. The header fields of each
// response tell the client how many requests it has left. A client that exceeds the limit receives
// status 429 with a Retry-After field.
//
// # Incoming requests
//
// [Middleware] applies one rule. [New] accepts several rules and other [Options], and returns an
// error instead of panicking. All rules are charged together, so a request refused by one rule
// spends nothing under the others. [Limiter.Handler] applies the rules as middleware. Handlers can
// call [FromContext] to find out how many requests are left. Servers that do not use http.Handler
// can call [Limiter.Admit].
//
// The [KeyFunc] of a [Rule] determines which requests share a quota. [ByIP], [ByHeader], [Global],
// [Join], [FirstOf] and others return a KeyFunc. A Rule's Policy and ForKey functions set different
// limits for particular requests or keys. Its Cost function returns the number of units that a
// request costs, and its Settle function adjusts the cost after the request has been served.
//
// # Stores
//
// Package memstore keeps counts in process memory. Package redisstore keeps counts in Redis, where
// all processes share them. In production, use package stack, which falls back to memory while
// Redis is down. If a store without such a fallback fails, Options.OnError decides what happens to
// requests. By default, requests are allowed during an outage.
//
// # Outgoing requests
//
// [Limiter.Transport] returns an http.RoundTripper that keeps outgoing requests within the limits
// and pauses when a server asks it to.
//
// # Vocabulary
//
//   - A rule limits requests that have the same key. The rule's name is part of every stored key.
//   - A key is the string under which a store counts units, such as a client address or an account
//     name.
//   - A policy decides whether a rule limits a request, allows it without a limit, or denies it.
//   - A penalty bans a key that is refused too often. A banned key is refused even if it has units
//     left.
//   - A rule in shadow mode is charged but never refuses a request.
//
// Package quota defines the terms limit, unit, charge, transaction and state. Package headers
// defines the term dialect.
package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/outbound"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// Options configure a Limiter. All fields except Rules may be zero.
type Options struct {
	// Rules are charged together: a request refused by one rule spends nothing under the others.
	Rules []Rule

	// Headers selects the rate-limit fields that responses contain; zero means headers.XRateLimit.
	// If the dialect includes headers.Exposed, scripts from other origins can read the fields.
	Headers headers.Dialect

	// OnLimited answers refused requests; nil means Refuse. The header fields are set before
	// OnLimited is called. FromContext returns the decision, whose Refusal contains the reason, the
	// limit that refused the request, and the status. If OnError returned an error, the Reason is
	// ReasonError. Admission.RefuseJSON sends a custom JSON body. If OnLimited sets no status, the
	// response has the Refusal's Status. If OnLimited sends a status from 200 to 299, clients
	// cannot tell that the request was refused, so the first such response is logged.
	OnLimited http.Handler

	// OnError decides what happens to a request whose limits could not be checked because the store
	// failed or a Policy returned an invalid limit. If OnError returns nil, the request is allowed
	// without a limit. If it returns an error, the request is refused; the text of the error is
	// never sent to clients. With a nil OnError, requests are allowed while the store is down (the
	// limits fail open). They are refused if err is ErrBusy, because clients could otherwise remove
	// their limits by flooding the store. They are also refused if err is ErrUnusable or concerns
	// an invalid limit, because such errors do not go away on their own. The OnError function
	// FailClosed refuses all requests.
	OnError func(r *http.Request, err error) error

	// MaxWait is the longest time that a request may wait for the limits to admit it; 0 means that
	// no request waits. A request that would have to wait longer is refused immediately. If a
	// waiting request's context ends, the units of the request are refunded. The status is then 503
	// if the context's deadline has passed, and otherwise 499, which appears only in logs because
	// the client has hung up. The processes that share a store also share the queue of each key. If
	// there are several rules, a request that waits under one of them also takes a place in the
	// queues of its keys under the other rules, and delays the requests behind it in those queues.
	// Put limits that many clients share in a separate Limiter.
	//
	// A request under a concurrency limit (algorithms.InFlight) waits in the queue of the limit and
	// key that refuse it. This queue belongs to the process. The request takes no place in other
	// queues: see quota.TakeInLine. The request spends and holds nothing until all limits admit it
	// at the same time. If this does not happen within MaxWait, the request is refused.
	MaxWait time.Duration

	// MaxWaiting is the maximum number of requests that wait at a time; 0 means 10,000. While a
	// request's call to the store is in progress, the request counts as waiting. When this number
	// is reached, a request that exceeds a limit is refused without waiting. Under a concurrency
	// limit whose key is not Global, at most a tenth of this number (but at least 10) may wait with
	// the same key.
	MaxWaiting int

	// Logger receives a warning with the rule's name and the Cause when the store fails or a limit
	// is invalid; nil means slog.Default(). At most one line a second is logged. ErrUnusable is
	// logged as an error. The message says what failed, for example "weir: units not refunded". If
	// OnError allowed the request, the message is "weir: request not decided" with passed=true.
	// These lines have a separate rate limit, so that other errors do not hide them. No line
	// contains a key; watch.Log can log keys. A client that hangs up is not an error.
	Logger *slog.Logger

	// Observe, if not nil, is called with each decision and each error, before the request is
	// served or answered. If no rule charges or refuses a request, the Event's Transaction has no
	// Charges. Observe must be safe for concurrent use.
	Observe func(Event)

	// If NoFromContext is true, the handler receives the original request, instead of a copy whose
	// context holds the decision. The Limiter then takes only two thirds of the time and usually
	// allocates nothing. However, FromContext returns nil in handlers, and the header fields of an
	// inner Limiter replace this Limiter's fields instead of adding to them. NoFromContext is
	// ignored inside another Limiter, and if a rule has a Settle function.
	NoFromContext bool
}

// New returns a Limiter, or an error that names the invalid argument and the reason. It validates all
// Limits, so only Policy and ForKey can later return an invalid limit. Create Limiters before the
// server starts, not in a handler. New logs a warning if ten Limiters are created for the same rule
// within a minute. It also logs a warning if another Limiter that uses the same store has a rule
// with the same name but different limits.
func New(store Store, o Options) (*Limiter, error) {
	if safe.Nil(store) {
		return nil, errors.New("weir: the store is nil")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Limiter{store: store, unpaid: unpaid(store), instant: isInstant(store), o: o}
	l.log.logger, l.passed.logger = o.Logger, o.Logger
	var err error
	if l.writer, err = newWriter(o.Headers, o.Rules); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range o.Rules {
		r, err := newRule(o.Rules[i], l.writer)
		if err == nil {
			err = r.checkNames(names)
		}
		if err != nil {
			return nil, err
		}
		l.add(r)
	}
	if s, ok := l.unpaid.(optional.Announcer); ok {
		for _, r := range l.rules {
			s.Announce(r.Name, r.Limits)
		}
	}
	l.checks = l.costs || o.MaxWait > 0
	l.checkWiring()
	return l, nil
}

// add adds a rule.
func (l *Limiter) add(r *rule) {
	r.limiter = l
	if r.penalty != nil {
		r.penalty.Store = l.unpaid
	}
	l.rules = append(l.rules, r)
	l.settles = l.settles || r.Settle != nil
	l.costs = l.costs || r.Cost != nil
	l.policies = l.policies || r.Policy != nil
	l.special = l.special || r.Private || r.PartitionKey != nil
	l.bans = l.bans || r.Penalty != nil
	l.concurrent = l.concurrent || r.Policy != nil || r.ForKey != nil || r.own.inFlight
}

// unpaid returns a store with the same counts that does not spend granted units: see
// optional.Payer.
func unpaid(store Store) Store {
	if s, ok := store.(optional.Payer); ok {
		return s.Unpaid()
	}
	return store
}

// isInstant reports whether s makes its decisions in memory: see optional.Instant.
func isInstant(s Store) bool {
	i, ok := s.(optional.Instant)
	return ok && safe.Equal(i.Instant(), s)
}

// checkNames adds the names of the rule and of its limits to the map names. It returns an error if
// the map already contains one of them.
func (r *rule) checkNames(names map[string]bool) error {
	if names[r.Name] {
		return fmt.Errorf("weir: two rules are named %q", r.Name)
	}
	names[r.Name] = true
	for i := range r.own.limits {
		name := r.own.limits[i].name
		if name != r.Name && names[name] {
			return fmt.Errorf("weir: header fields could not tell two limits apart: both are named %q", name)
		}
		names[name] = true
	}
	return nil
}

// complete validates the options and replaces zero values with defaults.
func (o *Options) complete() error {
	switch {
	case len(o.Rules) == 0:
		return errors.New("weir: Rules is empty")
	case o.MaxWait < 0:
		return fmt.Errorf("weir: MaxWait is %v; want at least 0", o.MaxWait)
	case o.MaxWaiting < 0:
		return fmt.Errorf("weir: MaxWaiting is %d; want at least 0", o.MaxWaiting)
	}
	if err := period.CheckUnit("weir: MaxWait", o.MaxWait); err != nil {
		return err
	}
	if o.MaxWaiting == 0 && o.MaxWait > 0 {
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
	for i, r := range l.rules {
		rules[i] = r.Rule
		rules[i].Limits = r.own.storedLimits()
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
// still supports http.Flusher, http.Hijacker, io.ReaderFrom and http.ResponseController. Methods of
// other servers, such as HTTPStream of quic-go, are found only through Unwrap, so libraries for
// WebTransport need rules without Settle. Handler panics if next is nil.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	l.checkNext(next)
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
	r, err := l.rule(rule)
	if err != nil {
		return Policy{}, err
	}
	return r.policyOf(key)
}

// A Limiter applies rules to requests. It is immutable and safe for concurrent use.
type Limiter struct {
	store  Store
	unpaid Store // the store for strikes, bans and shadow rules, for which granted units must not pay
	rules  []*rule
	o      Options
	writer *headers.Writer

	settles    bool // a rule has Settle
	bans       bool // a rule has a Penalty
	costs      bool // a rule has a Cost function
	policies   bool // a rule has a Policy function
	special    bool // a rule is Private or has a PartitionKey function
	checks     bool // check has something to check in each decision
	concurrent bool // a rule can have a concurrency limit
	instant    bool // the store makes its decisions in memory: see isInstant

	left    outbound.Remaining // the remaining units, other than requests, that servers have reported for keys
	waiting atomic.Int64       // how many requests count towards MaxWaiting
	lines   [256]atomic.Int64  // how many of the waiting requests have keys with the same hash: see lineOf
	pool    sync.Pool          // of *decision

	log    errorLog
	passed errorLog // logs requests that OnError allows; separate, so that other errors do not suppress these lines

	// These record which warnings were logged by checkNesting, ReportUsage, checkWriteTimeout,
	// answerRefusal, dropped and checkNext.
	nested, doubled, strayUnit, lateUnit, timed, likeServed, leaked, repeated, timedOut atomic.Bool
}

// serve handles a request: it obtains the decision, waits for the request's slot, and
// answers.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	body := r.Body
	d, end, err := l.admit(r)
	if end != nil {
		defer end() // even if PartitionKey or the handler panics
	}
	if outer := r; body != http.NoBody && !safe.Equal(r.Body, body) { // a rule has read from the body
		inner, ctx := recorder.Inner(outer)
		defer recorder.CarryBack(outer, inner, ctx)
		outer.Body = body           // see CarryBack
		r, d.request = inner, inner // Settle gets d.request, with what the handler has written into it
	}
	h := w.Header()
	fresh := len(h) == 0 // the response will have no other fields
	switch {
	case d.passed:
		l.passUncharged(w, r, next)
	case err == nil:
		l.writeHeaders(h, &d.snapshot, d.tx.At, false)
		if d.refused() {
			l.answerRefusal(w, r, d, fresh)
		} else {
			l.serveAdmitted(w, r, next, d, end)
		}
	default:
		answer.Ended(w, r, err)
	}
}

// admit obtains the decision on a request, waits for the request's slot, and calls begin, whose
// result it returns as end. If the request's context ends first, admit returns the context's error.
// If no decision is possible, OnError allows or refuses the request.
func (l *Limiter) admit(r *http.Request) (d *decision, end func(), ended error) {
	d = l.newDecision(r)
	switch ended = l.decide(d, l.o.MaxWait); {
	case d.err != nil:
		l.fail(d)
	case ended == nil && d.why.Reason == 0:
		end = l.begin(d)
	}
	d.carryBack(r)
	if l.checks || d.outer != nil {
		l.check(d, end)
	}
	return d, end, ended
}

// serveAdmitted calls the next handler for an admitted request.
func (l *Limiter) serveAdmitted(w http.ResponseWriter, r *http.Request, next http.Handler, d *decision, end func()) {
	settles := l.settlesAfter(d)
	switch {
	case !settles && len(d.claims) > 0 && (!l.o.NoFromContext || d.outer != nil):
		l.pass(w, r, next, d)
	case !settles:
		l.recycle(d)
		l.passUncharged(w, r, next)
	default:
		t := &ticket{end: end}
		t.prepare(l, d, l.o.OnError)
		l.recycle(d)
		t.serve(w, r, next)
	}
}

// pass calls a handler with a copy of the request whose context has a snapshot of the decision.
func (l *Limiter) pass(w http.ResponseWriter, r *http.Request, h http.Handler, d *decision) {
	// One allocation takes less time than two, or than four if there are several limits.
	var s *snapshot
	var inner *http.Request
	if n := len(d.decisions); n > 1 && n <= few {
		all := new(struct {
			snapshot  snapshot
			request   http.Request
			claims    [few]claim
			decisions [few]quota.Decision
		})
		s, inner = &all.snapshot, &all.request
		d.saveTo(s, all.claims[:0], all.decisions[:0:n])
	} else {
		all := new(struct {
			snapshot snapshot
			request  http.Request
			claim    [1]claim
			decision [1]quota.Decision
		})
		s, inner = &all.snapshot, &all.request
		d.saveTo(s, all.claim[:0], all.decision[:0])
	}
	*inner = *r.WithContext(s)
	l.recycle(d)
	defer recorder.CarryBack(r, inner, s) // even if the handler panics
	h.ServeHTTP(w, inner)
}

// A snapshot is the part of a decision that code outside the Limiter may read and keep, because it
// never changes. A snapshot is also the context of the handler's request, so that FromContext finds
// the snapshot.
type snapshot struct {
	context.Context
	claims    []claim
	decisions []quota.Decision // the decision under each limit of the claims
	at        int64            // the time of the decisions by the store's clock, in µs since 1970
	wait      time.Duration
	replicas  int32     // how many processes divided the limits: see quota.Result
	why       *refusal  // &noRefusal if the request is admitted
	ticket    *ticket   // nil unless the request will be settled
	front     *Limiter  // the outermost Limiter that has decided on the request; its dialect applies
	outer     *snapshot // the snapshot of the Limiter around this one; nil if there is none
}

// snapshotKey is the context key for the snapshot of the innermost Limiter.
var snapshotKey = new(snapshot)

func (s *snapshot) Value(key any) any {
	if key == snapshotKey {
		return s
	}
	return s.Context.Value(key)
}

// snapshotOf returns the snapshot of the innermost Limiter, or nil if there is none.
func snapshotOf(ctx context.Context) *snapshot {
	s, _ := ctx.Value(snapshotKey).(*snapshot)
	return s
}

// few is the number of limits for which arrays have room. Clearing larger arrays takes longer.
const few = 3

// saveTo makes s a snapshot of the decision. If d will be recycled, d.why must not point into d. The
// other arguments are memory for the snapshot's slices, which are empty.
func (d *decision) saveTo(s *snapshot, claims []claim, decisions []quota.Decision) {
	s.Context, s.at, s.wait, s.replicas = d.Context, d.at, d.tx.Wait, d.replicas
	s.why, s.front, s.outer = d.why, d.front, d.outer
	s.claims, s.decisions = append(claims, d.claims...), append(decisions, d.decisions...)
}

// recycle puts d into the pool for another request. After an error, d is not recycled, because the
// store may still use it.
func (l *Limiter) recycle(d *decision) {
	if d.err != nil {
		return
	}
	t := &d.tx
	if !l.instant { // a store that is not instant may have changed the charges
		for i := range d.claims {
			d.claims[i].policy = nil
		}
	}
	d.claims, d.decisions, d.at, d.replicas = d.claims[:0], d.decisions[:0], 0, 0
	if d.sender != nil || d.shadow != nil || d.calls != nil { // newDecision sets the other pointers
		d.sender, d.shadow, d.calls = nil, nil, nil
	}
	d.took, d.banBegan, d.slept = 0, false, 0
	t.Charges, t.Decisions, t.Undo = t.Charges[:0], t.Decisions[:0], t.Undo[:0]
	t.Within, t.Wait, t.At, t.Replicas = 0, 0, time.Time{}, 0 // a store may not set fields added later
	l.pool.Put(d)
}

// An Admission is a Limiter's decision on a request. Limiter.Admit and FromContext return it. Its
// methods may be called on a nil Admission, which FromContext returns if nothing was decided.
type Admission struct {
	// Transaction holds the request's charges and the Decisions on them. If the request was denied,
	// or if this process knew that the key was banned, Transaction has no Charges. If
	// Refusal.Reason is ReasonError, the Decisions are meaningless.
	quota.Transaction

	// Refusal describes why the request was refused. It is zero if the request was
	// admitted.
	Refusal Refusal

	l        *Limiter  // nil if FromContext has returned the Admission
	snapshot *snapshot // likewise
	ticket   *ticket   // nil unless Admit has returned the Admission and Done has something to do
}

// WriteHeaders sets the rate-limit header fields in the Limiter's Dialect. If the request was
// refused, it also sets Retry-After. It does nothing for an Admission returned by FromContext,
// because the fields are already set.
func (a *Admission) WriteHeaders(h http.Header) { a.write(h, false) }

// WriteMetadata is like WriteHeaders, but for gRPC metadata, whose names are in lower case.
func (a *Admission) WriteMetadata(md map[string][]string) { a.write(md, true) }

func (a *Admission) write(h http.Header, lower bool) {
	if a != nil && a.l != nil {
		a.l.writeHeaders(h, a.snapshot, a.At, lower)
	}
}

// Decision returns the decision under a rule; "" stands for all rules. If several limits apply, it
// is the decision of the tightest one: the limit with the longest wait or, if no limit refuses, the
// one with the fewest units left. If the request was not charged under the rule, or if the
// Admission is nil, Allowed is true and Remaining is -1. One line therefore suffices to read how
// many units are left:
//
//	left := weir.FromContext(r.Context()).Decision("account").Remaining
func (a *Admission) Decision(rule string) (tightest quota.Decision) {
	tightest = quota.Decision{Allowed: true, Remaining: -1}
	if a == nil {
		return tightest
	}
	found := false
	for i, d := range a.Decisions {
		if rule != "" && rule != a.Charges[i].Rule {
			continue
		}
		if !found || d.RetryAfter > tightest.RetryAfter || d.RetryAfter == tightest.RetryAfter && d.Remaining < tightest.Remaining {
			found, tightest = true, d
		}
	}
	return tightest
}

// Context returns a context that holds the decision, derived from the context of the request passed
// to Admit. FromContext, ReportUsage, Draw, Refuse and other Limiters find the decision in this
// context. For an Admission returned by FromContext, Context returns nil.
func (a *Admission) Context() context.Context {
	if a == nil || a.snapshot == nil {
		return nil
	}
	return a.snapshot
}

// Allowed reports whether the request was admitted and charged.
func (a *Admission) Allowed() bool {
	return a != nil && a.Refusal.Reason == 0 && a.Transaction.Allowed()
}

// RetryAfter returns how long to wait until the request could be admitted, assuming that no other
// request spends units in the meantime. It may be quota.Never.
func (a *Admission) RetryAfter() time.Duration {
	if a == nil {
		return 0
	}
	return max(a.Refusal.RetryAfter, a.Transaction.RetryAfter())
}

// A RefusedError is the error for a refused request. Limiter.Admit and the RoundTripper returned by
// Limiter.Transport return it. Use errors.As to find it in a chain of errors. With errors.As, you
// can also obtain a *quota.LimitedError with the same charges.
type RefusedError struct {
	Admission *Admission
}

func (e *RefusedError) Error() string {
	switch f := e.Admission.Refusal; f.Reason {
	case ReasonBan:
		return fmt.Sprintf("weir: rule %q has banned the key, retry after %v", f.Rule, e.RetryAfter())
	case ReasonDeny:
		return fmt.Sprintf("weir: rule %q denies the key", f.Rule)
	case ReasonNoKey:
		return fmt.Sprintf("weir: the request has no key for rule %q", f.Rule)
	case ReasonPause:
		return fmt.Sprintf("weir: rule %q has paused the key, retry after %v", f.Rule, e.RetryAfter())
	case ReasonError:
		return fmt.Sprintf("weir: rule %q could not decide", f.Rule)
	}
	return e.Unwrap().Error()
}

func (e *RefusedError) Unwrap() error {
	return &quota.LimitedError{Transaction: &e.Admission.Transaction}
}

// RetryAfter returns how long to wait until the request could be admitted, assuming that no other
// request spends units in the meantime. It may be quota.Never.
func (e *RefusedError) RetryAfter() time.Duration { return e.Admission.RetryAfter() }

// FromContext returns the decision on the request whose context is ctx, or nil if no Limiter has
// charged or refused the request. If several Limiters have charged or refused it, FromContext
// returns the innermost Limiter's decision. If Options.NoFromContext is set, FromContext returns
// nil. The Admission must not be modified. A handler can use it to do less work when few units
// remain. OnLimited can read its Refusal to find out why the request was refused.
func FromContext(ctx context.Context) *Admission {
	s := snapshotOf(ctx)
	if s == nil {
		return nil
	}
	a := &Admission{Refusal: s.why.Refusal}
	a.Wait, a.Replicas, a.Decisions = s.wait, int(s.replicas), s.decisions
	if s.at != 0 {
		a.At = time.UnixMicro(s.at)
	}
	for i := range s.claims {
		c := &s.claims[i]
		for j := range c.limits {
			a.Charges = append(a.Charges, c.charge(j))
		}
	}
	return a
}

// An Event describes one decision, or one failed attempt to make a decision.
type Event struct {
	Request *http.Request

	// Transaction holds the charges and the decisions on them. It is never nil and must not be
	// modified. It is reused after Observe returns, so copy what you keep. If Err is not nil, the
	// Decisions are meaningless. If the request was denied, or if this process knew that the key
	// was banned, the store was not called and the Transaction has no Charges.
	Transaction *quota.Transaction

	// Refusal describes why, by which rule, and for how long the request was refused. It is zero
	// if the request was not refused. If Shadow is true, Refusal describes why the request would
	// have been refused.
	Refusal Refusal

	// Key is the key that was refused, or "" if no key was refused. It may contain personal data.
	Key string

	// Err is the store's error or the error in a Policy, or nil if there was none. The method Cause
	// returns the class of the error.
	Err error

	// Passed reports whether the request was allowed, or sent by Transport, although no decision
	// was possible. It is false if Err is nil or Shadow is true.
	Passed bool

	// Took is the time that the call to the store took. It is 0 for a memstore.Store, because
	// reading the clock would take as long as the call itself.
	Took time.Duration

	// Shadow reports whether the rules in this Transaction are in shadow mode.
	Shadow bool

	// BanBegan reports whether this refusal is the strike that begins a ban.
	BanBegan bool
}

// Admit applies the rules to a request exactly as Handler does, and waits for up to MaxWait. The
// caller serves the request and then calls Done. Admit is for servers that do not use http.Handler,
// such as gRPC servers and workers. It can also limit parts of a request. For example, a separate
// Limiter can limit WebSocket messages, by the keys of the request that opened the connection.
//
// If the error is nil, the request was admitted by the rules, or no decision was possible and
// OnError allowed it. If the request was refused, the error is a *RefusedError, whose Admission
// contains the Refusal. Call the Admission's WriteHeaders method to set the header fields. If no
// decision was possible, the Refusal's Reason is ReasonError. If r's context ends while the request
// waits, Admit returns the context's error.
//
// A rule that reads the body, such as ByJSON, replaces r.Body. A handler of net/http must serve a
// copy of r, and set r.Body to its earlier value. Otherwise, net/http does not notice that the copy's
// body was closed early, and takes the rest of the body for further requests.
func (l *Limiter) Admit(r *http.Request) (*Admission, error) {
	d, end, err := l.admit(r)
	if err != nil {
		return nil, err
	}
	if d.refused() {
		return nil, l.refusedError(d)
	}
	if end == nil && !l.settles { // a ticket would have nothing to do
		return new(record).of(l, d), nil
	}
	m := new(struct { // one allocation
		ticket    ticket
		Admission Admission
		charge    [1]quota.Charge
	})
	m.Admission.Charges, m.Admission.ticket = m.charge[:0], &m.ticket
	m.ticket.prepare(l, d, l.o.OnError)
	m.Admission.describe(l, d, &m.ticket.snapshot)
	if m.ticket.end = end; !d.passed {
		m.ticket.watchDone()
	}
	l.recycle(d)
	return &m.Admission, nil
}

// refusedError returns the error for a refused request, and recycles the decision.
func (l *Limiter) refusedError(d *decision) *RefusedError {
	m := new(struct { // one allocation
		error   RefusedError
		record  record
		refusal refusal
	})
	m.refusal, d.why = d.refusal, &m.refusal
	m.error.Admission = m.record.of(l, d)
	return &m.error
}

// A record is the memory for most Admissions without a ticket.
type record struct {
	Admission Admission
	snapshot  snapshot
	claim     [1]claim
	decision  [1]quota.Decision
	charge    [1]quota.Charge
}

// of returns the Admission for the decision d, and recycles d.
func (m *record) of(l *Limiter, d *decision) *Admission {
	d.saveTo(&m.snapshot, m.claim[:0], m.decision[:0])
	m.Admission.Charges = m.charge[:0]
	m.Admission.describe(l, d, &m.snapshot)
	l.recycle(d)
	return &m.Admission
}

// describe makes a describe the decision d, of which s is a snapshot.
func (a *Admission) describe(l *Limiter, d *decision, s *snapshot) {
	a.l, a.snapshot = l, s
	a.Refusal = s.why.Refusal // in a separate statement, because the one above would copy it to the stack first
	a.Charges, a.Decisions = append(a.Charges, d.tx.Charges[:len(d.decisions)]...), s.decisions
	a.At, a.Wait, a.Replicas = d.tx.At, d.tx.Wait, int(d.replicas)
	a.Within, a.Undo = d.tx.Within, slices.Clone(d.tx.Undo) // quota.Refund needs them
}

// answerRefusal calls OnLimited for a refused request, or writes a problem. If the response has no
// header fields yet, except those about limits, fresh is true.
func (l *Limiter) answerRefusal(w http.ResponseWriter, r *http.Request, d *decision, fresh bool) {
	if l.o.OnLimited == nil {
		problem, violated := d.problem()
		l.recycle(d)
		problem.Write(w, r, fresh, violated...)
		return
	}
	why := d.refusal
	rule, rec := why.Rule, &recorder.Recorder{ResponseWriter: w, Default: why.Status}
	d.why = &why
	l.pass(rec.Writer(), r, l.o.OnLimited, d)
	rec.Begin()
	if rec.Status/100 == 2 && !rec.Deliberate && !answer.IsRPC(w.Header()) && !l.likeServed.Swap(true) {
		loggerOr(l.o.Logger).WarnContext(r.Context(), "weir: refused request answered like a served one",
			"rule", rule, "status", rec.Status, "effect", "clients and caches take the response for a success",
			"fix", "unless that is intended, leave out the status, or write FromContext(r.Context()).Refusal.Status")
	}
}
