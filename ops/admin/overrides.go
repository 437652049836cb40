package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// overridden returns the limits of a key that has an override. The limits of the override (own)
// replace limits of the rule (base), if it has any. The returned limits have the names under which
// they are stored.
func overridden(rule string, base, own []weir.Limit) ([]weir.Limit, error) {
	r := weir.Rule{Name: rule, Key: weir.Global(), Limits: own}
	if len(base) > 0 {
		r.Limits, r.ForKey = base, func(string) weir.Policy { return weir.Limited(own...) }
	}
	p, err := r.PolicyOf("")
	return p.Limits(), err
}

// This is the longest period or duration that a body may contain, in seconds.
const most = quota.MaxTicks / 1e6

// durationOf converts the seconds in a body to a duration. The error ends with the text hint.
func durationOf(seconds float64, hint string) (time.Duration, error) {
	if !(seconds >= 1e-6 && seconds <= most) {
		return 0, refuse(http.StatusBadRequest, "seconds is %v; want more than 0 and at most %.0f%s", seconds, math.Floor(most), hint)
	}
	return time.Duration(seconds*1e6) * time.Microsecond, nil
}

type overrideBody struct {
	listed
	Limits    []limitBody `json:"limits,omitempty"`
	Unlimited bool        `json:"unlimited,omitempty"`
	Denied    bool        `json:"denied,omitempty"`
	EndsAfter float64     `json:"ends_after,omitempty"` // seconds; missing if the override does not expire
	Note      string      `json:"note,omitempty"`
}

type overridesBody struct {
	Overrides []overrideBody `json:"overrides"`
	Stale     bool           `json:"stale,omitempty"`
	Unchecked string         `json:"unchecked,omitempty"`
}

// overridesAnswer returns the overrides in Options.Overrides, but not those in a rules file.
func (h *Handler) overridesAnswer(c *call) (any, error) {
	if !h.hasOverrides {
		return nil, errNoOverrides
	}
	return h.overridesOf(c.q.Get("rule")), nil
}

// overridesOf returns the overrides of a rule, or those of all rules if rule is empty.
func (h *Handler) overridesOf(rule string) *overridesBody {
	live := h.o.Overrides
	body := &overridesBody{Overrides: []overrideBody{}, Stale: live.Err() != nil}
	for _, o := range live.All() {
		if rule != "" && rule != o.Rule {
			continue
		}
		body.Overrides = append(body.Overrides, bodyOfOverride(o))
	}
	return body
}

func bodyOfOverride(o overrides.Override) overrideBody {
	b := overrideBody{listed: listedOf(o.Rule, scopeOfEntry(&o.Entry)), Unlimited: o.Unlimited, Denied: o.Denied, Note: o.Note}
	if !o.End.IsZero() {
		b.EndsAfter = seconds(time.Until(o.End))
	}
	for _, l := range o.Limits {
		own := limitBody{Name: l.Name, Quota: l.Quota, Period: l.Period.Seconds(), Burst: l.Burst}
		if l.Algorithm != nil {
			own.Algorithm = l.Algorithm.Name()
		}
		b.Limits = append(b.Limits, own)
	}
	return b
}

// String returns the known parts of the limit in the form that the page uses, such as 50 per 1m.
func (l limitBody) String() string {
	text := strconv.FormatInt(l.Quota, 10)
	if l.Period > 0 {
		text += " per " + durationText(l.Period)
	}
	if l.Name != "" {
		text = l.Name + ": " + text
	}
	return text
}

var errNoOverrides = refuse(http.StatusNotFound, "the program has no overrides: Options.Overrides is not set")

// override sets the override of a key, if its limits are valid under the rule, or removes it.
func (h *Handler) override(ctx context.Context, t *target) error {
	if t.r.Method == http.MethodDelete {
		return h.removeOverride(ctx, t)
	}
	if err := h.overridesKeys(&t.rule); err != nil &&
		(!h.hasOverrides || t.Network == "") { // a network needs only DenyFrom
		return err
	}
	e, d, note, err := t.readOverride()
	if err != nil {
		return err
	}
	if len(e.Limits) > 0 && !e.Unlimited && !e.Denied {
		if err := h.check(ctx, t, e.Limits); err != nil {
			return err
		}
	}
	if err := h.set(ctx, t, e, d, note); err != nil {
		return err
	}
	t.warnOfBan(ctx)
	return nil
}

