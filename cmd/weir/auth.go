package main

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// A dialect is how proxies describe the request about which they ask. The path says which:
// a proxy passes on the fields that a client made up if it does not write them itself, so
// no field may decide.
type dialect struct {
	method, uri, host string // fields; the URI may be a whole URL
}

var (
	// forwarded is what Caddy and Traefik do by themselves, and nginx by nginx.conf.
	forwarded = dialect{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"}

	// ingressNginx is what the controller ingress-nginx does for the annotation auth-url.
	ingressNginx = dialect{"X-Original-Method", "X-Original-Url", ""}
)

// envoyPrefix begins the paths of Envoy's ext_authz filter. What follows is the path of the
// request, and method and host are its own.
const envoyPrefix = "/auth/envoy"

// auth answers a proxy that asks whether it may pass a request on: 200, or 429 with the
// header fields and the body for the client. nginx accepts only 401 and 403 as a refusal,
// so nginx.conf asks /auth?refuse=403 and turns a 403 into a 429. Other paths go to next.
//
// X-Forwarded-For has the address of the client. Only addresses in trusted-proxies of the
// file get an answer.
//
// The gateway does not see bodies, so the cost content-length is 0. It also cannot tell
// whether an OPTIONS request has a body. One without a body may be a preflight, which is
// free of charge; so preflights are charged, unless the proxy asks /auth/no-body because
// it knows that there is none, as nginx.conf does.
func (g *gateway) auth(next http.Handler) http.Handler {
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
	}))
	// No ServeMux: it would redirect Envoy from paths that are not clean.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o *http.Request
		missing := ""
		switch path := r.URL.Path; {
		case path == "/auth", path == "/auth/no-body":
			o, missing = forwarded.original(r)
		case path == "/auth/ingress-nginx":
			o, missing = ingressNginx.original(r)
		case path == envoyPrefix, strings.HasPrefix(path, envoyPrefix+"/"):
			o, missing = original(r, r.Method, strings.TrimPrefix(r.RequestURI, envoyPrefix), r.Host)
		default:
			next.ServeHTTP(w, r)
			return
		}
		if !g.trusts(r.RemoteAddr) {
			g.logger.Warn("weir: an address that is not in trusted-proxies asked", "addr", r.RemoteAddr, "path", r.URL.Path)
			http.Error(w, "your address is not in trusted-proxies", http.StatusBadRequest)
			return
		}
		if missing != "" {
			http.Error(w, missing+" is missing", http.StatusBadRequest)
			return
		}
		refusal, ok := refusalStatus(r)
		if !ok {
			http.Error(w, "refuse is 429 or 403", http.StatusBadRequest)
			return
		}
		if r.URL.Path != "/auth/no-body" {
			o.TransferEncoding = []string{"chunked"} // it may have a body
		}
		limited.ServeHTTP(&refuser{w, refusal}, o)
	})
}

// refusalStatus returns the status by which the proxy knows a refusal. Of Envoy the query is
// that of the client.
func refusalStatus(r *http.Request) (status int, ok bool) {
	if strings.HasPrefix(r.URL.Path, envoyPrefix) {
		return http.StatusTooManyRequests, true
	}
	switch r.URL.Query().Get("refuse") {
	case "", "429":
		return http.StatusTooManyRequests, true
	case "403":
		return http.StatusForbidden, true
	}
	return 0, false
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

// original returns the request that a proxy asks about, or the name of a field that is
// missing.
func (d dialect) original(r *http.Request) (o *http.Request, missing string) {
	for _, name := range []string{d.method, d.uri} {
		if r.Header.Get(name) == "" {
			return nil, name
		}
	}
	host := ""
	if d.host != "" {
		host = r.Header.Get(d.host)
	}
	return original(r, r.Header.Get(d.method), r.Header.Get(d.uri), host)
}

// original returns a request with the header fields of r.
func original(r *http.Request, method, uri, host string) (o *http.Request, missing string) {
	const clients = "X-Forwarded-For"
	if r.Header.Get(clients) == "" {
		return nil, clients
	}
	o = r.Clone(r.Context())
	o.Method, o.RequestURI = method, uri
	var err error
	if o.URL, err = url.ParseRequestURI(uri); err != nil {
		o.URL = &url.URL{Path: uri} // it is limited all the same
	}
	if o.URL.Host != "" { // as of ingress-nginx
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

// A refuser replaces the status 429.
type refuser struct {
	http.ResponseWriter
	status int
}

func (w *refuser) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		status = w.status
	}
	w.ResponseWriter.WriteHeader(status)
}
