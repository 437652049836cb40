package admin

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

func (h *Handler) reset(ctx context.Context, _ *http.Request, t *target) error {
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		_, err := quota.Reset(ctx, h.store, charges...) // refunding says what there was
		return err
	})
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
	if !inSeconds(body.Seconds) {
		return refuse(http.StatusBadRequest, "seconds is %v; want more than 0 and at most %.0f", body.Seconds,
			math.Floor(most))
	}
	if t.Network != "" {
		e := t.entry()
		e.Denied = true
		return h.set(ctx, t, e, body.Seconds, body.Note)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	d := time.Duration(body.Seconds*1e6) * time.Microsecond
	if h.o.Bans != nil {
		defer h.o.Bans.Observe(weir.Event{Key: t.Key,
			Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: t.Name, RetryAfter: d}})
	}
	return t.banning(ctx, func() error {
		return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Ban(ctx, t.Name, t.Key, d) })
	})
}

func (h *Handler) unban(ctx context.Context, _ *http.Request, t *target) error {
	if t.Network != "" {
		return h.removeOverride(ctx, t)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	found := false
	err := t.banning(ctx, func() error { return t.eachWithPenalty(t.unbanIn(ctx, &found)) })
	if err == nil && !found {
		t.nothing, t.what = true, "lifted no ban, because it had neither a ban nor strikes"
	}
	return err
}

// unbanIn lifts the ban of the target in a limiter, and sets found if there was a ban, or a strike.
func (t *target) unbanIn(ctx context.Context, found *bool) func(l *weir.Limiter) error {
	return func(l *weir.Limiter) error {
		is, err := l.Unban(ctx, t.Name, t.Key)
		*found = *found || is
		return err
	}
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
