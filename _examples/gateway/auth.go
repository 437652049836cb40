package main

import (
	"net/http"
	"net/netip"
	"net/url"
)

// auth answers a proxy that asks whether it may pass a request on: 200, or 429 with the
// header fields and the body for the client. nginx accepts only 401 and 403 as a refusal,
// so nginx.conf asks /auth?refuse=403 and turns a 403 into a 429.
//
// The proxy describes the request in X-Forwarded-Method, -Uri, -Host and -For. Traefik and
// Caddy do so by themselves, nginx by nginx.conf. Only addresses in trusted-proxies of the
// file get an answer.
//
// The gateway does not see bodies, so the cost content-length is 0. It also cannot tell
// whether an OPTIONS request has a body. One without a body may be a preflight, which is
// free of charge; so preflights are charged, unless the proxy asks /auth/no-body because
// it knows that there is none, as nginx.conf does.
func (g *gateway) auth(noBody bool) http.Handler {
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal := http.StatusTooManyRequests
		switch r.URL.Query().Get("refuse") {
		case "", "429":
		case "403":
			refusal = http.StatusForbidden
		default:
			http.Error(w, "refuse is 429 or 403", http.StatusBadRequest)
			return
		}
		if !g.trusts(r.RemoteAddr) {
			g.logger.Warn("/auth was called from an address that is not in trusted-proxies", "addr", r.RemoteAddr)
			http.Error(w, "your address is not in trusted-proxies", http.StatusBadRequest)
			return
		}
		for _, name := range []string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-For"} {
			if r.Header.Get(name) == "" {
				http.Error(w, name+" is missing", http.StatusBadRequest)
				return
			}
		}
		o := original(r)
		if !noBody {
			o.TransferEncoding = []string{"chunked"} // it may have a body
		}
		limited.ServeHTTP(&refuser{w, refusal}, o)
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

// original returns the request that a proxy asks about.
func original(r *http.Request) *http.Request {
	o := r.Clone(r.Context())
	o.Method, o.RequestURI = r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Uri")
	if host := r.Header.Get("X-Forwarded-Host"); host != "" {
		o.Host = host
	}
	var err error
	if o.URL, err = url.ParseRequestURI(o.RequestURI); err != nil {
		o.URL = &url.URL{Path: o.RequestURI} // it is limited all the same
	}
	o.Body, o.ContentLength = http.NoBody, 0
	return o
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
