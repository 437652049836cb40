package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/outbound"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// TransportOptions configure Limiter.Transport. All fields may be zero.
type TransportOptions struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// OnError is like Options.OnError and has the same default. If MaxWait is set, OnError is
	// called only if the store keeps failing until MaxWait has elapsed. If OnError returns an
	// error, the request is not sent, and RoundTrip returns an error that wraps it.
	OnError func(r *http.Request, err error) error

	// MaxPause is the maximum time for which a response may pause a key; 0 means one minute.
	// Without this bound, one faulty response could stop all processes for a day. After MaxPause,
	// requests are sent again, and a response can begin another pause. If the server has a long
	// window and punishes requests that it receives too early, as GitHub does, set MaxPause to the
	// length of the window. A warning is logged when MaxPause first shortens a pause, and when it
	// first shortens the time until remaining units are reset.
	MaxPause time.Duration

	// RetryBudget is the maximum number of retries after a 429, as a share of all requests sent,
	// from 0 to 1. Ten more retries are allowed initially. When the budget is used up, RoundTrip
	// returns the 429. 0 means no maximum. Each retry is charged again, so the rules still limit
	// the total number of requests, but retries can displace new requests. Each Transport has its
	// own budget.
	RetryBudget float64
}

// complete validates the options and replaces zero values with defaults.
func (o *TransportOptions) complete() error {
	switch {
	case o.MaxPause < 0:
		return fmt.Errorf("weir: MaxPause is %v; want at least 0", o.MaxPause)
	case !(o.RetryBudget >= 0 && o.RetryBudget <= 1):
		return fmt.Errorf("weir: RetryBudget is %v; want 0 to 1", o.RetryBudget)
	}
	if err := period.CheckUnit("weir: MaxPause", o.MaxPause); err != nil {
		return err
	}
	o.Base, o.MaxPause = cmp.Or(o.Base, http.DefaultTransport), cmp.Or(o.MaxPause, time.Minute)
	if o.OnError == nil {
		o.OnError = failOpen
	}
	return nil
}

// Transport returns a RoundTripper that applies the Limiter's rules to requests, and sends admitted
// requests through o.Base. It returns an error if an option is invalid or makes a limit invalid. A
// request that exceeds a limit waits for up to MaxWait. If it would have to wait longer, RoundTrip
// returns a *RefusedError, which errors.As finds in the error from http.Client. If the request's
// context ends during the wait, its units are refunded.
//
// The request's keys are paused if the response has Retry-After and the status 403, 429 or above
// 499, or if its header fields, in any Dialect, report that no units remain. The pause lasts as
// long as the response states, but at most MaxPause. The store keeps the pause, so it applies to
// all processes that share the store. New requests get slots after the end of the pause. If a key
// is paused while a request with that key is waiting, the request gets a later slot before it is
// sent. Unpause ends a pause early. After a pause, a limit such as SlidingLog admits its whole
// quota at once.
//
// A rule with a Settle function charges a request's final cost when the response body is closed, or
// when the request fails without a response. If the body is never closed, the reserved units remain
// charged, and the units in flight are held until the body is garbage-collected, which is logged
// once. A response with status 429 counts as a reported usage of 0, so ChargeUsed refunds the
// reserved units.
//
// Response header fields may also report how many units of another kind, such as tokens, remain.
// Until these units are reset (but for no longer than MaxPause), a request that costs more than the
// remaining units waits or is refused. Observe receives the refusal only if the request is not
// sent. Other processes are not affected. Each request that is sent reduces the remaining units by
// its cost.
//
// Use a key that distinguishes hosts, such as ByHeader("Host"). If several hosts share a key, as
// with Global, a pause requested by one host stops the requests to all of them.
//
// After a 429, the request is sent and charged again when the pause is over. This happens only if
// the pause is no longer than MaxPause and ends before MaxWait has elapsed, and if the request has
// a GetBody function or no body. It does not happen to a request that must leave headroom (see
// Rule.Class).
//
// If the server counts requests in windows, use SlidingLog, which stays within the limit wherever
// the windows begin. Because some requests take longer than others to reach the server, also set
// Rule.Buffer to the largest difference.
//
// For every request, Transport checks whether the keys are paused. A lease.Store cannot check this
// in memory, so it calls the underlying store for every request.
//
// If MaxWait is set, a request also waits while the store is busy or down. Until MaxWait has
// elapsed, RoundTrip retries the call to the store, at first after 100 ms and later every 2 s. If
// the store still fails, OnError decides what happens to the request. If the store's response is
// lost, the request may be charged twice. Every store error is logged and passed to the Limiter's
// Observe function. Transport ignores the Limiter's OnError and any of the Limiter's options that
// affect responses, such as Headers.
func (l *Limiter) Transport(o TransportOptions) (http.RoundTripper, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if base, ok := o.Base.(*transport); ok && base.l == l {
		return nil, errors.New("weir: Transport: Base is a Transport of the same Limiter, which would charge each request twice")
	}
	return &transport{l: l, o: o, retries: outbound.NewBudget(o.RetryBudget)}, nil
}

