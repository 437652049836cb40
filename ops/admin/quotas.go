package admin

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/overrides"
	"github.com/seed83679106/weir/quota"
)

func (h *Handler) reset(ctx context.Context, _ *http.Request, t *target) error {
	return h.refunding(ctx, t, func(charges []quota.Charge) error { return quota.Reset(ctx, h.store, charges...) })
}

func (h *Handler) grant(ctx context.Context, r *http.Request, t *target) error {
	var body struct {
		Units int64 `json:"units"`
	}
	if err := read(r, &body); err != nil {
		return err
	}
	if body.Units < 1 {
		return refuse(http.StatusBadRequest, "units is %d; want at least 1", body.Units)
	}
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		for i := range charges {
			charges[i].Cost = -body.Units
		}
		return h.store.Take(ctx, &quota.Transaction{Charges: charges})
	})
}

func (h *Handler) ban(ctx context.Context, r *http.Request, t *target) error {
	var body struct {
		Seconds float64 `json:"seconds"`
		Note    string  `json:"note"`
	}
	if err := read(r, &body); err != nil {
		return err
	}
	if !(body.Seconds >= 1e-6 && body.Seconds <= most) {
		return refuse(http.StatusBadRequest, "seconds is %v; want more than 0 and at most %.0f", body.Seconds, math.Floor(most))
	}
	if t.network != nil {
		return h.set(ctx, t, overrides.Entry{Key: t.key, Denied: true}, body.Seconds, body.Note)
	}
	if t.noNetwork != nil {
		return t.noNetwork
	}
	d := time.Duration(body.Seconds*1e6) * time.Microsecond
	if h.o.Bans != nil {
		defer h.o.Bans.Observe(weir.Event{Key: t.key, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: t.Name, RetryAfter: d}})
	}
	return t.banning(ctx, func() error {
		return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Ban(ctx, t.Name, t.key, d) })
	})
}

func (h *Handler) unban(ctx context.Context, r *http.Request, t *target) error {
	if t.network != nil {
		return h.removeOverride(ctx, r, t)
	}
	return t.banning(ctx, func() error {
		return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Unban(ctx, t.Name, t.key) })
	})
}

// eachWithPenalty calls f for every limiter in which the rule has a penalty, because each of
// these limiters remembers bans. It stops at the first error.
func (t *target) eachWithPenalty(f func(l *weir.Limiter) error) error {
	if len(t.penalizers) == 0 {
		return refuse(http.StatusConflict, "rule %q has no penalty, so it has no bans", t.Name)
	}
	for _, l := range t.penalizers {
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}
