// Package weirchi provides limiters in chi's r.Use with the route, and with the client address that
// chi's ClientIPFrom… middleware has found.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/go-chi/chi/v5"
//		"github.com/go-chi/chi/v5/middleware"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/contrib/weirchi"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		client := weir.FirstOf(weirchi.ClientIP(middleware.GetClientIPAddr), weir.ByIP())
//		limit := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.Join(client, weir.ByRoute()), algorithms.GCRA(100, time.Minute))
//		r := chi.NewRouter()
//		r.Use(middleware.ClientIPFromXFF("10.0.0.0/8"), weirchi.FindRoute, limit)
//		r.Get("/users/{id}", func(w http.ResponseWriter, r *http.Request) {})
//		log.Fatal(http.ListenAndServe("localhost:8080", r))
//	}
//
// Limiters in r.With do not need FindRoute, because chi has found the route before it calls them.
//
// This package does not import chi's package middleware, because that package registers
// net/http/pprof and expvar on [http.DefaultServeMux] when it is imported. If your program imports
// package middleware, as above, do not expose that mux to the public: /debug/pprof/cmdline shows
// the process's command line, including any passwords.
package weirchi

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/seed83679106/weir"
)

// FindRoute is middleware that finds the route before chi does, and sets r.Pattern as chi does
// after routing. If FindRoute runs before a limiter, [weir.ByRoute] works in r.Use, and so does the
// key "route" in limits files:
//
//	r.Use(weirchi.FindRoute, limiter.Handler)
//
// A subrouter with such a limiter needs FindRoute again, because chi sets r.Pattern to the pattern
// of the mount in between. Each FindRoute routes the request once more. Middleware that rewrites
// the path or the method, such as chi's StripSlashes, must run before FindRoute.
//
// If no route matches, r.Pattern is empty until the next handler returns, and in a subrouter it is
// the pattern of the mount. If there is no route for a HEAD request, the request has the route for
// GET, because chi's GetHead may follow.
func FindRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rctx := chi.RouteContext(r.Context())
		if rctx == nil || rctx.Routes == nil {
			next.ServeHTTP(w, r)
			return
		}
		// Before chi has routed the request, r.Pattern is the pattern of a mux around chi. In a
		// subrouter, it is the pattern of the mount.
		first := len(rctx.RoutePatterns) == 0
		if !first && !strings.HasSuffix(r.Pattern, "*") {
			next.ServeHTTP(w, r)
			return
		}
		found := find(rctx, r, first)
		switch outer := r.Pattern; {
		case found != "":
			r.Pattern = found
		case first && outer != "":
			r.Pattern = ""
			defer func() { r.Pattern = cmp.Or(r.Pattern, outer) }()
		}
		next.ServeHTTP(w, r)
	})
}

// find looks up the route of the whole path in the outermost chi router. Like chi, it prefers
// RoutePath and RouteMethod if middleware has set them. Below a mount, RoutePath contains only the
// rest of the path and is not used.
func find(rctx *chi.Context, r *http.Request, first bool) string {
	path := cmp.Or(r.URL.RawPath, r.URL.Path, "/")
	if first {
		path = cmp.Or(rctx.RoutePath, path)
	}
	method := cmp.Or(rctx.RouteMethod, r.Method)
	found := rctx.Routes.Find(chi.NewRouteContext(), method, path)
	if found == "" && method == http.MethodHead {
		found = rctx.Routes.Find(chi.NewRouteContext(), http.MethodGet, path)
	}
	if found == "/" {
		return found
	}
	return strings.TrimSuffix(found, "/") // chi removes the slash too
}

// ClientIP returns a key function for the client address that chi's ClientIPFrom… middleware has
// found. Pass it chi's function [github.com/go-chi/chi/v5/middleware.GetClientIPAddr]. As with
// [weir.ByIP], the key is an IPv4 address or the /64 network of an IPv6 address. If no such
// middleware ran, or if it found no address, the request has no key. Use FirstOf to give such
// requests another key:
//
//	weir.FirstOf(weirchi.ClientIP(middleware.GetClientIPAddr), weir.ByIP())
func ClientIP(get func(context.Context) netip.Addr) weir.KeyFunc {
	return weir.ByAddr(ClientAddr(get), 32, 64)
}

// ClientAddr returns a function that finds the client's address in the same way as [ClientIP]. If
// there is no address, the function returns false. Pass the function to [weir.ByAddr] for networks
// of other sizes, or to [weir.AddrList].
func ClientAddr(get func(context.Context) netip.Addr) func(r *http.Request) (client netip.Addr, ok bool) {
	if get == nil {
		panic("weirchi: ClientAddr: get is nil")
	}
	return func(r *http.Request) (netip.Addr, bool) {
		client := get(r.Context())
		return client, client.IsValid()
	}
}
