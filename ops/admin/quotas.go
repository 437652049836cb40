package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

func (h *Handler) reset(ctx context.Context, t *target) error {
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		_, err := quota.Reset(ctx, h.store, charges...) // refunding records what was refunded
		return err
	})
}

func (h *Handler) grant(ctx context.Context, t *target) error {
	var body struct {
		Units int64 `json:"units"`
	}
	if err := t.read(&body); err != nil {
		return err
	}
	if body.Units < 1 {
		return refuse(http.StatusBadRequest, "units is %d; want at least 1", body.Units)
	}
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		for i := range charges {
			charges[i].Cost = -body.Units
		}
		return h.take(ctx, &quota.Transaction{Charges: charges})
	})
}

func (h *Handler) ban(ctx context.Context, t *target) error {
	var body struct {
		Seconds float64 `json:"seconds"`
		Note    string  `json:"note"`
	}
	if err := t.read(&body); err != nil {
		return err
	}
	d, err := durationOf(body.Seconds, "")
	if err != nil {
		return err
	}
	if t.Network != "" {
		e := t.entry()
		e.Denied = true
		return h.set(ctx, t, e, d, body.Note)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	if h.o.Bans != nil {
		defer h.o.Bans.Observe(weir.Event{Key: t.Key,
			Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: t.Name, RetryAfter: d}})
	}
	return t.banning(ctx, func() error { return t.ban(ctx, d) })
}

func (h *Handler) unban(ctx context.Context, t *target) error {
	if t.Network != "" {
		return h.removeOverride(ctx, t)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	found := false
	err := t.banning(ctx, func() (err error) {
		found, err = t.unban(ctx)
		return err
	})
	if err == nil && !found {
		t.nothing, t.did.What = true, "lifted no ban, because it had neither a ban nor strikes"
	}
	return err
}

// banned returns how much longer the target is banned. The rule must have a penalty.
func (t *target) banned(ctx context.Context) (time.Duration, error) {
	return t.penalizers[0].Banned(ctx, t.Name, t.Key)
}

// ban bans the target in every limiter in which the rule has a penalty, because each of
// these limiters remembers bans.
func (t *target) ban(ctx context.Context, d time.Duration) error {
	for _, l := range t.penalizers {
		if err := l.Ban(ctx, t.Name, t.Key, d); err != nil {
			return err
		}
	}
	return nil
}

// unban lifts the ban of the target, and reports whether there was a ban, or a strike.
func (t *target) unban(ctx context.Context) (found bool, err error) {
	for _, l := range t.penalizers {
		was, err := l.Unban(ctx, t.Name, t.Key)
		if err != nil {
			return found, err
		}
		found = found || was
	}
	return found, nil
}
