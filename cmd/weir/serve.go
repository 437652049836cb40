package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/extra/redisprometheus/v9"
	"google.golang.org/grpc"

	"github.com/seed83679106/weir/cmd/weir/internal/envoy"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/overrides"
)

// tlsScheme is the prefix of addresses that are served over TLS.
const tlsScheme = "tls://"

// A service holds servers that are stopped together.
type service struct {
	o      *options
	logger *slog.Logger
	cert   *certificate
	envoy  *envoy.Service // nil without -envoy-config and -envoy-xds
	failed chan error     // gets the error of each server that fails
	stops  []func(ctx context.Context) error
	addrs  map[string]net.Addr // the addresses of the listeners, by the name of their flag
}

// serve runs a service until ctx ends or a server fails. After that, running requests have up to
// o.shutdownTimeout to finish. If started is not nil, serve calls it as soon as the listeners are
// open. The map addrs contains the address of each listener under the name of its flag.
func serve(ctx context.Context, o *options, logger *slog.Logger, started func(addrs map[string]net.Addr)) error {
	for _, w := range o.warnings {
		logger.Warn("weir: setting may be wrong", "text", w)
	}
	st, err := newStores(o, logger)
	if err != nil {
		return err
	}
	defer st.close()
	s, g, live, err := newService(ctx, o, st, logger)
	if err != nil {
		return err
	}
	stop := s.background(ctx, g, live)
	defer stop()
	if o.tlsCert != "" {
		if s.cert, err = loadCertificate(o.tlsCert, o.tlsKey); err != nil {
			return err
		}
	}
	if err = s.listen(g); err == nil {
		logger.Info("weir: serving", "version", version(), "addresses", fmt.Sprint(s.addrs), "store", o.redis.String())
		if started != nil {
			started(s.addrs)
		}
		select {
		case <-ctx.Done():
		case err = <-s.failed:
		}
	}
	g.health.stopping.Store(true)
	if s.envoy != nil {
		s.envoy.Health.Shutdown()
	}
	if err == nil {
		logger.Info("weir: shutting down")
		time.Sleep(o.shutdownDelay) // load balancers notice that /readyz fails
	}
	return errors.Join(err, s.stop())
}

// newService returns a service without servers, and the gateway and the overrides that it serves.
func newService(ctx context.Context, o *options, st *stores, logger *slog.Logger) (*service, *gateway, *overrides.Live,
	error) {
	lo := overrides.LiveOptions{Logger: logger}
	if st.shared != nil {
		lo.Keeper = st.shared.Redis()
	}
	live := overrides.NewLive(lo)
	live.Refresh(ctx)
	g, err := newGateway(o, st, live, logger)
	if err != nil {
		return nil, nil, nil, err
	}
	if st.shared != nil {
		g.registry.MustRegister(redisprometheus.NewCollector("weir", "redis", st.rdb)) // connections
		g.health.redis, g.health.check, g.health.read = st.shared.WithoutFallback(), st.shared.Err, live.Ready
		g.health.memory, g.health.alone = o.redisDown.value == downMemory, time.Now().Add(o.readyAfter)
	}
	s := &service{o: o, logger: logger, failed: make(chan error, 8), addrs: map[string]net.Addr{}}
	if o.envoy.enabled() {
		if s.envoy, err = o.envoy.newService(st.counter, g.registry, logger); err != nil {
			return nil, nil, nil, err
		}
		g.health.limited = s.envoy.Loaded
	}
	return s, g, live, nil
}

// background starts the goroutines that run in addition to the servers. The caller must call stop,
// which waits until these goroutines end.
func (s *service) background(ctx context.Context, g *gateway, live *overrides.Live) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { live.Run(ctx) })
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	if g.rules != nil {
		running.Go(func() { g.rules.Watch(ctx) }) // until ctx ends
		running.Go(func() { g.follow(ctx, hup) })
	}
	if s.envoy != nil {
		running.Go(func() { s.envoy.Watch(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
		signal.Stop(hup)
	}
}

// listen starts the servers that the options name.
func (s *service) listen(g *gateway) error {
	if s.o.upstream != "" {
		to, _ := url.Parse(s.o.upstream) // options.check has parsed this URL
		if err := s.http("addr", s.o.addr, 0, g.proxy(to)); err != nil {
			return err
		}
	}
	if err := s.http("auth-addr", s.o.authAddr, s.o.readTimeout, g.internal()); err != nil {
		return err
	}
	if s.envoy != nil {
		if err := s.grpc("envoy-rls", s.o.envoy.addr, s.envoy.Server()); err != nil {
			return err
		}
	}
	if g.rules == nil {
		return nil
	}
	if s.o.adminToken == "" {
		s.logger.Info("weir: no address for operators", "likely", "-admin-token is not set")
		return nil
	}
	return s.http("admin-addr", s.o.adminAddr, s.o.readTimeout, ops.Authenticate(s.o.adminToken, s.logger, g.admin))
}

// listener listens on the address of a flag.
func (s *service) listener(flag, addr string) (net.Listener, error) {
	addr, secure := strings.CutPrefix(addr, tlsScheme)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("-%s: %w", flag, err)
	}
	s.addrs[flag] = ln.Addr()
	if secure {
		config := &tls.Config{GetCertificate: s.cert.getCertificate, NextProtos: []string{"h2", "http/1.1"}}
		if flag == "envoy-rls" {
			if err := s.o.envoy.verifyClients(config); err != nil {
				ln.Close()
				return nil, err
			}
		}
		ln = tls.NewListener(ln, config)
	}
	return ln, nil
}

// start calls serve with a listener on the address of a flag, until stop is called.
func (s *service) start(flag, addr string, serve func(net.Listener) error, stop func(context.Context) error) error {
	ln, err := s.listener(flag, addr)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, stop)
	go func() { s.failed <- serve(ln) }() // nobody reads the error of a server that was stopped
	return nil
}

// http serves h on addr, the address of a flag. A request and its body must arrive within
// readTimeout; 0 means that h itself limits the time that a body may take.
func (s *service) http(flag, addr string, readTimeout time.Duration, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: s.o.headerTimeout, ReadTimeout: readTimeout,
		IdleTimeout: s.o.idleTimeout,
		// The deadline of an HTTP/2 stream does not end a write to its connection.
		HTTP2:    &http.HTTP2Config{WriteByteTimeout: s.o.bodyPause},
		ErrorLog: slog.NewLogLogger(sparse.Logger(s.logger).Handler(), slog.LevelWarn)}
	if readTimeout > 0 { // otherwise h bounds the time of writes, too
		srv.WriteTimeout = readTimeout + s.o.bodyPause
	} else {
		srv.DisableGeneralOptionsHandler = true // that handler bounds no time
	}
	return s.start(flag, addr, srv.Serve, func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		if err != nil {
			srv.Close()
		}
		return err
	})
}

// grpc serves srv on addr, the address of a flag.
func (s *service) grpc(flag, addr string, srv *grpc.Server) error {
	return s.start(flag, addr, srv.Serve, func(ctx context.Context) error {
		cut := context.AfterFunc(ctx, srv.Stop)
		srv.GracefulStop()
		if !cut() {
			return ctx.Err()
		}
		return nil
	})
}

// stop closes the listeners and waits until all requests have ended, but at most for
// s.o.shutdownTimeout.
func (s *service) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.shutdownTimeout)
	defer cancel()
	errs := make([]error, len(s.stops))
	var wg sync.WaitGroup
	for i, stop := range s.stops {
		wg.Go(func() { errs[i] = stop(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
