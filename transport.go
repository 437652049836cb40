package weir

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed83679106/weir/internal/drain"
	"github.com/seed83679106/weir/internal/retries"
	"github.com/seed83679106/weir/quota"
)

// TransportOptions configure Limiter.Transport. All fields may be zero.
type TransportOptions struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// OnError is like Options.OnError and has the same default. If MaxWait is set, OnError is
	// called only if the store keeps failing until MaxWait has elapsed. If OnError returns an
	// error, the request is not sent and RoundTrip returns that error.
	OnError func(r *http.Request, err error) error

	// Buffer is added to every period, because some requests take longer than others to reach the
	// server. If these delays differ by at most Buffer, the server never receives more requests in
	// a period than the limit allows. Buffer must be a whole number of microseconds.
	Buffer time.Duration

	// MaxPause is the maximum time for which a response may pause a key; 0 means one minute.
	// Without this bound, one faulty response could stop all processes for a day. After MaxPause,
	// requests are sent again, and their responses can renew the pause. If the server has a long
	// window and punishes requests that come too early, as GitHub does, set MaxPause to the length
	// of the window. A warning is logged when MaxPause first shortens a pause, and when it first
	// shortens the time until remaining units are reset.
	MaxPause time.Duration

	// RetryBudget is the maximum number of retries after a 429, as a share of all requests sent,
	// from 0 to 1. Ten more retries are allowed initially. When the budget is used up, RoundTrip
	// returns the 429. 0 means no bound: retries are charged again, so the rules still bound the
	// total number of requests, but retries can displace new requests. Each Transport has its own
	// budget.
	RetryBudget float64
}

// complete validates options and replaces zeros by defaults.
func (o *TransportOptions) complete() error {
	switch {
	case o.Buffer < 0 || o.Buffer%time.Microsecond != 0:
		return fmt.Errorf("weir: Buffer is %v; want whole microseconds, at least 0", o.Buffer)
	case o.MaxPause < 0:
		return fmt.Errorf("weir: MaxPause is %v; want at least 0", o.MaxPause)
	case !(o.RetryBudget >= 0 && o.RetryBudget <= 1):
		return fmt.Errorf("weir: RetryBudget is %v; want 0 to 1", o.RetryBudget)
	}
	if o.Base == nil {
		o.Base = http.DefaultTransport
	}
	if o.OnError == nil {
		o.OnError = failOpen
	}
	if o.MaxPause == 0 {
		o.MaxPause = time.Minute
	}
	return nil
}

// Transport returns a RoundTripper that applies the Limiter's rules to requests, and sends admitted
// requests through o.Base. It returns an error if an option is invalid or makes a limit invalid. A
// request that exceeds a limit waits for up to MaxWait. If it would have to wait longer, RoundTrip
// returns a *RefusedError, which errors.As finds in the error from http.Client. If the request's
// context ends during the wait, its units are refunded.
//
// The request's keys are paused if the response is a 429 or 503 with Retry-After, or if its header
// fields say, in any Dialect, that no units remain. The pause lasts as long as the response says,
// but at most MaxPause. It is kept in the store, so it applies to all processes that share the
// store. New requests get slots after the end of the pause. A request that is already waiting is
// checked again before it is sent, and gets a later slot if its key is paused by then. Unpause ends
// a pause early. After a pause, a limit such as SlidingLog admits its whole quota at once.
//
// A rule with a Settle function charges a request's final cost when the response body is closed, or
// when the request fails without a response. If the body is never closed, the reserved units remain
// charged, and the units in flight are not released. A 429 counts as a reported usage of 0, so
// ChargeUsed refunds the reserved units.
//
// Response header fields may also say how many units of another kind, such as tokens, remain. Until
// these units are reset (but for no longer than MaxPause), a request that costs more than the
// remaining units waits or is refused. Other processes are not affected. Each request that is sent
// reduces the remaining units by its cost.
//
// Use a key that distinguishes hosts, such as ByHeader("Host"). If several hosts share a key, as
// with Global, a pause requested by one host stops the requests to all of them.
//
// After a 429, the request is sent and charged again when the pause is over. The pause must be no
// longer than MaxPause and must end before MaxWait has elapsed. In addition, the request must
// either have no body or have a GetBody function.
//
// If the server counts requests in windows, use SlidingLog, which stays within the limit wherever
// the windows begin. Some requests take longer than others to reach the server, so also set Buffer
// to the largest difference.
//
// For every request, Transport checks whether the keys are paused. A lease.Store cannot check this
// in memory, so it calls the underlying store for every request.
//
// If MaxWait is set, a request also waits while the store is busy or down. RoundTrip retries the
// call to the store, at first after 100 ms and later every 2 s, until MaxWait has elapsed. If the
// store still fails, OnError decides what happens to the request. If the store's response is lost,
// the request may be charged twice. Every store error is logged and passed to the Limiter's Observe
// function. Transport ignores the Limiter's OnError and any of the Limiter's options that affect
// responses, such as Headers.
func (l *Limiter) Transport(o TransportOptions) (http.RoundTripper, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &pauses{l: l, most: o.MaxPause}
	t := &transport{l: l, o: o, pauses: p, riders: append([]rider{p}, l.riders...), retries: retries.New(o.RetryBudget)}
	for _, r := range l.rules {
		b, err := r.buffered(o.Buffer)
		if err != nil {
			return nil, err
		}
		t.rules = append(t.rules, b)
	}
	return t, nil
}

