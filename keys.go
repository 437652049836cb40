package weir

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
)

// A KeyFunc says whose quota a request spends. Requests with the same key share
// it. Where ok is false, the rule does not apply to the request and does not
// limit it. A KeyFunc must be safe for concurrent use.
//
// The key may be a substring of the request: who keeps it clones it. It may be as
// long as net/http lets clients write; a Limiter goes on with its [StoredKey]. Key
// functions panic on a mistake in their arguments, as chi does.
type KeyFunc func(r *http.Request) (key string, ok bool)

// The keys of requests that lack what is asked for, where leaving the rule out
// would let a client escape it. No address, pattern or method equals them.
const (
	noAddress   = "unknown"
	noRoute     = "unmatched"
	otherMethod = "other"
)

// ByHeader limits each value of a header field, the first if there are several.
// "Host" is the host that the request asks for, without what a client could vary at
// will: in lower case, without its port whichever that is, and without dots at its
// end. An IPv6 address stays in its brackets and is written in the shortest way.
//
// Where the field is missing or empty, the rule does not apply: a client that
// leaves it out is not limited by it. [FirstOf] names what counts instead.
//
// A key that a client can choose freely lets it choose a fresh quota each time,
// or spend that of somebody else. Use it for values that were verified before,
// or that a proxy sets and clients cannot. Secrets are for [Hashed].
func ByHeader(name string) KeyFunc {
	if name == "" {
		panic("weir: ByHeader: empty name")
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, bool) {
		if name == "Host" { // net/http keeps it apart; that of the URL is for requests that go out
			return nonempty(hostname(cmp.Or(r.Host, r.URL.Host)))
		}
		return nonempty(r.Header.Get(name))
	}
}

// hostname returns a host in the one form that ByHeader knows.
func hostname(host string) string {
	if strings.HasPrefix(host, "[") {
		address, _, _ := strings.Cut(host[1:], "]")
		if addr, err := netip.ParseAddr(address[:min(len(address), 64)]); err == nil {
			return "[" + addr.String() + "]"
		}
		return strings.ToLower(host[:1+len(address)])
	}
	host, _, _ = strings.Cut(host, ":")
	return strings.ToLower(strings.TrimRight(host, "."))
}

// ByCookie limits each value of a cookie. What is said of [ByHeader] is true of
// it: without the cookie the rule does not apply, and the client chooses it.
func ByCookie(name string) KeyFunc {
	if name == "" {
		panic("weir: ByCookie: empty name")
	}
	return func(r *http.Request) (string, bool) {
		c, err := r.Cookie(name)
		if err != nil {
			return "", false
		}
		return nonempty(c.Value)
	}
}

// ByBasicAuthUser limits each user name of HTTP Basic authentication. Without
// one the rule does not apply. The password is not checked: before something
// has, whoever sends a name spends its quota, which bounds how often passwords
// are guessed and lets a stranger lock the user out. Join it with [ByIP] where
// the second is worse.
func ByBasicAuthUser() KeyFunc {
	return func(r *http.Request) (string, bool) {
		user, _, _ := r.BasicAuth()
		return nonempty(user)
	}
}

// ByPathValue limits each value of a wildcard in the route, as net/http and chi set
// [http.Request.PathValue]. It is there once the router has run: in r.With, not in
// r.Use, of the router that matches it. Before, and where it is empty, the rule does
// not apply.
//
// The value is decoded: /users/alice and /users/alic%65 are one key. net/http's mux
// decodes it by itself; chi does not where the client has escaped more than it had
// to, and its handlers see "alic%65". What can't be decoded is the key as it is.
func ByPathValue(name string) KeyFunc {
	if name == "" {
		panic("weir: ByPathValue: empty name")
	}
	return func(r *http.Request) (string, bool) { return nonempty(pathValue(r, name)) }
}

// pathValue decodes what chi cut out of RawPath, and nothing twice: net/http's mux
// has decoded its values, chi routes on Path if there is no RawPath, and its
// StripSlashes makes it do so even if there is.
func pathValue(r *http.Request, name string) string {
	v := r.PathValue(name)
	if r.URL.RawPath == "" || !strings.Contains(v, "%") {
		return v
	}
	if rctx := chi.RouteContext(r.Context()); rctx == nil || rctx.URLParam(name) != v {
		return v
	}
	for part := range strings.SplitSeq(v, "/") { // what lies between them may have been cleaned
		if !strings.Contains(r.URL.RawPath, part) {
			return v
		}
	}
	if decoded, err := url.PathUnescape(v); err == nil {
		return decoded
	}
	return v
}

// ByRoute limits each route: the pattern that matched, such as "/users/{id}".
// The method is no part of it, with either router, and for net/http the host is;
// Join it with [ByMethod] to tell GET from POST.
//
// With chi it works everywhere, also in r.Use, where it looks up the route that
// will match, at the price of routing twice; a HEAD that no route is for is one of
// the route for GET, because middleware.GetHead may follow. With net/http it must
// stand behind the mux.
//
// It fails towards limiting: requests that match no route, and all requests in
// front of a net/http mux, share one key.
func ByRoute() KeyFunc {
	return func(r *http.Request) (string, bool) {
		return cmp.Or(route(r), noRoute), true
	}
}

func route(r *http.Request) string {
	pattern := r.Pattern
	rctx := chi.RouteContext(r.Context())
	if rctx != nil && rctx.Routes != nil {
		// chi has not routed yet, and r.Pattern is of a mux around it; or it has
		// come to a sub-router, and r.Pattern is where that is mounted.
		before := len(rctx.RoutePatterns) == 0
		if before || strings.HasSuffix(pattern, "*") {
			found := findRoute(rctx, r, before)
			if before || found != "" {
				return found
			}
		}
	}
	if i := strings.IndexAny(pattern, " \t"); i > 0 && pattern[0] != '/' {
		return strings.TrimLeft(pattern[i:], " \t") // "GET /x"; chi's begin with a slash
	}
	return pattern
}

