// Package admin serves what operators do with keys, and tells clients their own
// quota.
//
// A [Handler] authorises nobody: whoever reaches it may lift any limit. Mount it
// behind authentication, best on an address of its own:
//
//	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", h)))
//	mux.HandleFunc("GET /rate_limit", h.RateLimit) // for everybody
//
// It answers in JSON, mistakes with problem details (RFC 9457) that say what is
// wrong. Rule and key are parameters of the query, for a key may hold anything:
// slashes, dots, nothing at all.
//
//	GET  /rules                      the rules in force
//	GET  /state?key=K                what K has left, under every rule
//	GET  /state?rule=R&key=K         under one
//	POST /reset?rule=R&key=K         gives back all that K has spent
//	POST /grant?rule=R&key=K         {"units": 5} gives back that many, never beyond full
//	POST /ban?rule=R&key=K           {"seconds": 600} bans it, at least for so long
//	POST /unban?rule=R&key=K         lifts a ban, forgets strikes and earlier bans
//
// A key is what the KeyFunc of the rule makes of a request: "192.0.2.1",
// "2001:db8:1:2::/64". That of another rule is another key, and one never seen
// has everything left. A key of more than 128 bytes is answered as its digest, see
// [weir.StoredKey], which names it in a query too. A change of a key that looks like
// an address, and that no request from there has, is refused with 400, and the answer
// says which key that request has: of a network, or of an address under a rule that
// joins it with something else. Each change is answered with the state after it. Durations
// are in seconds:
//
//	{"key": "192.0.2.1", "rules": [{"rule": "api", "banned_for": 0, "limits": [
//	  {"name": "1m", "algorithm": "gcra", "quota": 100, "period": 60, "burst": 100,
//	   "remaining": 3, "next_after": 0.6, "reset_after": 58.2}]}]}
//
// Where a rule chooses its limits for each request (LimitsFor), limits is null,
// and what needs them is refused with 409, unless Options.LimitsFor knows them;
// bans work. A rule's list that names the key is "listed": "allow" or "deny".
//
// Changes hold at once in this process and for all that ask the store. Processes
// that remember refusals, such as those of [weir.Hybrid], or bans, notice what was
// given back or lifted elsewhere within 10 seconds.
//
// Where the store fails the answer is 503, without its error, which is logged. A
// change may then have been made or not; all but grant may be sent again.
// Browsers can't be tricked into changes: requests from other origins are refused
// ([http.CrossOriginProtection]).
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
)

// Options of New.
type Options struct {
	// Limiters returns the limiters in force. It is called with each request and
	// must be set. That of a file of rules is config.File.Limiters.
	Limiters func() []*weir.Limiter

	// LimitsFor returns the limits of a key of a rule that has a LimitsFor of its
	// own, without a request. An error is answered as one of the store; nil means
	// that these limits are not known.
	LimitsFor func(ctx context.Context, rule, key string) ([]weir.Limit, error)

	// Logger gets errors of the store; nil means slog.Default().
	Logger *slog.Logger
}

// A Handler serves what the package says. It is safe for concurrent use.
type Handler struct {
	store  weir.Store
	o      Options
	origin *http.CrossOriginProtection
	looks  atomic.Pointer[looks]
}

// New returns a Handler for limiters that all count in store: the very value
// that they were given, so that what it remembers is not stale.
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

// maxBody bounds what is read of a request, in bytes.
const maxBody = 4096

// A target is the rule and the key that a request names.
type target struct {
	rule
	key string
}

// ServeHTTP serves all but the quota of the caller, for which there is RateLimit.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h.serve(w, r)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, "application/json", answer)
}

