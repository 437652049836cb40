package main

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/admin"
	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/overrides"
	weirwatch "github.com/seed83679106/weir/watch"
	"github.com/seed83679106/weir/weirprom"
)

// A gateway charges every request under all rules of a file. Without a file it serves only
// /metrics, /healthz and /readyz.
type gateway struct {
	rules    *config.File // nil without a file
	limit    func(http.Handler) http.Handler
	admin    *admin.Handler
	registry *prometheus.Registry
	health   health
	logger   *slog.Logger
}

// A backend is what newGateway needs besides the file.
type backend struct {
	store      weir.Store
	all        []weir.Store // the stores whose metrics are exported
	live       *overrides.Live
	failClosed bool // answer requests with 503 if the store fails
	logger     *slog.Logger
}

// newGateway returns a gateway with the rules of the file at path, or without rules if path
// is "".
func newGateway(path string, b backend) (*gateway, error) {
	g := &gateway{registry: prometheus.NewRegistry(), health: health{store: b.store}, logger: b.logger}
	metrics := weirprom.New(b.all...)
	top, bans, traffic := weirwatch.NewTop(1000), weirwatch.NewBans(1000), weirwatch.NewTraffic(100_000)
	g.registry.MustRegister(metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if path == "" {
		return g, nil
	}
	observe := func(e weir.Event) {
		metrics.Observe(e)
		top.Observe(e)
		bans.Observe(e)
		traffic.Observe(e)
	}
	o := weir.Options{Observe: observe, Logger: b.logger, NoFromContext: true}
	if b.failClosed {
		o.OnError = weir.FailClosed
	}
	var err error
	if g.rules, err = config.Open(path, b.store, config.Options{Overrides: b.live, Limiter: o}); err != nil {
		return nil, err
	}
	g.registry.MustRegister(weirprom.NewFile(g.rules))
	if g.limit, err = handlerOfAll(g.rules.HandlerOfAll); err != nil {
		return nil, err
	}
	g.admin, err = admin.New(b.store, admin.Options{
		Limiters: g.rules.Limiters, Overrides: b.live, File: g.rules, Who: operatorOf, Logger: b.logger,
		Top: top, Bans: bans, Traffic: traffic,
	})
	return g, err
}

// handlerOfAll returns the result of all, which is rules.HandlerOfAll. If HandlerOfAll panics
// because the headers of the rules differ, handlerOfAll returns the error. Any other panic is a
// bug, and is not recovered.
func handlerOfAll(all func() func(http.Handler) http.Handler) (h func(http.Handler) http.Handler, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			panic(p)
		case error:
			err = p
		default:
			panic(p)
		}
	}()
	return all(), nil
}

// proxy returns the handler for clients. It passes requests on to upstream if the rules allow
// them, and answers /rate_limit with the quota of the client.
func (g *gateway) proxy(upstream *url.URL) http.Handler {
	limited := g.limit(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Host = r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // SetXForwarded appends the peer
			r.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				g.logger.Error("weir: a request to the upstream failed", "error", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(g.logger.Handler(), slog.LevelWarn),
	})
	// A ServeMux would redirect paths that are not clean. The upstream must get them unchanged.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/rate_limit" {
			g.admin.RateLimit(w, r)
			return
		}
		limited.ServeHTTP(w, r)
	})
}

// internal returns the handler for proxies (/auth, if there are rules), Prometheus (/metrics)
// and orchestrators (/healthz, /readyz).
func (g *gateway) internal() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET /readyz", &g.health)
	if g.rules == nil {
		return mux
	}
	return g.auth(mux)
}
