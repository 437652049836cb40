package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
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
	// its reloads. A *config.File also hashes keys that operators type. nil means that the rules are
	// not in a file.
	File watch.File

	// Top, Bans and Traffic record the decisions of the limiters. Call their Observe methods from
	// the weir.Options.Observe function of each limiter. Without Top, /top and /refusals return
	// 404, and the page does not list the most refused keys. Without Traffic, /try returns 404,
	// and the page shows no request counts. Without Bans, /bans lists only networks.
	Top     *watch.Top
	Bans    *watch.Bans
	Traffic *watch.Traffic

	// Warnings are probable misconfigurations that the Logger has reported. The page shows those of
	// the last hour. nil means none.
	Warnings *watch.Warnings

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

	mu      sync.Mutex
	before  map[string]int64 // see outage
	longest quota.FallbackStats
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
	return &Handler{store: store, o: o, origin: http.NewCrossOriginProtection(), began: time.Now(), version: versionOf()},
		nil
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

// A reader answers requests that change nothing. The function answer is called with the query,
// which has only these parameters, and with all rules or, if the query has the parameter rule, only
// the rule that it names.
type reader struct {
	parameters []string
	answer     func(h *Handler, r *http.Request, q url.Values, rules []rule) (any, error)
}

// The readers, and the functions that change a key's state, by path.
var (
	readers = map[string]reader{
		"/rules":     {nil, (*Handler).rulesAnswer},
		"/top":       {[]string{"rule", "seconds"}, (*Handler).topAnswer},
		"/refusals":  {[]string{"rule", "key"}, (*Handler).refusalsAnswer},
		"/bans":      {[]string{"rule"}, (*Handler).bansAnswer},
		"/overrides": {[]string{"rule"}, (*Handler).overridesAnswer},
		"/changes":   {nil, (*Handler).changesAnswer},
		"/state":     {[]string{"rule", "key", "from"}, ofKey((*Handler).states)},
		"/explain":   {[]string{"rule", "key", "from"}, ofKey((*Handler).explanations)},
	}
	changers = map[string]func(h *Handler, ctx context.Context, r *http.Request, t *target) error{
		"/reset": (*Handler).reset, "/grant": (*Handler).grant, "/ban": (*Handler).ban, "/unban": (*Handler).unban,
		"/override": (*Handler).override,
	}
)

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (answer any, err error) {
	path := r.URL.Path
	if read, ok := readers[path]; ok {
		if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
			return nil, err
		}
		q, err := query(r, read.parameters...)
		if err != nil {
			return nil, err
		}
		rules, err := h.rules(q)
		if err != nil {
			return nil, err
		}
		return read.answer(h, r, q, rules)
	}
	if change := changers[path]; change != nil {
		return h.change(w, r, change)
	}
	switch path {
	case "/try":
		return h.try(w, r)
	case "/undo":
		return h.undo(w, r)
	}
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return nil, refuse(http.StatusNotFound, "unknown path %q; to serve the page at %s, mount http.StripPrefix(%q, handler)",
			path, path[:i+1], path[:i])
	}
	return nil, refuse(http.StatusNotFound, "unknown path %q; known are GET /, /rules, /state, /explain, /top, /refusals, /bans, "+
		"/overrides and /changes, POST /reset, /grant, /ban, /unban, /override, /undo and /try, and DELETE /override", path)
}

// ofKey returns a reader's answer for the key of the query under the rules.
func ofKey(answer func(*Handler, context.Context, []rule, string, netip.Addr) (*stateBody, error),
) func(*Handler, *http.Request, url.Values, []rule) (any, error) {
	return func(h *Handler, r *http.Request, q url.Values, rules []rule) (any, error) {
		from, err := clientAddr(q)
		if err != nil {
			return nil, err
		}
		if !q.Has("key") {
			return nil, refuse(http.StatusBadRequest, "the query has no key")
		}
		return answer(h, r.Context(), rules, q.Get("key"), from)
	}
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
