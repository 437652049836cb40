package main

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir/internal/sparse"
)

// envoyPrefix begins the paths that Envoy's ext_authz filter requests. The rest of the path is
// the path of the original request. Envoy sends the method and the host of that request.
const envoyPrefix = "/auth/envoy"

// auth answers a proxy whether to forward a request: 200, or a refusal with the
// header fields and the body for the client. An answer has the form that the proxy can use:
// see answer. All other requests go to next.
//
// The proxy must send the address of the client in X-Forwarded-For. A proxy whose own
// address is not in trusted-proxies of the file gets a 400.
//
// The gateway does not see bodies, so the cost content-length is 0. The gateway also cannot know
// whether an OPTIONS request has a body, and with free-preflights a preflight is free only without
// a body. So the gateway charges preflights, unless the proxy knows that a request has no body and
// calls /auth/no-body, as nginx.conf does.
func (g *gateway) auth(next http.Handler) http.Handler {
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
	}))
	distrust, incomplete, tooLarge := sparse.Logger(g.logger), sparse.Logger(g.logger), sparse.Logger(g.logger)
	// A ServeMux would redirect paths that are not clean, such as /auth/envoy//a.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answer{ResponseWriter: w, form: asIs, log: tooLarge}
		var o *http.Request
		missing := ""
		switch path := r.URL.Path; {
		case path == "/auth", path == "/auth/no-body":
			o, missing = forwarded(r)
		case path == envoyPrefix, strings.HasPrefix(path, envoyPrefix+"/"):
			a.form = forEnvoy
			o, missing = original(r, r.Method, strings.TrimPrefix(r.RequestURI, envoyPrefix), r.Host)
		default:
			next.ServeHTTP(w, r)
			return
		}
		if !g.trusts(r.RemoteAddr) {
			distrust.Warn("weir: proxy not in trusted-proxies refused", "addr", r.RemoteAddr)
			http.Error(w, "your address is not in trusted-proxies", http.StatusBadRequest)
			return
		}
		if missing != "" {
			incomplete.Warn("weir: request of a proxy without a header field refused", "field", missing)
			http.Error(w, "the header field "+missing+" is missing", http.StatusBadRequest)
			return
		}
		if a.form != forEnvoy { // Envoy sends the query of the client
			switch r.URL.Query().Get("refuse") {
			case "", "429":
			case "403":
				a.form = forNginx
				o.Header["Accept"] = []string{problemJSON}
			default:
				http.Error(w, "the parameter refuse must be 429 or 403", http.StatusBadRequest)
				return
			}
		}
		if r.URL.Path != "/auth/no-body" {
			o.TransferEncoding = []string{"chunked"} // the request may have a body
		}
		limited.ServeHTTP(&a, o)
		a.end()
	})
}

func (g *gateway) trusts(peer string) bool {
	addr, err := netip.ParseAddrPort(peer)
	if err != nil {
		return false
	}
	for _, p := range g.rules.TrustedProxies() {
		if p.Contains(addr.Addr().Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// forwarded returns the request that Caddy and Traefik, and nginx with our nginx.conf, describe in
// header fields. If a header field is missing, forwarded returns the name of the field and no request.
func forwarded(r *http.Request) (o *http.Request, missing string) {
	const method, uri, host = "X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"
	for _, name := range []string{method, uri} {
		if r.Header.Get(name) == "" {
			return nil, name
		}
	}
	return original(r, r.Header.Get(method), r.Header.Get(uri), r.Header.Get(host))
}

// original returns a request with the given method, URI and host, and with the header fields
// of r. If uri is a whole URL, its host takes the place of the given host. If neither has a host,
// the host of r stays. If X-Forwarded-For is missing, original returns that name and no request.
func original(r *http.Request, method, uri, host string) (o *http.Request, missing string) {
	const clients = "X-Forwarded-For"
	if r.Header.Get(clients) == "" {
		return nil, clients
	}
	o = r.Clone(r.Context())
	o.Method, o.RequestURI = method, uri
	var err error
	if o.URL, err = url.ParseRequestURI(uri); err != nil {
		o.URL = &url.URL{Path: uri} // a URI that cannot be parsed does not escape the limits
	}
	if o.URL.Host != "" { // the client sent a whole URL to the proxy
		host = o.URL.Host
		o.URL.Scheme, o.URL.Host = "", ""
		o.RequestURI = o.URL.RequestURI()
	}
	if host != "" {
		o.Host = host
	}
	o.Body, o.ContentLength = http.NoBody, 0
	return o, ""
}
