package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

// Options configures the Handler that New returns. Only Limiters is required.
type Options struct {
	// Limiters returns the current limiters. It is called for each request. For a rules file, set
	// Limiters to config.File.Limiters.
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

	// Recorder records the decisions of the limiters. Call its Observe method from the
	// weir.Options.Observe function of each limiter. If Recorder is nil, /top, /refusals and /try
	// return 404, /bans lists only networks, and the page shows no request counts and no refused
	// keys. The page also shows the warnings of the last hour that its LogHandler has remembered.
	Recorder *watch.Recorder

	// The function Who returns the operator's name from a request's context, where the
	// authentication middleware must have stored it. The name is logged with each change. If Who is
	// nil, the name is empty.
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

	failures *slog.Logger // of calls of RateLimit, which clients cause: at most a line a second

	hasRecorder, hasOverrides bool // they are in the options; otherwise, those in o are empty

	mu     sync.Mutex
	outage quota.FallbackStats // the longest of the outages that the page reports
}

// New returns a Handler for limiters that all use the given store. Pass the Store value that the
// limiters use, not another Store for the same Redis server: a Store such as [quota.Hybrid]
// remembers refusals, so changes must be made through the same value. The page shows the breakers
// and fallbacks of a store of package stack. New returns an error if store is nil or o.Limiters is
// nil.
func New(store weir.Store, o Options) (*Handler, error) {
	switch {
	case safe.Nil(store):
		return nil, errors.New("admin: the store is nil")
	case o.Limiters == nil:
		return nil, errors.New("admin: Options.Limiters is nil")
	}
	h := &Handler{store: store, o: o, origin: http.NewCrossOriginProtection(), began: time.Now(), version: versionOf(),
		hasRecorder: o.Recorder != nil, hasOverrides: o.Overrides != nil}
	h.o.Logger = cmp.Or(o.Logger, slog.Default())
	h.failures = sparse.Logger(h.o.Logger)
	h.o.Recorder = cmp.Or(o.Recorder, watch.NewRecorder(1, 1))
	if h.o.Overrides == nil {
		h.o.Overrides = overrides.NewLive(overrides.LiveOptions{})
	}
	if h.o.Who == nil {
		h.o.Who = func(context.Context) string { return "" }
	}
	return h, nil
}

// maxBody is the largest body of a request, in bytes.
const maxBody = 4096

// ServeHTTP serves the page at / and the API paths listed in the package comment. The path
// /rate_limit is not served; register RateLimit for that path.
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

// A call is a request to the API.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	q     url.Values
	rules []rule // all rules or, if the query names one, only that rule

	body    []byte
	bodyErr error // why the body was not read to its end, or nil
}

// An endpoint answers the calls of a path.
type endpoint struct {
	methods    []string
	parameters []string // the parameters that the query may have
	required   string   // the parameter that the query must have, or ""
	answer     func(*Handler, *call) (any, error)
}

var (
	get      = []string{http.MethodGet, http.MethodHead}
	post     = []string{http.MethodPost}
	ofOneKey = []string{"rule", "key", "from"}
	scoped   = append([]string{"rule"}, scopeParameters...)

	endpoints = map[string]endpoint{
		"/rules":     {get, nil, "", (*Handler).rulesAnswer},
		"/top":       {get, []string{"rule", "seconds"}, "", (*Handler).topAnswer},
		"/refusals":  {get, []string{"rule", "key"}, "", (*Handler).refusalsAnswer},
		"/bans":      {get, []string{"rule"}, "", (*Handler).bansAnswer},
		"/overrides": {get, []string{"rule"}, "", (*Handler).overridesAnswer},
		"/changes":   {get, nil, "", (*Handler).changesAnswer},
		"/state":     {get, ofOneKey, "key", ofKey((*Handler).states)},
		"/explain":   {get, ofOneKey, "key", ofKey((*Handler).explanations)},
		"/try":       {post, []string{"rule"}, "rule", (*Handler).tryAnswer},
		"/undo":      {post, []string{"change"}, "", (*Handler).undo},
		"/reset":     {post, scoped, "rule", change((*Handler).reset)},
		"/grant":     {post, scoped, "rule", change((*Handler).grant)},
		"/ban":       {post, scoped, "rule", change((*Handler).ban)},
		"/unban":     {post, scoped, "rule", change((*Handler).unban)},
		"/override":  {[]string{http.MethodPost, http.MethodDelete}, scoped, "rule", change((*Handler).override)},
	}
)

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (answer any, err error) {
	path := r.URL.Path
	e, known := endpoints[path]
	if i := strings.LastIndexByte(path, '/'); !known && i > 0 {
		return nil, refuse(http.StatusNotFound, "unknown path %q; to serve the page at %s, mount http.StripPrefix(%q, handler)",
			path, path[:i+1], path[:i])
	}
	if !known {
		return nil, refuse(http.StatusNotFound, "unknown path %q; known are GET /, /rules, /state, /explain, /top, /refusals, /bans, "+
			"/overrides and /changes, POST /reset, /grant, /ban, /unban, /override, /undo and /try, and DELETE /override", path)
	}
	if err := allow(w, r, e.methods...); err != nil {
		return nil, err
	}
	if err := h.origin.Check(r); err != nil {
		return nil, refuse(http.StatusForbidden, "the request comes from another origin; if a proxy is in front of the page, it must forward the field Host unchanged")
	}
	c := &call{w: w, r: r, rules: h.rules()}
	if c.q, err = query(r, e.parameters...); err != nil {
		return nil, err
	}
	if e.required != "" && !c.q.Has(e.required) {
		return nil, refuse(http.StatusBadRequest, "the query has no %s", e.required)
	}
	if c.q.Has("rule") {
		named, err := ruleOf(c.rules, c.q.Get("rule"))
		if err != nil {
			return nil, err
		}
		c.rules = []rule{*named}
	}
	c.body, c.bodyErr = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	return e.answer(h, c)
}