type transport struct {
	l *Limiter
	o TransportOptions

	cut, cutReset atomic.Bool // a warning was logged that MaxPause shortened a pause, or the time until units are reset
	retries       *outbound.Budget
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	giveUp := time.Now().Add(t.l.o.MaxWait)
	for retry := false; ; retry = true {
		d, err := t.admit(r, giveUp)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		if !retry {
			t.retries.Request()
		}
		k := new(ticket)
		k.prepare(t.l, d, t.o.OnError)
		res, err := t.send(r, d, k)
		if err != nil || res == nil || len(k.claims) == 0 {
			return res, err
		}
		if r = t.afterResponse(r, res, &k.snapshot, giveUp); r == nil {
			return res, nil
		}
	}
}

// afterResponse pauses the keys of s if the response asks for a pause. If the request is to be sent
// a second time, afterResponse closes the response and returns the next request. Otherwise, next is
// nil.
func (t *transport) afterResponse(r *http.Request, res *http.Response, s *snapshot, giveUp time.Time) (next *http.Request) {
	done := false
	defer func() { // if GetBody or the Logger panics, the body must be closed here
		if !done && res.Body != nil {
			res.Body.Close()
		}
	}()
	if pause := t.pauseOf(s, res); pause > 0 {
		t.pause(s, pause)
		waits := !s.leavesHeadroom() && pause <= t.o.MaxPause && pause <= time.Until(giveUp)
		if res.StatusCode == http.StatusTooManyRequests && waits {
			next = t.retry(r, res)
		}
	}
	done = true
	return next
}

// CloseIdleConnections closes the idle connections of Base. http.Client.CloseIdleConnections calls it.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.o.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// retry closes a response with status 429, and returns the request to send next. If the request
// cannot be sent again, or if RetryBudget is used up, retry returns nil.
func (t *transport) retry(r *http.Request, res *http.Response) *http.Request {
	next, ok := outbound.Rewound(r)
	if !ok {
		return nil
	}
	if t.o.RetryBudget > 0 && !t.retries.Retry() {
		if next.Body != nil {
			next.Body.Close()
		}
		return nil
	}
	if res.Body != nil {
		res.Body.Close()
	}
	return next
}

// send sends the request, which is over when the body of the response is closed.
func (t *transport) send(r *http.Request, d *decision, k *ticket) (res *http.Response, err error) {
	if d.err == nil {
		k.end = t.l.begin(d)
		t.l.check(d, k.end)
	}
	t.l.recycle(d)
	if k.end == nil && !k.settles() {
		return t.o.Base.RoundTrip(r)
	}
	if k.settles() {
		r = r.WithContext(&k.snapshot)
	}
	sent := false
	k.begun = time.Now()
	defer func() { // even if Base panics
		if !sent {
			k.endRoundTrip(res)
		}
	}()
	if res, err = t.o.Base.RoundTrip(r); err == nil && res != nil && res.Body != nil {
		res.Body = outbound.OnClose(res.Body, func() { k.endRoundTrip(res) }, k.dropped("response dropped without closing its body"))
		sent = true
	}
	return res, err
}

