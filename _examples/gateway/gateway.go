package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/admin"
	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/weirprom"
)

// A gateway charges every request under all rules of a file.
type gateway struct {
	rules   *config.File
	limit   func(http.Handler) http.Handler
	admin   *admin.Handler
	metrics *weirprom.Collector
	logger  *slog.Logger
}

// newGateway returns a gateway with the rules that the file has now. Rules that are added
// to it later need a restart. A file that lacks one of the rules is not loaded.
func newGateway(path string, store weir.Store, logger *slog.Logger) (*gateway, error) {
	g := &gateway{metrics: weirprom.New(), logger: logger}
	var err error
	g.rules, err = config.Open(path, store, config.Options{
		Limiter: weir.Options{Observe: g.metrics.Observe, Logger: logger},
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range g.rules.Rules() {
		names = append(names, r.Name)
	}
	g.limit = g.rules.Handler(names...)
	g.admin, err = admin.New(store, admin.Options{Limiters: g.rules.Limiters, Logger: logger})
	return g, err
}

// public serves clients: the limited upstream, and at /rate_limit the quota of a client.
func (g *gateway) public(upstream *url.URL) http.Handler {
	limited := g.limit(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Host = r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // SetXForwarded appends to it
			r.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				g.logger.Error("upstream", "error", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	})
	// No ServeMux: it would clean paths, and the upstream should get them as they are.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/rate_limit" {
			g.admin.RateLimit(w, r)
			return
		}
		limited.ServeHTTP(w, r)
	})
}

// internal serves proxies (/auth), Prometheus (/metrics) and operators (/admin).
func (g *gateway) internal(password string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/auth", g.auth(false))
	mux.Handle("/auth/no-body", g.auth(true))
	registry := prometheus.NewRegistry()
	registry.MustRegister(g.metrics)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/admin/", operatorsOnly(password, http.StripPrefix("/admin", g.admin)))
	return mux
}

func operatorsOnly(password string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(password))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		if got := sha256.Sum256([]byte(given)); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="admin"`)
			http.Error(w, "a password is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// operator returns a command with which an operator uses /admin.
func operator(base, password, method, path string) string {
	return fmt.Sprintf("curl -u :%s -X %s '%s/admin%s'", password, method, base, path)
}