// findRoute asks chi's outermost router, from the start of the path, as it
// would route: RoutePath and RouteMethod are what middlewares made of the
// request. Below a mount RoutePath is what the mount left and of no use.
func findRoute(rctx *chi.Context, r *http.Request, before bool) string {
	path := cmp.Or(r.URL.RawPath, r.URL.Path, "/")
	if before {
		path = cmp.Or(rctx.RoutePath, path)
	}
	method := cmp.Or(rctx.RouteMethod, r.Method)
	found := rctx.Routes.Find(chi.NewRouteContext(), method, path)
	if found == "" && method == http.MethodHead { // chi's GetHead may stand behind
		found = rctx.Routes.Find(chi.NewRouteContext(), http.MethodGet, path)
	}
	if found == "/" {
		return found
	}
	return strings.TrimSuffix(found, "/") // as r.Pattern has it after routing
}

// ByMethod limits each method of HTTP. Any that net/http has no name for share
// one key, so that nobody gets a fresh quota by making one up.
func ByMethod() KeyFunc {
	return func(r *http.Request) (string, bool) {
		switch r.Method {
		case "": // a request that goes out
			return http.MethodGet, true
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, true
		}
		return otherMethod, true
	}
}

// ByContext limits each value that the request's context has for key: the user
// whom an authentication before it found. The value is a [fmt.Stringer], or of
// a string or integer type. Where it is absent, empty or of another type, the
// rule does not apply.
func ByContext(key any) KeyFunc {
	if key == nil {
		panic("weir: ByContext: nil key")
	}
	return func(r *http.Request) (string, bool) {
		value := r.Context().Value(key)
		v := reflect.ValueOf(value)
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return "", false // its String may panic
		}
		s, isStringer := value.(fmt.Stringer)
		switch {
		case isStringer:
			return nonempty(s.String())
		case v.Kind() == reflect.String:
			return nonempty(v.String())
		case v.CanInt():
			return strconv.FormatInt(v.Int(), 10), true
		case v.CanUint():
			return strconv.FormatUint(v.Uint(), 10), true
		}
		return "", false
	}
}

// Global limits all requests together: they share one key, the empty one.
func Global() KeyFunc { return global }

func global(*http.Request) (string, bool) { return "", true }

// Join limits each combination of keys. It applies where all of them do. The
// keys are joined as netstrings, "9:192.0.2.1,3:GET,", so that no two
// combinations are alike whatever a client puts in them.
// See https://cr.yp.to/proto/netstrings.txt.
func Join(keys ...KeyFunc) KeyFunc {
	keys = checked("Join", keys)
	return func(r *http.Request) (string, bool) {
		var few [8]string // on the stack; more than eight cost a second allocation
		parts, size := few[:0], 0
		for _, key := range keys {
			part, ok := key(r)
			if !ok {
				return "", false
			}
			parts = append(parts, part)
			size += len("9999999999:,") + len(part)
		}
		var b strings.Builder
		b.Grow(size)
		var digits [20]byte
		for _, part := range parts {
			b.Write(strconv.AppendInt(digits[:0], int64(len(part)), 10))
			b.WriteByte(':')
			b.WriteString(part)
			b.WriteByte(',')
		}
		return b.String(), true
	}
}

// FirstOf limits by the first of keys that applies, and does not apply where
// none does. The position of that one is part of the key, "0:" and so on: an API
// key that looks like an address does not spend the quota of that address.
//
// With a key that clients can leave out or make up, put one last that they
// cannot: FirstOf(ByContext(userKey{}), ByIP()).
func FirstOf(keys ...KeyFunc) KeyFunc {
	keys = checked("FirstOf", keys)
	return func(r *http.Request) (string, bool) {
		for i, key := range keys {
			if k, ok := key(r); ok {
				return strconv.Itoa(i) + ":" + k, true
			}
		}
		return "", false
	}
}

// Hashed replaces a key by its HMAC-SHA256, cut to 128 bits (RFC 2104, section
// 5): 22 letters, digits, "-" and "_". Who reads the store then learns no API
// keys, and cannot try guesses without secret. Processes that share a store
// share the secret; with another one every key starts anew. It applies where
// key does.
func Hashed(secret []byte, key KeyFunc) KeyFunc {
	if len(secret) == 0 {
		panic("weir: Hashed: empty secret")
	}
	checked("Hashed", []KeyFunc{key})
	secret = slices.Clone(secret)
	type hasher struct {
		mac hash.Hash
		buf []byte // what goes through an interface escapes; here it does so once
	}
	pool := sync.Pool{New: func() any { return &hasher{mac: hmac.New(sha256.New, secret)} }}
	return func(r *http.Request) (string, bool) {
		k, ok := key(r)
		if !ok {
			return "", false
		}
		h := pool.Get().(*hasher)
		defer pool.Put(h)
		h.mac.Reset()
		h.buf = append(h.buf[:0], k...)
		h.mac.Write(h.buf)
		h.buf = h.mac.Sum(h.buf[:0])
		return base64.RawURLEncoding.EncodeToString(h.buf[:16]), true
	}
}

// nonempty keeps an empty value from becoming the key of Global.
func nonempty(key string) (string, bool) { return key, key != "" }

func checked(name string, keys []KeyFunc) []KeyFunc {
	if len(keys) == 0 {
		panic("weir: " + name + ": no keys")
	}
	for i, key := range keys {
		if key == nil {
			panic(fmt.Sprintf("weir: %s: key %d is nil", name, i))
		}
	}
	return slices.Clone(keys)
}
