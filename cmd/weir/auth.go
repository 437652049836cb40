package main

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir/internal/sparse"
)

// The paths that proxies call. After envoyPrefix, Envoy's ext_authz filter sends the path of the
// original request, whose method and host it sends, too.
const (
	authPath    = "/auth"
	nginxPath   = "/auth/nginx"
	nginxNoBody = "/auth/nginx/no-body"
	envoyPrefix = "/auth/envoy"

	authPaths = "call /auth/nginx from nginx, /auth/envoy from Envoy, and /auth from other proxies"
)

// auth handles the requests by which a proxy checks whether to forward a client's request. The
// answer is 200, or a refusal with the header fields and the body for the client, in the form that
// the proxy can use: see answer. All other requests go to next.
//
// The proxy must send the address of the client in X-Forwarded-For. If the proxy's own address is
// not listed under trusted-proxies in the file, the answer is 400.
//
// The gateway does not receive bodies, so a content-length cost is always 0. With free-preflights,
// a preflight costs nothing only if it has no body. Because the gateway cannot know whether an
// OPTIONS request has a body, it charges preflights, unless nginx knows that a request has no body
// and calls /auth/nginx/no-body, as nginx.conf does.
func (g *gateway) auth(next *http.ServeMux) http.Handler {
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
	}))
	distrust, incomplete := sparse.Logger(g.logger), sparse.Logger(g.logger)
	unknown, tooLarge := sparse.Logger(g.logger), sparse.Logger(g.logger)
	var misformed sync.Once
	// A ServeMux would redirect paths that are not clean, such as /auth/envoy//a.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answer{ResponseWriter: w, form: asIs, log: tooLarge}
		var o *http.Request
		missing := ""
		switch path := r.URL.Path; {
		case path == envoyPrefix, strings.HasPrefix(path, envoyPrefix+"/"):
			a.form = forEnvoy
			o, missing = original(r, r.Method, strings.TrimPrefix(r.RequestURI, envoyPrefix), r.Host)
		case path == nginxPath, path == nginxNoBody:
			a.form = forNginx
			o, missing = forwarded(r)
		case path == authPath:
			o, missing = forwarded(r)
		default:
			likely := g.wrongPath(r, next)
			if likely == "" {
				next.ServeHTTP(w, r)
				return
			}
			unknown.Warn("weir: call of a proxy to an unknown path refused", "likely", likely, "fix", authPaths)
			g.reject(w, "path", http.StatusNotFound, "unknown path; "+authPaths)
			return
		}
		switch {
		case !g.trusts(r.RemoteAddr):
			distrust.Warn("weir: proxy not in trusted-proxies refused", "addr", r.RemoteAddr,
				"fix", "if it is your proxy, add its address to trusted-proxies in the limits file")
			g.reject(w, "proxy", http.StatusBadRequest, "your address is not in trusted-proxies")
			return
		case missing != "":
			incomplete.Warn("weir: request of a proxy without a header field refused", "field", missing,
				"fix", "set the field in the proxy, as the sample configurations do")
			g.reject(w, "field", http.StatusBadRequest, "the header field "+missing+" is missing")
			return
		case a.form == forNginx:
			o.Header["Accept"] = []string{problemJSON}
		case a.form == asIs && (!r.ProtoAtLeast(1, 1) || strings.HasPrefix(r.URL.RawQuery, "refuse=")):
			misformed.Do(func() {
				g.logger.Warn("weir: refusals may have a form that the proxy cannot use", "likely",
					"it is nginx, because it speaks HTTP/1.0 or asks for refuse=403, as an old nginx.conf does", "effect", "nginx answers 500 instead of 429", "fix", authPaths)
			})
		}
		if r.URL.Path != nginxNoBody {
			o.TransferEncoding = []string{"chunked"} // the request may have a body
		}
		limited.ServeHTTP(&a, o)
		a.end()
	})
}

// newRejected returns the metric of calls of proxies that are not answered by the limits. No other
// metric counts these calls.
func newRejected() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_auth_rejected_total",
		Help: "Calls of /auth with an error of the proxy's configuration, which were answered with 400 or 404."}, []string{"reason"})
	for _, reason := range []string{"proxy", "field", "path"} {
		c.WithLabelValues(reason)
	}
	return c
}

// reject sends the answer to a misconfigured proxy.
func (g *gateway) reject(w http.ResponseWriter, reason string, status int, text string) {
	g.rejected.WithLabelValues(reason).Inc()
	http.Error(w, text, status)
}

// wrongPath returns why a proxy probably calls a path that neither auth nor mux has, or "" if r is
// another request.
func (g *gateway) wrongPath(r *http.Request, mux *http.ServeMux) string {
	if strings.HasPrefix(strings.ToLower(r.URL.Path), authPath) {
		return "the path begins like /auth, but has a typo"
	}
	known := func(method string) bool {
		_, pattern := mux.Handler(&http.Request{Method: method, Host: r.Host, URL: r.URL})
		return pattern != ""
	}
	if !known(http.MethodGet) && !known(http.MethodPost) && len(r.Header["X-Forwarded-For"]) > 0 && g.trusts(r.RemoteAddr) {
		return "the proxy sends another path: that of the client, or the location of nginx, whose proxy_pass names no path"
	}
	return ""
}

func (g *gateway) trusts(peer string) bool {
	peerPort, _ := netip.ParseAddrPort(peer) // no prefix contains the zero Addr
	addr := peerPort.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(g.rules.TrustedProxies(), func(p netip.Prefix) bool { return p.Contains(addr) })
}

// forwarded returns the client's request, which Caddy, Traefik, and nginx with our nginx.conf
// describe in header fields. If a header field is missing, forwarded returns the name of the field
// and no request.
func forwarded(r *http.Request) (o *http.Request, missing string) {
	const method, uri, host = "X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"
	for _, name := range []string{method, uri} {
		if r.Header.Get(name) == "" {
			return nil, name
		}
	}
	return original(r, r.Header.Get(method), r.Header.Get(uri), r.Header.Get(host))
}

// original returns a request with the given method, URI and host, and with the header fields of r.
// If uri is an absolute URL, its host replaces the given host. If neither contains a host, the host
// of r is kept. If X-Forwarded-For is missing, original returns the name of that field and a nil
// request.
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
