// Package ops runs a rules file with everything that a program in production needs: it reloads the
// file when it changes, observes its decisions, lets operators set overrides, and serves the
// operators' page, protected by a token.
//
//	rules, operators, err := ops.Open(ctx, "rules.yaml", store, ops.Options{Token: os.Getenv("OPERATORS_TOKEN")})
//
// To combine these parts differently, use packages config, admin, overrides and watch.
package ops

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

// Options are options for Open. Token is required.
type Options struct {
	// Token is the secret that operators send as the password of HTTP Basic authentication or as a
	// bearer token. A Token has at least 16 random bytes, encoded as text. The user name of Basic
	// authentication is logged with each change.
	Token string

	// Keeper, such as a redisstore.Store, keeps the overrides for all processes. If Keeper is nil,
	// an override applies only in this process.
	Keeper overrides.Keeper

	// Observe is called with every Event. It can be, for example, the Observe method of a
	// weirprom.Collector; nil adds no observer.
	Observe func(weir.Event)

	// Metrics is served at /metrics, which requires the token like all other paths. In Prometheus,
	// set the token with authorization: {credentials_file: …}. If Metrics is nil, /metrics is not
	// served. weirprom.Open sets Metrics and wraps Observe.
	Metrics http.Handler

	// Config holds the options of the rules. The fields Overrides and Limiter.Observe must be nil,
	// because Open sets them. All log lines go to Limiter.Logger.
	Config config.Options
}

// Open loads a rules file and the overrides, and watches both until ctx is done. It logs a warning
// if ctx has a deadline. If the overrides cannot be read, Open logs the error and continues; a
// redisstore.Store may take up to 2 s to fail. The returned handler is that of package admin, and
// answers requests without the token with 401. Serve it on an address that only operators can
// reach, or, with http.StripPrefix, under a path of a server with TLS.
func Open(ctx context.Context, path string, store weir.Store, o Options) (
	rules *config.File, operators http.Handler, err error) {
	switch fault := faultOf(o.Token); {
	case fault != "":
		return nil, nil, errors.New("ops: Options.Token " + fault)
	case o.Config.Overrides != nil || o.Config.Limiter.Observe != nil:
		return nil, nil, errors.New("ops: Options.Config has Overrides or an Observe; want nil, because Open sets them")
	}
	recorder := watch.NewRecorder(1000, 100_000)
	logger := slog.New(recorder.LogHandler(cmp.Or(o.Config.Limiter.Logger, slog.Default()).Handler()))
	o.Config.Limiter.Logger = logger
	live := overrides.NewLive(overrides.LiveOptions{Keeper: o.Keeper, Logger: logger})
	o.Config.Overrides = live
	o.Config.Limiter.Observe = func(e weir.Event) {
		recorder.Observe(e)
		if o.Observe != nil {
			o.Observe(e)
		}
	}
	if rules, err = config.Open(path, store, o.Config); err != nil {
		return nil, nil, err
	}
	page, err := admin.New(store, admin.Options{
		Limiters: rules.Limiters, File: rules, Overrides: live, Recorder: recorder,
		Who: Operator, Logger: logger,
	})
	if err != nil {
		return nil, nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		logger.Warn("ops: context with a deadline", "timeout", period.Rounded(time.Until(end)), "effect",
			"from then on, changes of the file and of the overrides have no effect", "fix", "pass a context that ends with the program")
	}
	live.Refresh(ctx) // it logs an error
	go live.Run(ctx)
	go rules.Watch(ctx)
	// A ServeMux would redirect some paths, and the new paths would lack the prefix that a
	// StripPrefix has removed.
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.Metrics != nil && r.URL.Path == "/metrics" {
			o.Metrics.ServeHTTP(w, r)
			return
		}
		page.ServeHTTP(w, r)
	})
	return rules, Authenticate(o.Token, logger, served), nil
}
