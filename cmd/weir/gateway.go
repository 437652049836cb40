package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
	weirwatch "github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/ops/weirprom"
)

// A gateway charges every request under all rules of a file. Without a file, it serves
// only /metrics, /healthz and /readyz.
type gateway struct {
	rules    *config.File // nil without a file
	limit    func(http.Handler) http.Handler
	admin    *admin.Handler
	registry *prometheus.Registry
	metrics  *weirprom.Collector
	rejected *prometheus.CounterVec
	reserved *reservations
	usage    *usageReader
	health   health
	o        *options
	logger   *slog.Logger
}

// adapt updates everything that depends on the rules in force, and logs which of these rules do not
// work with the service.
func (g *gateway) adapt() {
	rules := g.rules.Rules()
	g.metrics.Expect(rules...)
	g.usage.follow(rules)
	for _, m := range misfits(g.rules) {
		if g.o.upstream == "" || !m.forwardAuth {
			m.log(g.logger)
		}
	}
}

// Until ctx ends, follow reloads the rules at each signal from hup, and calls adapt after each
// reload.
func (g *gateway) follow(ctx context.Context, hup <-chan os.Signal) {
	for seen := g.rules.Version(); ; {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			if changes, err := g.rules.Reload(); err != nil {
				g.logger.Error("weir: rules not reloaded", "err", err)
			} else {
				g.logger.Info("weir: rules reloaded", "changes", len(changes), "version", g.rules.Version())
			}
		case <-time.After(time.Second):
		}
		if now := g.rules.Version(); now != seen {
			seen = now
			g.adapt()
		}
	}
}

