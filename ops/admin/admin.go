package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
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
	told   quota.FallbackStats
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