// readOverride reads an override of the target, its duration (0 if it is permanent) and its note.
func (t *target) readOverride() (e overrides.Entry, d time.Duration, note string, err error) {
	var body struct {
		Limits            []limitBody
		Unlimited, Denied bool
		Seconds           float64
		Note              string
	}
	if err = t.read(&body); err == nil && body.Seconds != 0 {
		d, err = durationOf(body.Seconds, ", or none for an override that does not expire")
	}
	if err == nil && !body.Denied && t.Network != "" {
		err = refuse(http.StatusBadRequest, "%s can only be denied", t.scope)
	}
	if err != nil {
		return e, 0, "", err
	}
	e = t.entry()
	e.Unlimited, e.Denied = body.Unlimited, body.Denied
	e.Limits, err = limitsFrom(body.Limits)
	return e, d, body.Note, err
}

// warnOfBan warns that new limits have no effect while the key is banned.
func (t *target) warnOfBan(ctx context.Context) {
	if len(t.penalizers) == 0 || !t.single() {
		return
	}
	rest, err := t.banned(ctx)
	if err == nil && rest > 0 { // an error does not matter: the change was made
		t.did.Warning = "the key is banned for another " + durationText(seconds(rest)) +
			", so its requests are still refused: lift the ban, too"
	}
}

// set sets the override e of the target for the duration d, or permanently if d is 0.
func (h *Handler) set(ctx context.Context, t *target, e overrides.Entry, d time.Duration, note string) error {
	err := h.overriding(t, func() error { return h.o.Overrides.Set(ctx, t.Name, e, d, note) })
	var invalid *overrides.InvalidError
	switch {
	case errors.Is(err, overrides.ErrFull):
		return refuse(http.StatusInsufficientStorage, "there are already %d overrides, which is the largest number",
			overrides.MaxLive)
	case errors.As(err, &invalid):
		return refuse(http.StatusBadRequest, "%s", invalid.Text)
	}
	return err
}

// limitsFrom returns the limits in a body. Fields that the body leaves out are zero.
func limitsFrom(bodies []limitBody) (limits []weir.Limit, err error) {
	for _, b := range bodies {
		l := weir.Limit{Name: b.Name, Quota: b.Quota, Burst: b.Burst}
		if l.Quota < 1 {
			return nil, refuse(http.StatusBadRequest, "quota is %d; want at least 1, or denied to refuse the key", l.Quota)
		}
		if !(b.Period >= 0 && b.Period <= most) {
			return nil, refuse(http.StatusBadRequest, "period is %v; want 0 to %.0f seconds", b.Period, math.Floor(most))
		}
		l.Period = time.Duration(math.Round(b.Period*1e6)) * time.Microsecond
		if b.Algorithm != "" {
			if l.Algorithm = algorithms.ByName(b.Algorithm); l.Algorithm == nil {
				return nil, refuse(http.StatusBadRequest, "unknown algorithm %q", b.Algorithm)
			}
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// complete returns the limits that would be in force if the given limits replaced those of a
// rule: zero fields get the values of the replaced limit.
func complete(rule string, base, limits []weir.Limit) ([]weir.Limit, error) {
	all, err := overridden(rule, base, limits)
	if err != nil {
		text := strings.TrimPrefix(fmt.Sprint(errors.Unwrap(err)), quota.ErrLimit.Error()+": ") // an operator has set the limit, no function
		return nil, refuse(http.StatusBadRequest, "%s", text)
	}
	return all, nil
}

// check returns an error if the limits of an override are not valid under the rule of the target.
// If the limits of the rule depend on the request, they are not checked.
func (h *Handler) check(ctx context.Context, t *target, limits []weir.Limit) error {
	base, known, err := h.base(ctx, &t.rule, t.scope)
	if err == nil && known {
		_, err = complete(t.Name, base, limits)
	}
	return err
}

// removeOverride removes the override of a key.
func (h *Handler) removeOverride(ctx context.Context, t *target) error {
	if !h.hasOverrides {
		return errNoOverrides
	}
	found := false
	err := h.overriding(t, func() (err error) {
		found, err = h.o.Overrides.Remove(ctx, t.Name, t.entry())
		return err
	})
	if err == nil && !found {
		return refuse(http.StatusNotFound, "rule %q has no override of %v; an override in the rules file can be removed only there", t.Name, t.scope)
	}
	return err
}