const paths = "GET /rules and /state, POST /reset, /grant, /ban and /unban"

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	var change func(ctx context.Context, r *http.Request, t *target) error
	switch r.URL.Path {
	case "/rules", "/state":
	case "/reset":
		change = h.reset
	case "/grant":
		change = h.grant
	case "/ban":
		change = h.ban
	case "/unban":
		change = h.unban
	default:
		return nil, refuse(http.StatusNotFound, "there is no %q; there are %s", r.URL.Path, paths)
	}
	if change == nil {
		if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
			return nil, err
		}
		if r.URL.Path == "/rules" {
			return h.rulesBody(r)
		}
		return h.state(r)
	}
	if err := allow(w, r, http.MethodPost); err != nil {
		return nil, err
	}
	if err := h.origin.Check(r); err != nil {
		return nil, refuse(http.StatusForbidden, "the request comes from another origin")
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
	rules, err := h.rules(q)
	if err != nil {
		return nil, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	// A client that hangs up leaves no change half made.
	ctx := context.WithoutCancel(r.Context())
	t := &target{rules[0], q.Get("key")}
	if err := t.checkKey(); err != nil {
		return nil, err
	}
	if err := change(ctx, r, t); err != nil {
		return nil, err
	}
	return h.states(ctx, rules, q.Get("key"))
}

func (h *Handler) state(r *http.Request) (any, error) {
	q, err := query(r, "rule", "key")
	if err != nil {
		return nil, err
	}
	if !q.Has("key") {
		return nil, refuse(http.StatusBadRequest, "the query has no key")
	}
	rules, err := h.rules(q)
	if err != nil {
		return nil, err
	}
	return h.states(r.Context(), rules, q.Get("key"))
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

// eachWithPenalty calls f for all limiters that have the rule with its penalty:
// each remembers bans.
func (t *target) eachWithPenalty(f func(l *weir.Limiter) error) error {
	if len(t.penalizers) == 0 {
		return refuse(http.StatusConflict, "rule %q has no penalty, and without one no bans", t.Name)
	}
	for _, l := range t.penalizers {
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) chargesToChange(ctx context.Context, t *target) ([]weir.Charge, error) {
	limits, known, err := h.limits(ctx, &t.rule, t.key)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, refuse(http.StatusConflict, "the limits of rule %q depend on a request, and nothing else knows them", t.Name)
	}
	return charges(&t.rule, t.key, limits), nil
}

// allow refuses other methods.
func allow(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, r.Method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return refuse(http.StatusMethodNotAllowed, "%s is for %s", r.URL.Path, strings.Join(methods, " and "))
}

// query returns the parameters, each of them known and there once.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, refuse(http.StatusBadRequest, "the query has an unknown %q; %s has none", name, r.URL.Path)
		case !slices.Contains(known, name):
			return nil, refuse(http.StatusBadRequest, "the query has an unknown %q; known are %s", name, strings.Join(known, " and "))
		case len(q[name]) > 1:
			return nil, refuse(http.StatusBadRequest, "the query has more than one %s", name)
		}
	}
	return q, nil
}

// read reads the body, a JSON object, into a struct.
func read(r *http.Request, body any) error {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the content type is %q; want application/json", r.Header.Get("Content-Type"))
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(body)
	if err == nil {
		if _, after := d.Token(); after != io.EOF {
			err = errors.New("there is something after the object")
		}
	}
	var large *http.MaxBytesError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
	case errors.As(err, &wrong):
		return refuse(http.StatusBadRequest, "%s is of the wrong type: %s", cmp.Or(wrong.Field, "the body"), wrong.Value)
	case err != nil:
		return refuse(http.StatusBadRequest, "the body can't be read: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// A problem is a mistake of the client.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Detail }

func refuse(status int, format string, args ...any) *problem {
	return &problem{http.StatusText(status), status, fmt.Sprintf(format, args...)}
}

var storeFailed = refuse(http.StatusServiceUnavailable, "the store failed")

// fail answers a problem as it is, and anything else, which is an error of the
// store, without its text.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var p *problem
	if !errors.As(err, &p) {
		if r.Context().Err() == nil {
			h.o.Logger.Error("admin: the store failed", "path", r.URL.Path, "error", err)
		}
		p = storeFailed
	}
	write(w, p.Status, "application/problem+json", p)
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // to a client that may be gone
}
