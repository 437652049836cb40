package keys

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/go-chi/chi/v5"
	"github.com/seed83679106/weir"
)

// ByPathValue uses the value of a wildcard in the route as the key. It calls
// [http.Request.PathValue], which works with net/http and with chi. The value exists only after the
// router has run, so with chi, use r.With, not r.Use, on the router that matches the route. If the
// value is missing or empty, the request has no key.
//
// The key is the decoded value, so /users/alice and /users/alic%65 have the same key. If a value
// cannot be decoded, the key is the encoded value.
func ByPathValue(name string) weir.KeyFunc {
	if name == "" {
		panic("keys: ByPathValue: name is empty")
	}
	return func(r *http.Request) (string, bool) { return nonempty(pathValue(r, name)) }
}

// pathValue returns the decoded path value. It decodes only values that chi has cut out of
// RawPath. The mux of net/http sets decoded values, and so does chi if there is no RawPath
// or if StripSlashes makes it route by Path.
func pathValue(r *http.Request, name string) string {
	v := r.PathValue(name)
	if r.URL.RawPath == "" || !strings.Contains(v, "%") {
		return v
	}
	if rctx := chi.RouteContext(r.Context()); rctx == nil || rctx.URLParam(name) != v {
		return v
	}
	for part := range strings.SplitSeq(v, "/") { // a middleware may have removed slashes between the parts
		if !strings.Contains(r.URL.RawPath, part) {
			return v
		}
	}
	if decoded, err := url.PathUnescape(v); err == nil {
		return decoded
	}
	return v
}

// ByRoute uses the route as the key: the pattern that matched the request, such as "/users/{id}".
// The key does not include the method, and includes the host only with net/http. To count methods
// such as GET and POST separately, combine ByRoute and [ByMethod]: see [weir.Join].
//
// With chi, ByRoute works in any middleware. In middleware added by r.Use, it looks up the route
// that will match, so the request is routed twice. With net/http, middleware that uses ByRoute must
// wrap a route's handler, not the mux.
//
// Requests that match no route share the key "unmatched". If the middleware wraps a net/http mux,
// all requests have this key. If none of the first 200 requests has a route, a warning is logged to
// [slog.Default].
func ByRoute() weir.KeyFunc {
	var unmatched atomic.Int32 // requests, until one has a route; then firstRequests or a little more
	return func(r *http.Request) (string, bool) {
		found := route(r)
		switch {
		case unmatched.Load() >= firstRequests:
		case found != "":
			unmatched.Store(firstRequests)
		case unmatched.Add(1) == firstRequests:
			slog.Warn("keys: route missing in each of the first 200 requests", "function", "keys.ByRoute", "effect", "they share the key unmatched",
				"likely", "ByRoute is used around a mux of net/http, which finds the route only later", "fix", "put the limiter around the handler of each route")
		}
		return cmp.Or(found, "unmatched"), true
	}
}

// firstRequests is how many requests without a route ByRoute sees before it warns.
const firstRequests = 200

func route(r *http.Request) string {
	pattern := r.Pattern
	rctx := chi.RouteContext(r.Context())
	if rctx != nil && rctx.Routes != nil {
		// Before chi has routed, r.Pattern is the pattern of a mux around chi. In a
		// sub-router, it is the pattern of the mount.
		before := len(rctx.RoutePatterns) == 0
		if before || strings.HasSuffix(pattern, "*") {
			found := findRoute(rctx, r, before)
			if before || found != "" {
				return found
			}
		}
	}
	if i := strings.IndexAny(pattern, " \t"); i > 0 && pattern[0] != '/' {
		return strings.TrimLeft(pattern[i:], " \t") // the pattern is "GET /x"; patterns of chi begin with a slash
	}
	return pattern
}

// findRoute asks the outermost chi router for the route of the whole path. Middlewares
// may have set RoutePath and RouteMethod, which chi prefers. Below a mount, RoutePath is
// only the rest of the path and is not used.
func findRoute(rctx *chi.Context, r *http.Request, before bool) string {
	path := cmp.Or(r.URL.RawPath, r.URL.Path, "/")
	if before {
		path = cmp.Or(rctx.RoutePath, path)
	}
	method := cmp.Or(rctx.RouteMethod, r.Method)
	found := rctx.Routes.Find(chi.NewRouteContext(), method, path)
	if found == "" && method == http.MethodHead { // chi's GetHead may follow
		found = rctx.Routes.Find(chi.NewRouteContext(), http.MethodGet, path)
	}
	if found == "/" {
		return found
	}
	return strings.TrimSuffix(found, "/") // as r.Pattern has it after routing
}
