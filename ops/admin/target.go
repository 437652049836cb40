package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// A scope determines which keys a change affects: one key, all keys with a prefix, all keys, or the
// clients in a network. Only the corresponding field is set. No character in a key has a special
// meaning, because clients choose keys.
type scope struct {
	Key     string `json:"key"`
	Prefix  string `json:"prefix,omitempty"`
	All     bool   `json:"all,omitempty"`
	Network string `json:"network,omitempty"`
}

// scopeParameters are the parameters of a query that name a scope.
var scopeParameters = []string{"key", "prefix", "network"}

// scopeOf returns the scope that the query names. An empty prefix stands for all keys.
func scopeOf(q url.Values) (s scope, err error) {
	given := slices.DeleteFunc(slices.Clone(scopeParameters), func(name string) bool { return !q.Has(name) })
	switch {
	case len(given) == 0:
		return s, refuse(http.StatusBadRequest, "the query has no key, prefix or network")
	case len(given) > 1:
		return s, refuse(http.StatusBadRequest, "the query has %s; want one of them", strings.Join(given, " and "))
	}
	switch text := q.Get(given[0]); given[0] {
	case "key":
		s.Key = text
	case "prefix":
		s.Prefix, s.All = text, text == ""
	case "network":
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return s, refuse(http.StatusBadRequest, "network is %q; want one such as 192.0.2.0/24", text)
		case p != p.Masked() || p.Addr().Is4In6():
			return s, refuse(http.StatusBadRequest, "network is %q; want %v", text, addr.Unmap(p.Masked()))
		}
		s.Network = p.String()
	}
	return s, nil
}

func scopeOfEntry(e *overrides.Entry) scope {
	s := scope{Key: e.Key, Prefix: e.Prefix, All: e.All}
	if e.Network.IsValid() {
		s.Network = e.Network.String()
	}
	return s
}

// single reports whether the scope is one key.
func (s scope) single() bool { return s.Prefix == "" && !s.All && s.Network == "" }

// entry returns an entry for the scope, without limits and without allowing or denying anything.
func (s scope) entry() overrides.Entry {
	e := overrides.Entry{Key: s.Key, Prefix: s.Prefix, All: s.All}
	if s.Network != "" {
		e.Network, _ = netip.ParsePrefix(s.Network)
	}
	return e
}

// parameter returns the parameter of a query that names the scope.
func (s scope) parameter() (name, value string) {
	switch {
	case s.Network != "":
		return "network", s.Network
	case s.All || s.Prefix != "":
		return "prefix", s.Prefix
	}
	return "key", s.Key
}

// String returns the scope as it appears in messages and in the log.
func (s scope) String() string {
	switch {
	case s.Network != "":
		return "the network " + s.Network
	case s.All:
		return "all keys"
	case s.Prefix != "":
		return fmt.Sprintf("the prefix %q", s.Prefix)
	}
	return fmt.Sprintf("the key %q", storedkey.Of(s.Key))
}

// text returns the key, or a description of any other scope.
func (s scope) text() string {
	if s.single() {
		return storedkey.Of(s.Key)
	}
	return s.String()
}

// A target is the rule and the scope that a request names.
type target struct {
	rule
	scope

	*call
	did     madeChange // the effect of the change, without its rule and scope
	nothing bool       // the change had no effect
}

// change returns the answer of an endpoint that makes a change by calling apply.
func change(apply func(*Handler, context.Context, *target) error) func(*Handler, *call) (any, error) {
	return func(h *Handler, c *call) (any, error) {
		s, err := scopeOf(c.q)
		if err != nil {
			return nil, err
		}
		t, err := h.typedTarget(c, s)
		if err != nil {
			return nil, err
		}
		return h.carryOut(t, string(c.body), func(ctx context.Context) error { return apply(h, ctx, t) })
	}
}

// carryOut calls f to make a change, logs the change with the given text, and returns the answer to
// the request.
func (h *Handler) carryOut(t *target, text string, f func(ctx context.Context) error) (any, error) {
	ctx := context.WithoutCancel(t.r.Context()) // if the client hangs up, the change is still completed
	err := f(ctx)
	if errors.Is(err, quota.ErrFellBack) {
		err = errHere
	}
	h.audit(ctx, t, text, err)
	if err != nil {
		if p := new(problem); errors.As(err, &p) {
			return nil, p
		}
		return nil, refuse(http.StatusServiceUnavailable,
			"the store failed, so the change was probably not made; repeat it when the store works again. The log has the error")
	}
	t.did.Who, t.did.keyed = h.o.Who(ctx), keyed{t.Name, t.scope}
	t.w.Header().Set(changeField, h.changes.add(t.did))
	return h.changed(ctx, t)
}

