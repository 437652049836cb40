package main

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

// A gateway charges every request under all rules of a file. Without a file it serves only
// /metrics, /healthz and /readyz.
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
	logger   *slog.Logger

	diagnosis  atomic.Pointer[diagnosis]
	diagnosing sync.Mutex // held to replace diagnosis after a reload
}

// A diagnosis looks for probable errors in one version of the file.
type diagnosis struct {
	version string
	observe func(weir.Event)
}

// diagnose checks the rules in force and a request for probable errors, and logs them.
func (g *gateway) diagnose(e weir.Event) {
	d := g.diagnosis.Load()
	if version := g.rules.Version(); d.version != version && g.diagnosing.TryLock() {
		d = g.newDiagnosis(version)
		g.diagnosing.Unlock()
	}
	d.observe(e)
}

// newDiagnosis prepares for a version of the rules.
func (g *gateway) newDiagnosis(version string) *diagnosis {
	rules := g.rules.Rules()
	g.metrics.Expect(rules...)
	g.usage.follow(rules)
	d := &diagnosis{version, weirwatch.Diagnose(g.logger, rules)}
	g.diagnosis.Store(d)
	return d
}

// A backend is what newGateway needs besides the file.
type backend struct {
	store      weir.Store
	all        []weir.Store // the stores whose metrics are exported
	live       *overrides.Live
	keySecret  []byte // of hashed keys; nil if there is none
	failClosed bool   // answer requests with 503 if the store fails
	logger     *slog.Logger

	warned      *weirwatch.Warnings // what the logger was warned of; may be nil
	logRefusals int                 // how many lines a second the log gets about refused requests; 0 means none
}

// newGateway returns a gateway with the rules of the file at path, or without rules if path
// is "".
func newGateway(path string, b backend) (*gateway, error) {
	g := &gateway{registry: prometheus.NewRegistry(), health: newHealth(b.logger), usage: newUsageReader(b.logger), logger: b.logger}
	metrics := weirprom.New(b.all...)
	g.metrics = metrics
	top, bans, traffic := weirwatch.NewTop(1000), weirwatch.NewBans(1000), weirwatch.NewTraffic(100_000)
	g.registry.MustRegister(metrics, g.health.inMemory, buildInfo(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if path == "" {
		return g, nil
	}
	refusals := func(weir.Event) {}
	if b.logRefusals > 0 {
		refusals = weirwatch.Log(b.logger, b.logRefusals, nil) // without keys: they are addresses of people
	}
	count := func(e weir.Event) {
		metrics.Observe(e)
		top.Observe(e)
		traffic.Observe(e)
		refusals(e)
	}
	observe := func(e weir.Event) {
		count(e)
		bans.Observe(e)
		g.diagnose(e)
	}
	o := weir.Options{Observe: observe, Logger: b.logger, NoFromContext: true}
	if b.failClosed {
		o.OnError = weir.FailClosed
	}
	var err error
	if g.rules, g.limit, err = openRules(path, b.store,
		config.Options{Secret: b.keySecret, Overrides: b.live, Limiter: o}); err != nil {
		return nil, err
	}
	g.rejected = newRejected()
	g.registry.MustRegister(weirprom.NewFile(g.rules), g.rejected)
	g.newDiagnosis(g.rules.Version())
	if g.reserved, err = newReservations(g, &b, count); err != nil {
		return nil, err
	}
	g.admin, err = admin.New(b.store, admin.Options{
		Warnings: b.warned, Limiters: g.rules.Limiters, Overrides: b.live, File: g.rules, Who: ops.Operator, Logger: b.logger,
		Top: top, Bans: bans, Traffic: traffic, Stores: b.all,
	})
	return g, err
}

// openRules loads a file of rules, and returns it with the middleware that charges all of its
// rules. The commands serve and check call it, so that they accept the same files.
func openRules(path string, store weir.Store, o config.Options) (rules *config.File,
	limit func(http.Handler) http.Handler, err error) {
	o.Costs = costs
	if rules, err = config.Open(path, store, o); err != nil {
		return nil, nil, err
	}
	limit, err = handlerOfAll(rules.HandlerOfAll)
	return rules, limit, err
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

// proxy returns the handler for clients. It forwards requests to upstream if the rules allow
// them, and answers /rate_limit with the quota of the client.
func (g *gateway) proxy(upstream *url.URL, o *options) http.Handler {
	quotas := g.rateLimit()
	failures := sparse.Logger(g.logger)
	forward := &httputil.ReverseProxy{
		Transport: g.usage,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Host = r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // SetXForwarded appends the peer
			r.SetXForwarded()
			if !strings.EqualFold(r.Out.Header.Get("Upgrade"), "websocket") {
				// What a client sends after a 101 is not limited. By h2c (RFC 7540, 3.2) it could be
				// any number of requests.
				r.Out.Header.Del("Connection")
				r.Out.Header.Del("Upgrade")
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if status := slowBodyOf(r).fault(); status != 0 {
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
	}
	limited := g.limit(weir.KeepHeaders(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b := slowBodyOf(r); b != nil {
			b.decided = true
		}
		forward.ServeHTTP(w, r)
	})))
	// A ServeMux would redirect paths that are not clean. The upstream must get them unchanged.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reader := withSlowReader(w, r, o.bodyPause)
		defer reader.extend() // net/http then sends the end of the response
		w, r = reader, withSlowBody(reader, r, o.readTimeout, o.bodyPause)
		if b := slowBodyOf(r); b != nil {
			defer b.end()
		}
		switch {
		case r.URL.Path == "/rate_limit":
			quotas.ServeHTTP(w, r)
		case r.Method == http.MethodOptions && r.RequestURI == "*": // net/http answers it in the same way
		default:
			limited.ServeHTTP(w, r)
		}
	})
}

// questions is how often a client may query its quota at /rate_limit.
var questions = algorithms.GCRA(60, time.Minute)

// rateLimit returns the handler that shows a client its quota. Each answer costs calls of the
// store, and spends nothing under the rules, so it has a separate limit, counted in memory.
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
	for path, f := range map[string]func(http.ResponseWriter, *http.Request, *reservationCall) (any, error){
		"POST /reserve": g.reserved.reserve, "POST /draw": g.reserved.draw, "POST /settle": g.reserved.settle,
	} {
		mux.Handle(path, g.reserved.handler(f))
	}
	return g.auth(mux)
}