// newGateway returns a gateway with the rules of the file that o names, or without rules if o names
// no file.
func newGateway(o *options, st *stores, live *overrides.Live, logger *slog.Logger) (*gateway, error) {
	g := &gateway{registry: prometheus.NewRegistry(), metrics: weirprom.New(st.all...), health: newHealth(logger),
		usage: newUsageReader(logger), o: o, logger: logger}
	g.registry.MustRegister(g.metrics, g.health.inMemory, buildInfo(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.limits == "" {
		return g, nil
	}
	refusals := func(weir.Event) {}
	if o.logRefusals > 0 {
		refusals = weirwatch.Log(logger, o.logRefusals, nil) // without keys, which may be addresses of people
	}
	count := func(e weir.Event) {
		g.metrics.Observe(e)
		o.recorder.Observe(e)
		refusals(e)
	}
	diagnose := weirwatch.Diagnose(logger, nil) // adapt logs which keys clients can choose
	observe := func(e weir.Event) {
		count(e)
		diagnose(e)
	}
	co := config.Options{Overrides: live, Limiter: weir.Options{Observe: observe, Logger: logger, NoFromContext: true}}
	if o.redisDown.value == downClosed {
		co.Limiter.OnError = weir.FailClosed
	}
	if o.keySecret != "" {
		co.Secret = []byte(o.keySecret)
	}
	var err error
	if g.rules, g.limit, err = openRules(o.limits, st.store, co); err != nil {
		return nil, err
	}
	g.rejected = newRejected()
	g.registry.MustRegister(weirprom.NewFile(g.rules), g.rejected)
	g.adapt()
	if g.reserved, err = newReservations(g, st.store, count); err != nil {
		return nil, err
	}
	g.admin, err = admin.New(st.store, admin.Options{
		Recorder: o.recorder, Limiters: g.rules.Limiters, Overrides: live, File: g.rules, Who: ops.Operator, Logger: logger,
	})
	return g, err
}

// openRules loads a rules file, and returns it together with the middleware that charges all of its
// rules. The commands serve and check both call openRules, so that they accept the same files.
func openRules(path string, store weir.Store, o config.Options) (rules *config.File,
	limit func(http.Handler) http.Handler, err error) {
	o.Costs = costs
	if rules, err = config.Open(path, store, o); err == nil {
		limit, err = rules.HandlerOfAll()
	}
	return rules, limit, err
}

// proxy returns the handler for clients. The handler forwards requests to upstream if the rules
// allow them, and answers /rate_limit with the quota of the client.
func (g *gateway) proxy(upstream *url.URL) http.Handler {
	quotas := g.rateLimit()
	failures := sparse.Logger(g.logger)
	forward := weir.KeepHeaders(&httputil.ReverseProxy{
		Transport: g.usage,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.RawPath = encodeInvalid(r.In.URL.RawPath)
			r.SetURL(upstream)
			// ReverseProxy drops what url.ParseQuery cannot read, such as a;b. Over HTTP/2, a query can have
			// spaces.
			r.Out.URL.RawQuery = strings.ReplaceAll(r.In.URL.RawQuery, " ", "%20")
			r.Out.Host = r.In.Host
			g.setForwarded(r)
			if !strings.EqualFold(r.Out.Header.Get("Upgrade"), "websocket") {
				// Nothing that a client sends after a 101 response is limited. With h2c (RFC 7540,
				// 3.2), a client could send any number of requests in this way.
				r.Out.Header.Del("Connection")
				r.Out.Header.Del("Upgrade")
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode < 100 { // WriteHeader would panic
				return fmt.Errorf("the upstream sent the status %d", r.StatusCode)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if status := slowClientOf(r).fault(); status != 0 {
				w.Header().Set("Connection", "close")
				w.WriteHeader(status)
				return
			}
			if r.Context().Err() == nil {
				failures.Error("weir: request to the upstream failed", "err", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(sparse.Logger(g.logger).Handler(), slog.LevelWarn),
	})
	limited := g.limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		slowClientOf(r).decided = true
		w.Header()["Content-Type"] = nil // net/http guesses no media type if the upstream sends none
		forward.ServeHTTP(w, r)
	}))
	// A ServeMux would redirect paths that are not clean, but the upstream must get them unchanged.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w, r, client := withSlowClient(w, r, g.o.readTimeout, g.o.bodyPause)
		defer client.end()
		switch {
		case r.URL.Path == "/rate_limit":
			quotas.ServeHTTP(w, r)
		case r.Method == http.MethodOptions && r.RequestURI == "*": // net/http answers it in the same way
		default:
			limited.ServeHTTP(w, r)
		}
	})
}

// encodeInvalid encodes the bytes of a path that may only occur in encoded form, such as a bar. If
// a path has such a byte, net/url would decode the whole path and encode it again, so that %2F
// would become a slash.
func encodeInvalid(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; c >= 0x80 || strings.IndexByte(" \"<>\\^`{|}#?", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// setForwarded sets the header fields from which the upstream learns where a request comes from. A
// client can send any X-Forwarded-For field, so the address of the client is appended. The scheme
// and the host that the client has called are taken from a trusted proxy. Otherwise, behind a proxy
// that terminates TLS, an upstream would redirect every request to https.
func (g *gateway) setForwarded(r *httputil.ProxyRequest) {
	for name := range r.Out.Header {
		if dashed := strings.ReplaceAll(name, "_", "-"); dashed != name && strings.HasPrefix(strings.ToLower(dashed), "x-forwarded-") {
			delete(r.Out.Header, name) // CGI, WSGI and Rack read underscores as dashes
		}
	}
	r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	r.SetXForwarded()
	if !g.trusts(r.In.RemoteAddr) {
		return
	}
	for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Host"} {
		if values := r.In.Header[name]; len(values) > 0 {
			r.Out.Header[name] = values
		}
	}
}

// questions is how often a client may query its quota at /rate_limit.
var questions = algorithms.GCRA(60, time.Minute)

// rateLimit returns the handler that shows a client its quota. Each query costs store calls
// but spends nothing under the rules, so queries have a separate limit, counted in memory.
func (g *gateway) rateLimit() http.Handler {
	limiter, err := weir.New(memstore.New(memstore.Options{MaxKeys: 100_000}), weir.Options{
		Rules:   []weir.Rule{{Name: "rate_limit", Key: g.rules.ByIP(), Limits: []weir.Limit{questions}}},
		Headers: headers.None, Logger: g.logger, NoFromContext: true,
	})
	if err != nil {
		panic(err) // the options are constants
	}
	return limiter.Handler(http.HandlerFunc(g.admin.RateLimit))
}

// internal returns the handler for proxies (/auth, if there are rules), for programs (/reserve, /draw,
// /settle), Prometheus (/metrics) and orchestrators (/healthz, /readyz).
func (g *gateway) internal() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET /readyz", &g.health)
	if g.rules == nil {
		return mux
	}
	for path, f := range map[string]reservationFunc{
		"POST /reserve": g.reserved.reserve, "POST /draw": g.reserved.draw, "POST /settle": g.reserved.settle,
	} {
		mux.Handle(path, g.reserved.handler(f))
	}
	return g.auth(mux)
}
