package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// A target is the rule and the key that a request names.
type target struct {
	rule
	key string

	// If the key is a network, one of these is set.
	network   *problem // the rule can deny networks: the error for any other change, such as a reset
	noNetwork *problem // the rule cannot deny networks: the error for a ban or a denial

	what       string // a change that was made, in a sentence whose subject is the operator
	undo       undo   // of that change, or nil
	overridden bool   // the change was one of an override
}

// change makes the change that a request asks for, and returns the answer to the request.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, change func(context.Context, *http.Request, *target) error) (any, error) {
	methods := []string{http.MethodPost}
	if r.URL.Path == "/override" {
		methods = append(methods, http.MethodDelete)
	}
	if err := allow(w, r, methods...); err != nil {
		return nil, err
	}
	if err := h.origin.Check(r); err != nil {
		return nil, errOrigin
	}
	q, err := query(r, "rule", "key")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"rule", "key"} {
		if !q.Has(name) {
			return nil, refuse(http.StatusBadRequest, "the query has no %s", name)
		}
	}
	t, err := h.target(q.Get("rule"), q.Get("key"))
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	r.Body = io.NopCloser(io.TeeReader(http.MaxBytesReader(w, r.Body, maxBody), &body))
	ctx := context.WithoutCancel(r.Context()) // if the client hangs up, the change is still completed
	err = change(ctx, r, t)
	h.audit(ctx, r, t, body.String(), err)
	if err != nil {
		return nil, err
	}
	w.Header().Set(changeField, h.changes.add(record(h.who(ctx), t)))
	return h.changed(ctx, t)
}

func record(who string, t *target) change {
	return change{who: who, rule: t.Name, key: t.key, what: t.what, undo: t.undo}
}

var errOrigin = refuse(http.StatusForbidden, "the request comes from another origin")

// target returns the target of a change. It returns an error if there is no such rule, or if no
// request can have the key.
func (h *Handler) target(name, key string) (*target, error) {
	rules, err := h.rules(url.Values{"rule": {name}})
	if err != nil {
		return nil, err
	}
	t := &target{rule: rules[0], key: key}
	switch isNetwork, problem := t.checkKey(key); {
	case isNetwork && h.deniesNetworks(t.Name):
		t.network = refuse(http.StatusBadRequest, "%q is a network, which can only be banned or denied", key)
	case problem != nil:
		return nil, problem
	case isNetwork:
		t.noNetwork = refuse(http.StatusConflict, "%q is a network, and rule %q refuses no networks: set Options.Overrides, and the Policy of the rule to one of weir.When and overrides.Live.DenyFrom", key, t.Name)
	}
	return t, nil
}

// changeField is the header field that has the id of a change.
const changeField = "Weir-Change"

// changed returns the answer to a change: the state of the key after it. If the key stands for many keys,
// which have no common state, the answer is the list of overrides.
func (h *Handler) changed(ctx context.Context, t *target) (any, error) {
	if t.network != nil || t.overridden && strings.HasSuffix(t.key, "*") {
		body := h.overridesOf(t.Name)
		if _, exists := h.o.Overrides.Get(t.Name, t.key); exists && t.network == nil && len(t.Limits) == 0 {
			body.Unchecked = unchecked
		}
		return body, nil
	}
	return h.states(ctx, []rule{t.rule}, t.key, netip.Addr{})
}

// overridesKeys returns an error if an override of a key of a rule would have no effect.
func (h *Handler) overridesKeys(r *rule) error {
	switch {
	case h.o.Overrides == nil:
		return errNoOverrides
	case r.ForKey == nil || !h.o.Overrides.OverridesKeys(r.Name):
		return refuse(http.StatusConflict, "rule %q does not use Options.Overrides, so the override would have no effect: set the ForKey of the rule to a function of overrides.Live.Of", r.Name)
	}
	return nil
}

// deniesNetworks reports whether networks can be denied under a rule.
func (h *Handler) deniesNetworks(rule string) bool {
	return h.o.Overrides != nil && h.o.Overrides.DeniesNetworks(rule)
}

// audit logs a change, even if the change failed.
func (h *Handler) audit(ctx context.Context, r *http.Request, t *target, body string, err error) {
	log := h.o.Logger.With("who", h.who(ctx), "change", r.Method+" "+r.URL.Path, "rule", t.Name, "key", storedkey.Of(t.key), "body", strings.TrimSpace(body))
	if err != nil {
		var p *problem
		if !errors.As(err, &p) {
			p = storeFailed // fail logs the error itself
		}
		log.WarnContext(ctx, "admin: change failed", "err", p)
		return
	}
	log.InfoContext(ctx, "admin: change made")
}

// who returns the name of the operator.
func (h *Handler) who(ctx context.Context) string {
	if h.o.Who == nil {
		return ""
	}
	return h.o.Who(ctx)
}

// chargesToChange returns a charge of 0 units for each limit of the target.
func (h *Handler) chargesToChange(ctx context.Context, t *target) ([]quota.Charge, error) {
	if t.network != nil {
		return nil, t.network
	}
	limits, known, err := h.limits(ctx, &t.rule, t.key)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, refuse(http.StatusConflict, "the limits of rule %q depend on the request, and Options.Policy does not say which they are", t.Name)
	}
	return charges(&t.rule, t.key, limits), nil
}
