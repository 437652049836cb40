package weir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
)

// Transport limits requests that go out through base; nil means http.DefaultTransport. It
// applies the rules of l, for instance by host (ByHeader("Host")), by API key or by path. A
// request waits for its turn for up to MaxWait. If its turn is later, the request is
// refused with a *LimitedError, which errors.As finds in the error of http.Client. If the
// context of the request ends, the turn is given back.
//
// Transport obeys the server. A response pauses the keys of the request if it is a 429 or
// 503 with Retry-After, or if its header fields say, in any Dialect, that no units remain.
// The pause lasts as long as the response says, but at most MaxPause. The pause is kept in
// the store, so it holds in every process that shares the store. New requests queue behind
// the pause. Requests that already wait check for a pause before they are sent, and take a
// later turn if there is one. Unpause ends a pause early. After a pause, limits such as
// SlidingLog release a whole quota at once.
//
// Use a key that tells hosts apart. If several hosts share a key, as under Global, a pause
// by one of them stops the requests to all of them.
//
// After a 429 the request is sent again when the pause is over, and charged again. This
// needs a pause of at most MaxPause that ends before MaxWait is over, and a request that
// has no body or has GetBody.
//
// Some requests take longer to the server than others. Set Buffer to the largest
// difference. If the server counts in windows, use SlidingLog, which keeps the limit
// wherever the windows begin.
//
// Every request also charges the pauses of its keys, and a pause cannot be leased. If the
// store is a lease.Store, every request is therefore a call of the store behind it.
//
// An error of the store is logged and observed, and the request is sent. An invalid limit
// from LimitsFor is returned as an error. OnError and the other options about responses are
// only for handlers.
func (l *Limiter) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{l, base}
}

type transport struct {
	l    *Limiter
	base http.RoundTripper
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	giveUp := time.Now().Add(t.l.o.MaxWait)
	for {
		v, err := t.turn(r, giveUp)
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		res, err := t.send(r, v)
		if err != nil || res == nil || len(v.Charges) == 0 {
			return res, err
		}
		asked := asksToPause(res, time.Now())
		if asked == 0 {
			return res, nil
		}
		t.pause(v, asked)
		if res.StatusCode != http.StatusTooManyRequests || asked > t.l.o.MaxPause || asked > time.Until(giveUp) {
			return res, nil
		}
		again, ok := rewound(r)
		if !ok {
			return res, nil
		}
		drain(r.Context(), res.Body, asked)
		r = again
	}
}

// send sends the request, which is in flight until the body of its response is closed.
func (t *transport) send(r *http.Request, v *verdict) (res *http.Response, err error) {
	if !v.flies || v.Refusal.Reason != 0 { // no unit is in flight, or the store has failed
		return t.base.RoundTrip(r)
	}
	f, sent := t.l.flight(v), false
	defer func() { // even if base panics
		if !sent {
			f.end()
		}
	}()
	if res, err = t.base.RoundTrip(r); err == nil && res != nil && res.Body != nil {
		f.body(res)
		sent = true
	}
	return res, err
}

// turn returns when the turn of the request has come.
func (t *transport) turn(r *http.Request, giveUp time.Time) (*verdict, error) {
	l, ctx := t.l, r.Context()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v := l.newVerdict(r)
		v.extras().outbound = true
		err := l.decide(v, r, time.Until(giveUp), l.o.Buffer)
		switch {
		case errors.Is(err, errLimitsFor):
			return nil, err
		case err != nil:
			return v, ctx.Err() // the store failed: the request goes out
		case v.refused:
			// A queue counts a pause like requests ahead, so the queue may have no room.
			if v.Refusal.Reason != ReasonPause || !l.sitOut(v, time.Until(giveUp)) {
				return nil, &LimitedError{Transaction: &v.Transaction}
			}
			continue
		case v.Wait == 0:
			return v, nil
		}
		if err := l.wait(v); err != nil {
			return nil, err
		}
		if !t.paused(v) {
			return v, nil
		}
		l.giveBack(v) // the next iteration takes a later turn
	}
}

// sitOut waits until the pause that refused v is over, or the context of the request has
// ended. It returns false at once if the pause is longer than maxWait or MaxWaiting leaves
// no place.
func (l *Limiter) sitOut(v *verdict, maxWait time.Duration) bool {
	d := v.Refusal.RetryAfter
	if d > maxWait {
		return false
	}
	defer l.leave(v)
	if l.enter(v, d) < d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-v.Done():
	}
	return true
}

// asksToPause returns how long the server asks to pause; 0 if it does not.
func asksToPause(res *http.Response, now time.Time) (pause time.Duration) {
	limits, retryAfter := headers.Parse(res.Header, now)
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		pause = retryAfter
	}
	for _, a := range limits {
		if a.Remaining == 0 {
			pause = max(pause, a.ResetAfter)
		}
	}
	return pause
}

// pause stops the use of the keys of v for as long as the server has asked, but at most for
// MaxPause. New requests queue behind the pause. Requests that already wait learn of the
// pause from the method paused. If a longer pause is in force, nothing changes.
func (t *transport) pause(v *verdict, asked time.Duration) {
	d := min(asked, t.l.o.MaxPause)
	if d < asked && t.l.cut.CompareAndSwap(false, true) {
		loggerOr(t.l.o.Logger).WarnContext(v, "weir: a pause was cut to MaxPause; later cuts are not logged", "rule", v.Charges[0].Rule, "asked", asked, "MaxPause", d)
	}
	ctx := asking{v.Context}
	for _, gate := range v.gates(0) {
		if _, err := shutGates(ctx, t.l.store, d, gate); err != nil {
			t.l.log.warn(ctx, "pause a key", gate.Rule, err)
		}
	}
}

// paused reports whether one of the keys of v is paused.
func (t *transport) paused(v *verdict) bool {
	look := Transaction{Charges: v.gates(0)}
	if err := t.l.store.Take(asking{v.Context}, &look); err != nil {
		return false // an error of the store refuses no request
	}
	for i := range look.Decisions {
		if look.Decisions[i].NextAfter > 0 {
			return true
		}
	}
	return false
}

// Unpause ends a pause that Transport made for a key of a rule, in all processes that share
// the store. A process whose store is a HybridStore may notice up to 10 seconds later.
// Requests that already wait keep their turns, and later requests do not overtake them.
func (l *Limiter) Unpause(ctx context.Context, rule, key string) error {
	for i := range l.rules {
		if l.rules[i].Name == rule {
			return l.store.Take(ctx, &Transaction{Charges: []Charge{pauseOf(rule, key, 0)}, Forget: true})
		}
	}
	return fmt.Errorf("weir: there is no rule %q", rule)
}

// maxDrain is the longest time for which a response is read only to use its connection
// again. A new connection costs less than reading for longer.
const maxDrain = time.Second

// drain reads the rest of a body, so that the connection can be used again, and closes it.
// It stops after d or maxDrain, or when ctx ends: a server that sends its response byte by
// byte loses the connection. net/http permits closing a body during a read.
func drain(ctx context.Context, body io.ReadCloser, d time.Duration) {
	if body == nil {
		return
	}
	giveUp := func() { body.Close() }
	timer := time.AfterFunc(min(d, maxDrain), giveUp)
	defer timer.Stop()
	defer context.AfterFunc(ctx, giveUp)()
	io.CopyN(io.Discard, body, 64<<10)
	body.Close()
}

// rewound returns the request to send again, if its body can be sent again.
func rewound(r *http.Request) (*http.Request, bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	again := *r
	again.Body = body
	return &again, true
}