// take has the store make a change.
func (h *Handler) take(ctx context.Context, t *quota.Transaction) error {
	err := h.store.Take(ctx, t)
	if err == nil && t.FellBack() {
		err = quota.ErrFellBack
	}
	return err
}

// errHere is the error for a change that was made only in the memory of this process, because a
// quota.Fallback used its second store.
var errHere = refuse(http.StatusServiceUnavailable,
	"the store failed, so the change is in force in this process at most, and only until the store works again: repeat it then")

// target returns the target of a change. It returns an error if no request can have the key, or if the
// rule cannot deny the network.
func (h *Handler) target(c *call, r *rule, s scope) (*target, error) {
	if s.Network != "" && !h.o.Overrides.DeniesNetworks(r.Name) {
		return nil, refuse(http.StatusConflict, "rule %q refuses no networks: set Options.Overrides, and the Policy of the rule to one of weir.When and overrides.Live.DenyFrom", r.Name)
	}
	if s.single() {
		if p := r.checkKey(s.Key); p != nil {
			return nil, p
		}
	}
	return &target{rule: *r, scope: s, call: c}, nil
}

// typedTarget is like target, for a scope that an operator has typed. An existing override can be
// removed even if it was set for a key that no request can have.
func (h *Handler) typedTarget(c *call, s scope) (*target, error) {
	r, exists := &c.rules[0], false
	if c.r.Method == http.MethodDelete {
		_, exists = h.o.Overrides.Get(r.Name, s.entry())
	}
	var fault error
	if !exists {
		s, fault = h.stored(r.Name, s)
	}
	t, err := h.target(c, r, s)
	if err == nil && fault != nil {
		err = refuse(http.StatusBadRequest, "%s", strings.TrimPrefix(fault.Error(), "config: "))
	}
	return t, err
}

// onlyKey returns an error if the target is not a single key.
func (t *target) onlyKey() error {
	if t.single() {
		return nil
	}
	return refuse(http.StatusBadRequest, "%s is no single key: it can only have an override%s", t.scope,
		map[bool]string{true: " that denies it, which /ban also sets"}[t.Network != ""])
}

// changeField is the header field that contains the id of a change.
const changeField = "Weir-Change"

// changed returns the answer to a change, which contains the new state of the key. Many keys have
// no common state, so if the scope covers many keys, the answer is the list of overrides.
func (h *Handler) changed(ctx context.Context, t *target) (any, error) {
	if !t.single() {
		body := h.overridesOf(t.Name)
		if h.overrideNow(t).ok && t.Network == "" && len(t.Limits) == 0 {
			body.Unchecked = unchecked
		}
		return body, nil
	}
	body, err := h.states(ctx, []rule{t.rule}, t.Key, netip.Addr{})
	if err != nil {
		return nil, err
	}
	if t.nothing {
		body.Unchanged = t.did.What
	}
	return body, nil
}

// overridesKeys returns an error if an override of a key of a rule would have no effect.
func (h *Handler) overridesKeys(r *rule) error {
	switch {
	case !h.hasOverrides:
		return errNoOverrides
	case r.ForKey == nil || !h.o.Overrides.OverridesKeys(r.Name):
		return refuse(http.StatusConflict, "rule %q does not use Options.Overrides, so the override would have no effect: set the ForKey of the rule to a function of overrides.Live.Of", r.Name)
	}
	return nil
}

// audit logs a change, even if the change failed.
func (h *Handler) audit(ctx context.Context, t *target, text string, err error) {
	log := h.o.Logger.With("who", h.o.Who(ctx), "change", t.r.Method+" "+t.r.URL.Path, "rule", t.Name, "key", t.scope.text(),
		"body", strings.TrimSpace(text))
	if err != nil {
		log.WarnContext(ctx, "admin: change failed", "err", err)
		return
	}
	log.InfoContext(ctx, "admin: change made")
}

// chargesToChange returns a charge of 0 units for each limit of the target.
func (h *Handler) chargesToChange(ctx context.Context, t *target) ([]quota.Charge, error) {
	if err := t.onlyKey(); err != nil {
		return nil, err
	}
	limits, known, err := h.limits(ctx, &t.rule, t.Key)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, refuse(http.StatusConflict, "the limits of rule %q depend on the request, and Options.Policy does not say which they are", t.Name)
	}
	return charges(&t.rule, t.Key, limits), nil
}
