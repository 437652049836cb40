package weir

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
)

// Transport limits requests that go out through base; nil is
// http.DefaultTransport. The same rules apply: by host (ByHeader("Host")), by
// API key, by path. A request waits for its turn for up to MaxWait, then it is
// refused with a *LimitedError, which errors.As finds in what http.Client
// returns; one whose context ends gives its turn back.
//
// Transport obeys the other side. Retry-After with a 429 or 503, and fields of any
// dialect that say that nothing remains, pause the keys of the request until
// then, for MaxPause at most. The pause is kept in the store, so it holds in all
// processes that share it: new requests wait behind it, and those that wait in
// line already look once more before they go, and take another turn. After a pause, limits like
// SlidingLog let a whole quota go at once. Unpause ends it early.
//
// Let the key tell hosts apart: under one key for several hosts, such as Global,
// any of them pauses the requests to all of them.
//
// A 429 is sent again when the pause is over, and charged again, if that is within
// MaxWait and MaxPause and the body can be sent again (GetBody).
//
// Set Buffer to the most that delays on the way differ by, and where the other
// side counts in windows use SlidingLog, which keeps to its limit wherever they
// begin.
//
// Each request asks the store, also behind leases: it must know of pauses.
//
// An error of the store is logged and observed, and the request goes out: OnError
// is for handlers. Other options of handlers have no effect.
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
		res, err := t.base.RoundTrip(r)
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

// turn returns when it is the request's turn.
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
		case err != nil:
			return v, ctx.Err() // the store failed: the request goes out
		case v.refused:
			// A queue takes the pause before it for a line, and soon has no room.
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
		l.giveBack(v) // it will take another
	}
}

// sitOut waits until the pause that refused v is over or the context of the request
// has ended. It returns false, at once, if that is not within maxWait or there is
// no place among those that wait.
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

// asksToPause returns how long the other side wants to be left alone.
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

// pause lets no request with a key of v go before the pause that was asked for is
// over, or MaxPause. A pause that lasts longer already stays.
func (t *transport) pause(v *verdict, asked time.Duration) {
	d := min(asked, t.l.o.MaxPause)
	if d < asked && t.l.cut.CompareAndSwap(false, true) {
		loggerOr(t.l.o.Logger).WarnContext(v, "weir: a pause was cut to MaxPause; others will be without a word", "rule", v.Charges[0].Rule, "asked", asked, "MaxPause", d)
	}
	ctx := (*asking)(v)
	for _, gate := range v.gates(0) {
		if _, err := hold(ctx, t.l.store, d, gate); err != nil {
			t.l.log.warn(ctx, gate.Rule, err)
		}
	}
}

// paused reports whether one of the keys of v is paused.
func (t *transport) paused(v *verdict) bool {
	look := Transaction{Charges: v.gates(0)}
	if err := t.l.store.Take((*asking)(v), &look); err != nil {
		return false // as an error of the store refuses nothing
	}
	for i := range look.Decisions {
		if look.Decisions[i].NextAfter > 0 {
			return true
		}
	}
	return false
}

// Unpause ends the pause of a key of a rule that Transport made because the other
// side asked for it, in all processes that share the store; behind Hybrid within
// 10 seconds. Requests that wait for their turn already keep it, and later ones
// do not overtake them.
func (l *Limiter) Unpause(ctx context.Context, rule, key string) error {
	for i := range l.rules {
		if l.rules[i].Name == rule {
			return l.store.Take(ctx, &Transaction{Charges: []Charge{pauseOf(rule, key, 0)}, Forget: true})
		}
	}
	return fmt.Errorf("weir: there is no rule %q", rule)
}

// maxDrain bounds how long an answer is read for its connection's sake, which is
// about what a new connection takes.
const maxDrain = time.Second

// drain closes a body. It first reads what is left of it, so that the connection
// can be used again, but for no longer than d or maxDrain and not when ctx has
// ended: a server that sends its answer byte by byte loses the connection.
// net/http allows to close a body while it is read.
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

// rewound returns the request to be sent again, if its body can be.
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