// ofKey returns the function of an endpoint that answers for the key of the query under the rules.
func ofKey(answer func(*Handler, context.Context, []rule, string, netip.Addr) (*stateBody, error)) func(*Handler, *call) (any, error) {
	return func(h *Handler, c *call) (any, error) {
		from, err := clientAddr(c.q)
		if err != nil {
			return nil, err
		}
		return answer(h, c.r.Context(), c.rules, c.q.Get("key"), from)
	}
}

// clientAddr returns the address in the parameter "from", which is invalid if the query has no such
// parameter.
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

// allow returns an error unless r has one of the methods.
func allow(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, r.Method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return refuse(http.StatusMethodNotAllowed, "%s accepts only %s", r.URL.Path, strings.Join(methods, " and "))
}

// query returns the parameters of the query, or an error if a parameter is unknown or repeated.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, refuse(http.StatusBadRequest, "the query has an unknown parameter %q; %s takes none", name, r.URL.Path)
		case !slices.Contains(known, name):
			return nil, refuse(http.StatusBadRequest, "the query has an unknown parameter %q; known are %s", name,
				strings.Join(known, " and "))
		case len(q[name]) > 1:
			return nil, refuse(http.StatusBadRequest, "the query has more than one %s", name)
		}
	}
	return q, nil
}

// read decodes the JSON object in the body of the call into the struct that body points to.
func (c *call) read(body any) error {
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the content type is %q; want application/json",
			c.r.Header.Get("Content-Type"))
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	err := c.bodyErr
	if err == nil {
		err = d.Decode(body)
	}
	if err == nil {
		if _, after := d.Token(); after != io.EOF {
			err = errors.New("there is text after the object")
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

// A problem is an error that is sent to the client, as problem details (RFC 9457).
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Detail }

// refuse returns a problem with a status and a detail.
func refuse(status int, format string, args ...any) *problem {
	return &problem{http.StatusText(status), status, fmt.Sprintf(format, args...)}
}

var storeFailed = refuse(http.StatusServiceUnavailable, "the store failed")

// fail answers r with the problem of err.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := h.problem(r, err)
	write(w, p.Status, "application/problem+json", p)
}

// problem returns err if it is a problem. Any other error is assumed to come from the store:
// problem logs that error, unless the client has hung up, and returns storeFailed.
func (h *Handler) problem(r *http.Request, err error) *problem {
	var p *problem
	if !errors.As(err, &p) {
		if r.Context().Err() == nil {
			h.o.Logger.Error("admin: store failed", "path", r.URL.Path, "err", err)
		}
		p = storeFailed
	}
	return p
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	var text bytes.Buffer
	json.NewEncoder(&text).Encode(body) // body contains only values that JSON can express
	escaped := make([]byte, 0, text.Len())
	for _, r := range text.String() { // a key could change how a terminal shows the text
		switch {
		case r == '\n' || unicode.IsPrint(r):
			escaped = utf8.AppendRune(escaped, r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				escaped = fmt.Appendf(escaped, `\u%04x`, unit)
			}
		}
	}
	send(w, status, contentType, escaped)
}

func send(w http.ResponseWriter, status int, contentType string, text []byte) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(text) // an error means that the client is gone
}
