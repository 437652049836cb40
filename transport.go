package weir

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"
)

// Transport limits requests that go out through base; nil is
// http.DefaultTransport. The same rules apply: by host (ByHeader("Host")), by
// API key, by path. A request waits for its turn for up to MaxWait, then it is
// refused with a *LimitedError, which errors.As finds in what http.Client
// returns; one whose context ends gives its turn back.
//
// It heeds what the other side says. Retry-After with a 429 or 503, and fields of
// any dialect that say that nothing remains, pause the keys of the request until
// then: through the store, so in all processes that share it, and for those who
// wait in line already, which is why who has waited asks once more before it
// goes. When a pause is over, limits like SlidingLog let a whole quota go at once.
// A 429 is sent again
// when the pause is over, if that is within MaxWait and the body can be sent again
// (GetBody).
//
// Set Buffer to the most that delays on the way differ by, and where the other
// side counts in windows use SlidingLog, which keeps to its limit wherever they
// begin.
//
// A request whose context has ended before is not charged and not sent. If it ends
// while the store is asked, the units stay spent, unless it is for a later turn.
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
	ctx := r.Context()
	giveUp := time.Now().Add(t.l.o.MaxWait)
	for {
		v := t.l.newVerdict(r)
		err := t.turn(ctx, v, r, giveUp)
		for err == nil && v.Wait > 0 && t.paused(ctx, v.Charges[:len(v.items)]) {
			v = t.l.newVerdict(r)
			err = t.turn(ctx, v, r, giveUp)
		}
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		res, err := t.base.RoundTrip(r)
		if err != nil || len(v.Charges) == 0 {
			return res, err
		}
		pause := asksToPause(res, time.Now())
		if pause == 0 {
			return res, nil
		}
		t.pause(ctx, v.Charges[:len(v.items)], pause)
		if res.StatusCode != http.StatusTooManyRequests || time.Until(giveUp) < pause {
			return res, nil
		}
		again, ok := rewound(r)
		if !ok {
			return res, nil
		}
		io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
		res.Body.Close()
		r = again
	}
}

// turn returns when it is the request's turn.
func (t *transport) turn(ctx context.Context, v *verdict, r *http.Request, giveUp time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := t.l
	err := l.decide(v, r, time.Until(giveUp), l.o.Buffer)
	switch {
	case ctx.Err() != nil && err != nil:
		return ctx.Err()
	case err != nil:
		return nil
	case v.refused:
		return &LimitedError{Transaction: v.Transaction}
	case v.Wait > 0:
		return l.wait(v)
	}
	return nil
}

// asksToPause returns how long the other side wants to be left alone.
func asksToPause(res *http.Response, now time.Time) (pause time.Duration) {
	advice, retryAfter := ReadHeaders(res.Header, now)
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		pause = retryAfter
	}
	for _, a := range advice {
		if a.Remaining == 0 {
			pause = max(pause, a.ResetAfter)
		}
	}
	return pause
}

// pause lets nobody go before d is over: neither who comes from now on, for whom
// the line begins then, nor who is in line already.
func (t *transport) pause(ctx context.Context, charges []Charge, d time.Duration) {
	ctx = context.WithoutCancel(ctx)
	_, err := hold(ctx, t.l.store, d, pauses(charges)...)
	if err == nil {
		err = t.delay(ctx, charges, d)
	}
	if err != nil {
		t.l.log.warn(ctx, charges[0].Rule, err)
	}
}

// delay reserves a unit of each charge at the end of d and gives it back, and the
// instant stays: the line begins there.
func (t *transport) delay(ctx context.Context, charges []Charge, d time.Duration) error {
	line := Transaction{Charges: slices.Clone(charges), Delay: d, Within: d}
	for i := range line.Charges {
		line.Charges[i].Cost = 1
	}
	if err := t.l.store.Take(ctx, &line); err != nil || !line.Allowed() {
		return err
	}
	for i := range line.Charges {
		line.Charges[i].Cost = -1
	}
	line.Delay, line.Within = 0, 0
	return t.l.store.Take(ctx, &line)
}

// pauses returns charges of limits that nobody spends, whose states say until
// when keys are paused.
func pauses(charges []Charge) []Charge {
	p := make([]Charge, len(charges))
	for i, c := range charges {
		c.Limit, c.Cost = gateLimit("pause "+c.Limit.Name), 0
		p[i] = c
	}
	return p
}

// paused reports whether one of the keys is paused.
func (t *transport) paused(ctx context.Context, charges []Charge) bool {
	look := Transaction{Charges: pauses(charges)}
	if err := t.l.store.Take(ctx, &look); err != nil {
		return false // as an error of the store refuses nothing
	}
	for _, d := range look.Decisions {
		if d.NextAfter > 0 {
			return true
		}
	}
	return false
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
