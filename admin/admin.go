package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/watch"
)

// Options configures the Handler that New returns. Only Limiters is required.
type Options struct {
	// Limiters returns the current limiters. It is called for each request. For a rules file, set
	// it to config.File.Limiters.
	Limiters func() []*weir.Limiter

	// Policy returns the policy of a key. The Handler calls it instead of weir.Rule.Policy, which
	// needs a request. The zero Policy means the rule's Limits. If Policy returns an error, the
	// response is 503. If Policy is nil, the limits of a rule without Limits are unknown.
	Policy func(ctx context.Context, rule, key string) (weir.Policy, error)

	// Overrides are the overrides that /overrides lists and /override changes. The rules must use
	// the same overrides; see overrides.Live.Of and config.Options. If Overrides is nil,
	// /overrides and /override return 404.
	Overrides *overrides.Live

	// File is the rules file, such as a *config.File. /rules and the page show its version and
	// its reloads. nil means that the rules are not in a file.
	File watch.File

	// Top, Bans and Traffic record the decisions of the limiters. Call their Observe methods from
	// the weir.Options.Observe function of each limiter. Without Top, /top and /refusals return
	// 404, and the page does not list the most refused keys. Without Traffic, /try returns 404,
	// and the page shows no request counts. Without Bans, /bans lists only networks.
	Top     *watch.Top
	Bans    *watch.Bans
	Traffic *watch.Traffic

	// Stores are additional stores whose breakers and fallbacks the page shows. Pass the same
	// stores as to weirprom.New. The store passed to New is always included, and a store of
	// package stack includes its component stores.
	Stores []weir.Store

	// Who returns the operator's name from a request's context, where the authentication middleware
	// must have stored it. The name is logged with each change. If Who is nil, the name is empty.
	Who func(ctx context.Context) string

	// Logger logs store errors and, for each change, the operator, rule, key and body. nil means
	// slog.Default().
	Logger *slog.Logger
}

// A Handler serves the web page and the JSON API described in the package comment. It is safe for
// concurrent use.
type Handler struct {
	store   weir.Store
	o       Options
	origin  *http.CrossOriginProtection
	peekers atomic.Pointer[peekers]
	changes changes
	began   time.Time
	version string

	mu     sync.Mutex
	before map[string]int64 // see outage
}

// New returns a Handler for limiters that all use the given store. Pass the Store value that the
// limiters use, not another Store for the same Redis server: a Store such as [quota.Hybrid]
// remembers refusals, so changes must be made through the same value. New returns an error if store
// is nil or o.Limiters is nil.
func New(store weir.Store, o Options) (*Handler, error) {
	switch {
	case store == nil:
		return nil, errors.New("admin: the store is nil")
	case o.Limiters == nil:
		return nil, errors.New("admin: Options.Limiters is nil")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Handler{store: store, o: o, origin: http.NewCrossOriginProtection(), began: time.Now(), version: versionOf()}, nil
}

// maxBody is the largest body of a request, in bytes.
const maxBody = 4096

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

// ServeHTTP serves the page at / and the API paths listed in the package comment. It does not serve
// /rate_limit; register RateLimit for that path.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/":
		h.servePage(w, r)
		return
	case "/style.css":
		send(w, http.StatusOK, "text/css; charset=utf-8", []byte(style))
		return
	case "/refresh.js":
		send(w, http.StatusOK, "text/javascript; charset=utf-8", []byte(refreshScript))
		return
	}
	answer, err := h.serve(w, r)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, "application/json", answer)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (answer any, err error) {
	switch r.URL.Path {
	case "/rules":
		return h.get(w, r, h.rulesAnswer)
	case "/state":
		return h.get(w, r, func(r *http.Request) (any, error) { return h.ofKey(r, h.states) })
	case "/explain":
		return h.get(w, r, func(r *http.Request) (any, error) { return h.ofKey(r, h.explanations) })
	case "/reset":
		return h.change(w, r, h.reset)
	case "/grant":
		return h.change(w, r, h.grant)
	case "/ban":
		return h.change(w, r, h.ban)
	case "/unban":
		return h.change(w, r, h.unban)
	case "/top":
		return h.get(w, r, h.topAnswer)
	case "/bans":
		return h.get(w, r, h.bansAnswer)
	case "/try":
		return h.try(w, r)
	case "/refusals":
		return h.get(w, r, h.refusalsAnswer)
	case "/changes":
		return h.get(w, r, h.changesAnswer)
	case "/undo":
		return h.undo(w, r)
	case "/overrides":
		return h.get(w, r, h.overridesAnswer)
	case "/override":
		if r.Method == http.MethodDelete {
			return h.change(w, r, h.removeOverride)
		}
		return h.change(w, r, h.override)
	}
	return nil, refuse(http.StatusNotFound, "unknown path %q; known are GET /, /rules, /state, /explain, /top, /refusals, /bans, /overrides and /changes, POST /reset, /grant, /ban, /unban, /override, /undo and /try, and DELETE /override", r.URL.Path)
}

// get answers a request that changes nothing.
func (h *Handler) get(w http.ResponseWriter, r *http.Request, answer func(r *http.Request) (any, error)) (any, error) {
	if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
		return nil, err
	}
	return answer(r)
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

// changed returns the answer to a change: the state of the key after it. If the key stands for many keys, which have no common state, the answer is the list of
// overrides.
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

// ofKey returns the answer for the key and the rule of the query. If the query names no rule,
// ofKey returns the answer for the key and all rules.
func (h *Handler) ofKey(r *http.Request, answer func(context.Context, []rule, string, netip.Addr) (*stateBody, error)) (any, error) {
	q, err := query(r, "rule", "key", "from")
	if err != nil {
		return nil, err
	}
	from, err := clientAddr(q)
	if err != nil {
		return nil, err
	}
	rules, key, err := h.find(q, "key")
	if err != nil {
		return nil, err
	}
	return answer(r.Context(), rules, key, from)
}

// clientAddr returns the address in the parameter from; it is invalid if the query has none.
func clientAddr(q url.Values) (netip.Addr, error) {
	if q.Get("from") == "" {
		return netip.Addr{}, nil
	}
	from, err := netip.ParseAddr(q.Get("from"))
	if err != nil {
		return from, refuse(http.StatusBadRequest, "from is %q; want an address", q.Get("from"))
	}
	return addr.Outside(from), nil
}

// find returns the rule and the key that the query names. If the query names no rule, find
// returns all rules. It returns an error if a required parameter is missing.
func (h *Handler) find(q url.Values, required ...string) (rules []rule, key string, err error) {
	for _, name := range required {
		if !q.Has(name) {
			return nil, "", refuse(http.StatusBadRequest, "the query has no %s", name)
		}
	}
	rules, err = h.rules(q)
	return rules, q.Get("key"), err
}

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