type transport struct {
	l      *Limiter
	o      TransportOptions
	pauses *pauses
	rules  []*rule // of l, with the buffer
	riders []rider // pauses, and those of l

	retries *retries.Budget
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	giveUp := time.Now().Add(t.l.o.MaxWait)
	for again := false; ; again = true {
		v, err := t.turn(r, giveUp)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		if !again {
			t.retries.Request()
		}
		res, err := t.send(r, v)
		if err != nil || res == nil || len(v.Charges) == 0 {
			return res, err
		}
		asked := t.pauses.asksToPause(v, res)
		if asked == 0 {
			return res, nil
		}
		t.pauses.pause(v, asked)
		if res.StatusCode != http.StatusTooManyRequests || asked > t.o.MaxPause || asked > time.Until(giveUp) {
			return res, nil
		}
		next, ok := retries.Rewound(r)
		if !ok || t.o.RetryBudget > 0 && !t.retries.Retry() {
			return res, nil
		}
		if res.Body != nil {
			drain.Close(r.Context(), res.Body, asked)
		}
		r = next
	}
}

// send sends the request, which is over when the body of its response is closed.
func (t *transport) send(r *http.Request, v *verdict) (res *http.Response, err error) {
	var ends ends
	if v.event.Err == nil {
		ends = startAll(t.riders, v)
		if t.l.settles && len(v.Charges) > 0 {
			v.extras().settledBy(t.l, t.o.OnError)
			r = r.WithContext(v)
			begun := time.Now()
			ends = append(ends, func() { t.settle(v, res, time.Since(begun)) })
		}
	}
	if len(ends) == 0 {
		return t.o.Base.RoundTrip(r)
	}
	sent := false
	defer func() { // even if Base panics
		if !sent {
			ends.run()
		}
	}()
	if res, err = t.o.Base.RoundTrip(r); err == nil && res != nil && res.Body != nil {
		res.Body = drain.OnClose(res.Body, ends.run)
		sent = true
	}
	return res, err
}

// settle charges the final cost of a request. res is nil if no response came.
func (t *transport) settle(v *verdict, res *http.Response, took time.Duration) {
	o := Outcome{HungUp: v.Err() != nil, Took: took}
	if res != nil {
		o.Status, o.Header = res.StatusCode, res.Header
		o.Reported = res.StatusCode == http.StatusTooManyRequests // the server has refused it, so it has used nothing
	}
	t.l.settle(v, o)
}

// turn returns when the turn of the request has come.
func (t *transport) turn(r *http.Request, giveUp time.Time) (*verdict, error) {
	l, ctx := t.l, r.Context()
	for failures := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		left := time.Until(giveUp)
		if l.o.MaxWait > 0 {
			left = max(left, noPlace) // with 0 a queue would let a burst pass
		}
		v := l.newVerdict(r)
		err := l.decide(v, t.rules, t.riders, left)
		switch {
		case v.event.Err != nil:
			if failures++; mayRecover(v.event.Err) && l.sitOut(v, min(retries.Pause(failures), time.Until(giveUp))) {
				l.observe(v)
				continue
			}
			if err = ctx.Err(); err == nil {
				err = t.o.OnError(r, v.event.Err)
			}
			v.event.Passed = err == nil
			l.observe(v)
			return v, err
		case err != nil:
			return nil, err
		case v.reason != 0:
			// A queue counts a pause like requests ahead, so the queue may have no room.
			if d := v.Refusal.RetryAfter; v.Refusal.Reason != ReasonPause || d > time.Until(giveUp) || !l.sitOut(v, d) {
				return nil, &RefusedError{Admission: &v.Admission}
			}
		case v.Wait > v.slept && t.pauses.paused(v), !t.pauses.spend(v):
			l.giveBack(v) // the next iteration takes a later turn, or is refused
		default:
			return v, nil
		}
	}
}

// mayRecover reports whether a store that failed with err may decide the same request later.
func mayRecover(err error) bool {
	return !errors.Is(err, quota.ErrUnusable) && !errors.Is(err, quota.ErrLimit)
}