// endRoundTrip is called at the end of a request that was sent. The response res is nil if there
// was none.
func (t *ticket) endRoundTrip(res *http.Response) {
	o := Outcome{HungUp: t.Err() != nil}
	if res != nil {
		o.Status, o.Header = res.StatusCode, res.Header
		o.Reported = res.StatusCode == http.StatusTooManyRequests // the server has refused the request, which has therefore used nothing
	}
	t.finish(o)
}

// admit obtains the decision on a request and waits for the request's slot, but not beyond the time
// giveUp.
func (t *transport) admit(r *http.Request, giveUp time.Time) (*decision, error) {
	l := t.l
	for failures := 0; ; {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		left := time.Until(giveUp)
		if l.o.MaxWait > 0 {
			left = max(left, noWait) // with 0, a limit that is a queue would admit a burst
		}
		d := l.newDecision(r)
		d.sender = t
		err := l.decide(d, left)
		d.carryBack(r)
		switch {
		case d.err != nil:
			failures++
			if t.waitToRetry(d, min(outbound.Backoff(failures), time.Until(giveUp))) {
				continue
			}
			return t.fail(d)
		case err != nil:
			return nil, err
		case d.refused():
			if t.waitOutPause(d, giveUp) {
				continue
			}
			l.check(d, nil)
			return nil, l.refusedError(d)
		case d.tx.Wait > d.slept && t.paused(d), !t.spend(d):
			l.refund(d) // in the next iteration, the request gets a later slot or is refused
		default:
			return d, nil
		}
	}
}

// waitOutPause waits until the pause that refuses the request is over. It returns false if no pause
// refuses the request, or if the request must not wait. A limit that is a queue counts a pause as if
// it were requests ahead, so the queue may be full. Observe receives only the refusal of a request
// that will not be sent.
func (t *transport) waitOutPause(d *decision, giveUp time.Time) bool {
	if d.why.Reason != ReasonPause {
		return false
	}
	waited := d.why.RetryAfter <= time.Until(giveUp) && t.l.waitOut(d, d.why.RetryAfter)
	if !waited || d.Err() != nil {
		t.l.notify(d)
	}
	return waited
}

// waitToRetry waits before the next call to a store that has failed. It returns false if the error
// will not go away by itself, or if the request must not wait.
func (t *transport) waitToRetry(d *decision, wait time.Duration) bool {
	if errors.Is(d.err, quota.ErrUnusable) || errors.Is(d.err, quota.ErrLimit) || !t.l.waitOut(d, wait) {
		return false
	}
	t.l.observe(d)
	return true
}

// fail calls OnError, which allows or refuses a request for which no decision was possible.
func (t *transport) fail(d *decision) (*decision, error) {
	err := d.Err()
	if err == nil {
		if err = t.o.OnError(d.request, d.err); err != nil { // http.Client adds the URL of the server, although the server did not cause the error
			err = fmt.Errorf("weir: request not sent, because rule %q could not decide: %w", d.why.Rule, err)
		}
	}
	d.passed = err == nil
	t.l.observe(d)
	return d, err
}

// waitOut waits for the duration wait, or until the request's context ends. It returns false
// without waiting if wait is not positive, or if MaxWaiting requests already wait.
func (l *Limiter) waitOut(d *decision, wait time.Duration) bool {
	defer l.stopWaiting(d)
	if wait <= 0 || l.startWaiting(d, wait) < wait {
		return false
	}
	period.Sleep(d.Context, wait)
	return true
}

// spend is called when a request's slot begins. It subtracts the request's cost from the units that
// the server has reported as left for the request's keys. It reports whether enough units were
// left: another request may have spent them in the meantime, or a response may have reported fewer.
func (t *transport) spend(d *decision) bool {
	return t.l.left.Spend(func(yield func(outbound.Key, int64) bool) {
		for i := range d.claims {
			if c := &d.claims[i]; !yield(outbound.Key{Rule: c.rule.Name, Key: c.key}, c.cost) {
				return
			}
		}
	})
}

