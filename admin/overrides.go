package admin

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/counters"
	"github.com/seed83679106/weir/overrides"
)

// limitsOf returns the limits of a key under a rule whose overrides are those of own, with
// stored names. One limit of quota 0 means that the key is refused.
func (h *Handler) limitsOf(r *rule, key string, own func(string) ([]weir.Limit, bool)) ([]weir.Limit, error) {
	l, err := weir.New(h.store, weir.Options{Rules: []weir.Rule{{
		Name: r.Name, Key: weir.Global(), Limits: r.Limits, LimitsFor: r.LimitsFor, Overrides: own,
	}}})
	if err != nil {
		return nil, err
	}
	limits, _, err := l.LimitsOf(r.Name, key)
	return limits, err
}

type ownLimitBody struct {
	Name      string  `json:"name,omitempty"`
	Algorithm string  `json:"algorithm,omitempty"`
	Quota     int64   `json:"quota"`
	Period    float64 `json:"period,omitempty"`
	Burst     int64   `json:"burst,omitempty"`
}

type overrideBody struct {
	Rule      string         `json:"rule"`
	Key       string         `json:"key"`
	Limits    []ownLimitBody `json:"limits,omitempty"`
	Unlimited bool           `json:"unlimited,omitempty"`
	Denied    bool           `json:"denied,omitempty"`
	EndsAfter float64        `json:"ends_after,omitempty"` // seconds; missing: never
	Note      string         `json:"note,omitempty"`
}

type overridesBody struct {
	Overrides []overrideBody `json:"overrides"`
	Stale     bool           `json:"stale,omitempty"`
}

// overridesAnswer returns the overrides that were set while the program runs.
func (h *Handler) overridesAnswer(r *http.Request) (any, error) {
	q, err := query(r, "rule")
	if err != nil {
		return nil, err
	}
	if q.Has("rule") {
		if _, err := h.rules(q); err != nil {
			return nil, err
		}
	}
	return h.overridesOf(q.Get("rule"))
}

// overridesOf returns the overrides of a rule, or all if it is empty.
func (h *Handler) overridesOf(rule string) (any, error) {
	live := h.o.Overrides
	if live == nil {
		return nil, errNoOverrides
	}
	body := overridesBody{Overrides: []overrideBody{}, Stale: live.Err() != nil}
	for _, o := range live.All() {
		if rule != "" && rule != o.Rule {
			continue
		}
		b := overrideBody{Rule: o.Rule, Key: o.Key, Unlimited: o.Unlimited, Denied: o.Denied, Note: o.Note}
		if !o.End.IsZero() {
			b.EndsAfter = time.Until(o.End).Seconds()
		}
		for _, l := range o.Limits {
			own := ownLimitBody{Name: l.Name, Quota: l.Quota, Period: l.Period.Seconds(), Burst: l.Burst}
			if l.Algorithm != nil {
				own.Algorithm = l.Algorithm.Name()
			}
			b.Limits = append(b.Limits, own)
		}
		body.Overrides = append(body.Overrides, b)
	}
	return body, nil
}

var errNoOverrides = refuse(http.StatusNotFound, "the program has no overrides: Options.Overrides is not set")

// override sets the override of a key. It first makes sure that each limiter can use it.
func (h *Handler) override(ctx context.Context, r *http.Request, t *target) error {
	if h.o.Overrides == nil {
		return errNoOverrides
	}
	var body struct {
		Limits            []ownLimitBody
		Unlimited, Denied bool
		Seconds           float64
		Note              string
	}
	if err := read(r, &body); err != nil {
		return err
	}
	const most = weir.MaxTicks / 1e6
	if !(body.Seconds == 0 || body.Seconds >= 1e-6 && body.Seconds <= most) {
		return refuse(http.StatusBadRequest, "seconds is %v; want more than 0 and at most %.0f, or none for an override that does not end", body.Seconds, math.Floor(most))
	}
	e := overrides.Entry{Key: t.key, Unlimited: body.Unlimited, Denied: body.Denied}
	for _, b := range body.Limits {
		l := weir.Limit{Name: b.Name, Quota: b.Quota, Burst: b.Burst}
		if !(b.Period >= 0 && b.Period <= most) {
			return refuse(http.StatusBadRequest, "period is %v; want seconds", b.Period)
		}
		l.Period = time.Duration(math.Round(b.Period*1e6)) * time.Microsecond
		if b.Algorithm != "" {
			if l.Algorithm = counters.Named(b.Algorithm); l.Algorithm == nil {
				return refuse(http.StatusBadRequest, "unknown algorithm %q", b.Algorithm)
			}
		}
		e.Limits = append(e.Limits, l)
	}
	if len(e.Limits) > 0 && !e.Unlimited && !e.Denied {
		own := func(string) ([]weir.Limit, bool) { return e.Limits, true }
		if _, err := h.limitsOf(&t.rule, t.key, own); err != nil {
			return refuse(http.StatusBadRequest, "%s", strings.TrimPrefix(err.Error(), "weir: "))
		}
	}
	err := h.o.Overrides.Set(ctx, t.Name, e, time.Duration(body.Seconds*1e6)*time.Microsecond, body.Note)
	var mistake *overrides.MistakeError
	switch {
	case errors.Is(err, overrides.ErrFull):
		return refuse(http.StatusInsufficientStorage, "there are %d overrides, and there may be no more", overrides.MaxLive)
	case errors.As(err, &mistake):
		return refuse(http.StatusBadRequest, "%s", strings.TrimPrefix(err.Error(), "overrides: "))
	}
	return err
}

// removeOverride removes the override of a key.
func (h *Handler) removeOverride(ctx context.Context, _ *http.Request, t *target) error {
	if h.o.Overrides == nil {
		return errNoOverrides
	}
	found, err := h.o.Overrides.Remove(ctx, t.Name, t.key)
	if err == nil && !found {
		return refuse(http.StatusNotFound, "rule %q has no override of the key %q that was set while the program runs", t.Name, t.key)
	}
	return err
}
