package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/overrides"
)

// Options of New.
type Options struct {
	// Limiters returns the limiters in force. It must be set, and is called for each
	// request. Of a file of rules it is config.File.Limiters.
	Limiters func() []*weir.Limiter

	// LimitsFor returns the limits of a key under a rule that has a LimitsFor of its
	// own. There is no request of that key to ask the rule with. Its error is answered
	// like an error of the store. Nil means that these limits are unknown.
	LimitsFor func(ctx context.Context, rule, key string) ([]weir.Limit, error)

	// Overrides are what /overrides and /override are about. Rules must use them: see
	// overrides.Live.Of and config.Options. nil answers these paths with 404.
	Overrides *overrides.Live

	// Version returns the version of the rules in force, for /rules. Of a file of rules it
	// is config.File.Version. nil leaves it out.
	Version func() string

	// Who returns the operator who makes a change, from the context of the request, where
	// the authentication before the Handler has put it. nil means that the lines about
	// changes have no name.
	Who func(ctx context.Context) string

	// Logger gets the errors of the store, and a line for each change with its operator,
	// rule, key and body; nil means slog.Default().
	Logger *slog.Logger
}

// A Handler serves operators as the package describes. It is safe for concurrent use.
type Handler struct {
	store   weir.Store
	o       Options
	origin  *http.CrossOriginProtection
	peekers atomic.Pointer[peekers]
}

// New returns a Handler for limiters that all count in store. It must be the very Store
// that they have, because a Store such as [weir.Hybrid] remembers refusals and must learn
// of changes.
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
	return &Handler{store: store, o: o, origin: http.NewCrossOriginProtection()}, nil
}

// maxBody is the largest body of a request, in bytes.
const maxBody = 4096

// A target is the rule and the key that a request names.
type target struct {
	rule
	key string
}

// ServeHTTP serves all paths of the package's description. RateLimit is a handler of its
// own.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		return h.get(w, r, h.state)
	case "/reset":
		return h.change(w, r, h.reset)
	case "/grant":
		return h.change(w, r, h.grant)
	case "/ban":
		return h.change(w, r, h.ban)
	case "/unban":
		return h.change(w, r, h.unban)
	case "/overrides":
		return h.get(w, r, h.overridesAnswer)
	case "/override":
		if r.Method == http.MethodDelete {
			return h.change(w, r, h.removeOverride)
		}
		return h.change(w, r, h.override)
	}
	return nil, refuse(http.StatusNotFound, "unknown path %q; known are GET /rules, /state and /overrides, POST /reset, /grant, /ban, /unban and /override, and DELETE /override", r.URL.Path)
}

// get answers a request that changes nothing.
func (h *Handler) get(w http.ResponseWriter, r *http.Request, answer func(r *http.Request) (any, error)) (any, error) {
	if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
		return nil, err
	}
	return answer(r)
}

// change makes a change and returns the state after it.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, change func(context.Context, *http.Request, *target) error) (any, error) {
	methods := []string{http.MethodPost}
	if r.URL.Path == "/override" {
		methods = append(methods, http.MethodDelete)
	}
	if err := allow(w, r, methods...); err != nil {
		return nil, err
	}
	if err := h.origin.Check(r); err != nil {
		return nil, refuse(http.StatusForbidden, "the request comes from another origin")
	}
	rules, key, err := h.find(r, "rule", "key")
	if err != nil {
		return nil, err
	}
	t := &target{rules[0], key}
	if err := t.checkKey(); err != nil {
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
	if r.URL.Path == "/override" && strings.HasSuffix(key, "*") { // no key that has a state
		return h.overridesOf(t.Name)
	}
	return h.states(ctx, rules, key)
}

// audit logs a change, or an attempt that failed.
func (h *Handler) audit(ctx context.Context, r *http.Request, t *target, body string, err error) {
	who := ""
	if h.o.Who != nil {
		who = h.o.Who(ctx)
	}
	log := h.o.Logger.With("who", who, "change", r.Method+" "+r.URL.Path, "rule", t.Name, "key", weir.StoredKey(t.key), "body", strings.TrimSpace(body))
	if err != nil {
		var p *problem
		if !errors.As(err, &p) {
			p = storeFailed // fail logs the error itself
		}
		log.WarnContext(ctx, "admin: change failed", "error", p)
		return
	}
	log.InfoContext(ctx, "admin: changed")
}

// state returns the state of a key, under one rule or under all.
func (h *Handler) state(r *http.Request) (any, error) {
	rules, key, err := h.find(r, "key")
	if err != nil {
		return nil, err
	}
	return h.states(r.Context(), rules, key)
}

// find returns the rules and the key of the query, which must have the required
// parameters. Without a rule it returns all rules.
func (h *Handler) find(r *http.Request, required ...string) (rules []rule, key string, err error) {
	q, err := query(r, "rule", "key")
	if err != nil {
		return nil, "", err
	}
	for _, name := range required {
		if !q.Has(name) {
			return nil, "", refuse(http.StatusBadRequest, "the query has no %s", name)
		}
	}
	rules, err = h.rules(q)
	return rules, q.Get("key"), err
}

func (h *Handler) reset(ctx context.Context, _ *http.Request, t *target) error {
	charges, err := h.chargesToChange(ctx, t)
	if err != nil {
		return err
	}
	return weir.Reset(ctx, h.store, charges...)
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
	charges, err := h.chargesToChange(ctx, t)
	if err != nil {
		return err
	}
	for i := range charges {
		charges[i].Cost = -body.Units
	}
	return h.store.Take(ctx, &weir.Transaction{Charges: charges})
}

func (h *Handler) ban(ctx context.Context, r *http.Request, t *target) error {
	var body struct {
		Seconds float64 `json:"seconds"`
	}
	if err := read(r, &body); err != nil {
		return err
	}
	const most = weir.MaxTicks / 1e6
	if !(body.Seconds >= 1e-6 && body.Seconds <= most) {
		return refuse(http.StatusBadRequest, "seconds is %v; want more than 0 and at most %.0f", body.Seconds, math.Floor(most))
	}
	d := time.Duration(body.Seconds*1e6) * time.Microsecond
	return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Ban(ctx, t.Name, t.key, d) })
}

func (h *Handler) unban(ctx context.Context, _ *http.Request, t *target) error {
	return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Unban(ctx, t.Name, t.key) })
}

// eachWithPenalty calls f for all limiters in which the rule has a penalty, because each
// of them remembers bans.
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

// chargesToChange returns a charge for each limit of the target.
func (h *Handler) chargesToChange(ctx context.Context, t *target) ([]weir.Charge, error) {
	limits, known, err := h.limits(ctx, &t.rule, t.key)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, refuse(http.StatusConflict, "the limits of rule %q depend on the request, and Options.LimitsFor is not set", t.Name)
	}
	return charges(&t.rule, t.key, limits), nil
}