// pauseOf returns how long the response asks the client to pause, or 0. If the response reports how
// many units other than requests are left for the keys of s, the transport remembers these numbers
// for at most MaxPause.
func (t *transport) pauseOf(s *snapshot, res *http.Response) (pause time.Duration) {
	limits, retryAfter := headers.Parse(res.Header, time.Now())
	status := res.StatusCode
	if status == http.StatusForbidden || status == http.StatusTooManyRequests || status >= 500 { // GitHub's secondary limits have status 403
		pause = retryAfter
	}
	for _, a := range limits {
		if a.Remaining == 0 {
			pause = max(pause, a.ResetAfter)
		}
	}
	for i := range s.claims {
		c := &s.claims[i]
		if left, ok := tightest(limits, c.rule.Unit); ok && c.rule.Unit != headers.Requests {
			reset := t.bounded(s, &t.cutReset, "reset of remaining units", c.rule.Name, left.ResetAfter)
			t.l.left.Set(outbound.Key{Rule: c.rule.Name, Key: c.key}, left.Remaining, reset)
		}
	}
	return pause
}

// Among a server's limits on the given unit, tightest returns the limit with the fewest units left,
// or false if there is none.
func tightest(limits []headers.Limit, unit string) (tightest headers.Limit, ok bool) {
	for _, a := range limits {
		if a.Unit == unit && a.Remaining >= 0 && a.ResetAfter > 0 && (!ok || a.Remaining < tightest.Remaining) {
			tightest, ok = a, true
		}
	}
	return tightest, ok
}

// pause pauses the keys of s for as long as the server asks, but at most for MaxPause. New requests
// get slots after the end of the pause. Requests that are already waiting call t.paused before they
// are sent. If a longer pause is in force, nothing changes.
func (t *transport) pause(s *snapshot, requested time.Duration) {
	d := t.bounded(s, &t.cut, "pause", s.claims[0].rule.Name, requested)
	ctx := context.WithoutCancel(s.Context)
	for i := range s.claims {
		c := &s.claims[i]
		tx := quota.Transaction{Charges: []quota.Charge{ban.BeginPause(c.rule.Name, c.key, d)}}
		if err := t.l.store.Take(ctx, &tx); err != nil {
			t.l.log.warn(ctx, "key not paused", c.rule.Name, err)
		}
	}
}

// The server has asked for the duration d, and bounded returns d, or MaxPause if that is shorter.
// If MaxPause is shorter for the first time, bounded logs a warning.
func (t *transport) bounded(s *snapshot, logged *atomic.Bool, what, rule string, d time.Duration) time.Duration {
	if d > t.o.MaxPause && logged.CompareAndSwap(false, true) {
		loggerOr(t.l.o.Logger).WarnContext(s, "weir: answer of a server cut to MaxPause", "rule", rule, "part", what,
			"asked", period.Rounded(d), "max_pause", period.Rounded(t.o.MaxPause),
			"effect", "requests are sent earlier than the server has asked; later cuts are not logged")
	}
	return min(d, t.o.MaxPause)
}

// paused reports whether a key of the request is paused.
func (t *transport) paused(d *decision) bool {
	done := false
	defer t.l.releaseUnless(&done, d)
	lookup := quota.Transaction{Mode: quota.ModePeek}
	for i := range d.claims {
		lookup.Charges = append(lookup.Charges, ban.LookupPause(d.claims[i].rule.Name, d.claims[i].key))
	}
	err := t.l.store.Take(context.WithoutCancel(d.Context), &lookup)
	if err != nil {
		t.l.log.warn(d, "pause not read", d.claims[0].rule.Name, err)
	}
	done = true
	return err == nil && !lookup.Allowed() // after an error the request is sent, because it has a slot and exceeds no limit
}

// Unpause ends a pause that Transport imposed on a key under a rule, in all processes that share
// the store. In a process that uses a quota.HybridStore, the pause may last a few milliseconds
// longer, or up to 10 seconds if the store does not report changes. This process also forgets how
// many remaining units the server last reported for the key, but other processes do not. Requests
// that are already waiting keep their slots, and later requests do not overtake them.
func (l *Limiter) Unpause(ctx context.Context, rule, key string) error {
	if _, err := l.rule(rule); err != nil {
		return err
	}
	l.left.Forget(outbound.Key{Rule: rule, Key: storedkey.Of(key)})
	pause := quota.Transaction{Charges: []quota.Charge{ban.LookupPause(rule, key)}, Mode: quota.ModeForget}
	return l.store.Take(ctx, &pause)
}
