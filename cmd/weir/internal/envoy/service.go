package envoy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// Options are the options of NewService. Path or XDS is required.
type Options struct {
	Path string // of a limits file, or of a directory of such files
	XDS  *XDS   // the control plane that has the limits, in place of Path

	Merge         bool                  // allow several files to have descriptors of the same domain
	Shadow        bool                  // count hits, but answer OK instead of OVER_LIMIT
	Quota         bool                  // treat all descriptors as if they had quota_mode
	Headers       bool                  // make Envoy add header fields about the limit to responses
	HeaderNames   [3]string             // the names of these fields; the zero value means HeaderNames
	Metadata      bool                  // answer with dynamic metadata: the descriptors, and the metadata of descriptors within their limits
	Near          float64               // fraction of a limit above which the metrics count hits as near the limit, at most 1; 0 means 0.8
	Over          int                   // maximum number of counters above their limit that are remembered, each until its window ends; 0 means none
	ConnectionAge time.Duration         // age at which clients must connect again; 0 means never
	Logger        *slog.Logger          // nil means slog.Default()
	Registerer    prometheus.Registerer // registers the metrics; nil means that they are not exported
}

// A Service answers the calls of Envoy's rate limit filter. It is safe for concurrent use.
type Service struct {
	ratelimit.UnimplementedRateLimitServiceServer

	Health *health.Server // the health service of the gRPC server; it reports SERVING until Health.Shutdown is called

	store quota.Store
	o     Options

	mu     sync.Mutex // held while files are loaded
	files  []file     // as last read, even if they had an error
	config atomic.Pointer[Config]
	*metrics
	overrides *stats // counts the hits of all limits that come with descriptors of calls
	over      *overCache

	undecided *slog.Logger // gets a line about calls for which the store made no decision
	noDomain  *slog.Logger // gets a line about calls with a domain that no file defines
}

// NewService returns a service that counts in store. It returns an error if the files cannot be
// loaded. The limits of a control plane come once Watch runs. Until they have arrived, Loaded is
// false, the health service reports NOT_SERVING, and calls are allowed.
func NewService(store quota.Store, o Options) (*Service, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	m := newMetrics(o.Registerer)
	o.Near, o.HeaderNames = cmp.Or(o.Near, 0.8), cmp.Or(o.HeaderNames, HeaderNames)
	s := &Service{
		Health: health.NewServer(), store: store, o: o, metrics: m, overrides: m.statsOf([3]string{"", "override"}),
		over:      newOverCache(o.Over),
		undecided: sparse.Logger(o.Logger), noDomain: sparse.Logger(o.Logger),
	}
	s.config.Store(noLimits)
	if o.XDS != nil {
		s.Health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		return s, nil
	}
	return s, s.Reload()
}

// noLimits is the Config until the first limits are loaded.
var noLimits = &Config{}

// Reload loads the files if they have changed since the last call. After an error, the
// previous limits stay in force. An error in the files is returned only once: further calls
// return nil until the files change.
func (s *Service) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := readFiles(s.o.Path)
	if err != nil {
		return err
	}
	same := func(a, b file) bool { return a.path == b.path && bytes.Equal(a.data, b.data) }
	if slices.EqualFunc(files, s.files, same) {
		return nil
	}
	s.files = files
	c, err := parse(files, s.o.Merge)
	if err != nil {
		s.failures.Inc()
		return err
	}
	s.replaceLimits(c, s.o.Path, len(files))
	return nil
}

// replaceLimits puts the limits of c into force, which come from files or other resources.
func (s *Service) replaceLimits(c *Config, from string, files int) {
	kept := map[[3]string]bool{}
	for _, l := range c.limits {
		l.stats, kept[l.labels] = s.metrics.statsOf(l.labels), true
	}
	for _, l := range s.config.Swap(c).limits {
		if !kept[l.labels] {
			s.metrics.remove(l.labels)
		}
	}
	s.loads.Inc()
	for _, w := range c.Warnings {
		s.o.Logger.Warn("envoy: setting not applied", "text", w)
	}
	s.o.Logger.Info("envoy: limits loaded", "file", from, "files", files, "loaded", len(c.limits))
}

// Watch reloads the files when they change, or follows the control plane, until ctx ends. It reads
// the files once a second instead of waiting for notifications, because polling also works for
// network file systems and mounted ConfigMaps.
func (s *Service) Watch(ctx context.Context) {
	if s.o.XDS != nil {
		s.follow(ctx)
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.Reload()
		if err == nil {
			last = ""
		} else if err.Error() != last {
			last = err.Error()
			s.o.Logger.Error("envoy: limits not reloaded", "err", err)
		}
	}
}

// ShouldRateLimit answers a call from Envoy. If the store is down, ShouldRateLimit returns an
// error, and failure_mode_deny in Envoy's configuration determines whether the request is allowed.
// If the store is busy or misconfigured, the answer is that the call exceeds its limit, because
// clients can cause the store to be busy.
func (s *Service) ShouldRateLimit(ctx context.Context, r *ratelimit.RateLimitRequest) (*ratelimit.RateLimitResponse,
	error) {
	ds, err := s.descriptors(r)
	if err != nil {
		s.callErrors.Inc()
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A client that cancels its call is charged, too.
	if err := s.count(context.WithoutCancel(ctx), ds); err != nil {
		s.storeErrors.Inc()
		s.undecided.Warn("envoy: call not decided", "domain", storedkey.Of(r.Domain), "err", err, "cause", quota.Cause(err))
		busy := errors.Is(err, quota.ErrBusy)
		if !busy && !errors.Is(err, quota.ErrUnusable) {
			return nil, status.Error(codes.Unavailable, "the store of the counts is unavailable")
		}
		for i := range ds {
			if ds[i].undecided = true; busy {
				ds[i].reset = 1 // the client may try again in a second
			}
		}
	}
	return s.answer(r, ds), nil
}

// Bounds for clients that open many streams or send large calls. Envoy sends calls of a few hundred
// bytes, and opens another connection when a connection has maxStreams streams.
const (
	maxStreams  = 1000     // of a connection; each takes about 11 KB
	maxCallSize = 64 << 10 // bytes
)

// Server returns a gRPC server for s and for the health service of gRPC. A panic ends only its
// own call, with the code Internal.
func (s *Service) Server() *grpc.Server {
	streams, size := grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxCallSize)
	age := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.o.ConnectionAge,
		MaxConnectionAgeGrace: time.Minute})
	server := grpc.NewServer(age, streams, size,
		grpc.UnaryInterceptor(func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any,
			err error) {
			defer s.metrics.observe(info.FullMethod, time.Now())
			panicked, err := safe.Call("envoy: a call panicked", func() error { resp, err = next(ctx, r); return err })
			if panicked {
				s.o.Logger.Error("envoy: call panicked", "method", info.FullMethod, "err", err)
				err = status.Error(codes.Internal, "the service panicked")
			}
			return resp, err
		}))
	ratelimit.RegisterRateLimitServiceServer(server, s)
	healthpb.RegisterHealthServer(server, s.Health)
	return server
}
