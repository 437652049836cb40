package envoy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/seed83679106/weir/internal/period"
)

// XDS describes the control plane, such as Envoy Gateway, from which a Service gets its limits if
// they do not come from files. The protocol is the aggregated discovery service (state of the
// world).
type XDS struct {
	Address     string // such as envoy-gateway:18001
	Node        string // the id by which the control plane knows this service
	Credentials credentials.TransportCredentials
}

// Bounds of the connection to the control plane.
const (
	maxUpdate   = 64 << 20 // bytes of a message
	maxFaults   = 16 << 10 // bytes of the errors of an update; servers accept messages of 4 MiB
	retry       = time.Second
	probeServer = 6 * time.Minute // servers allow one probe of an idle connection in 5 minutes
)

// Loaded reports whether s has received limits, even if they are an empty list.
func (s *Service) Loaded() bool { return s.config.Load() != noLimits }

// follow keeps a stream to the control plane open until ctx ends. If the stream breaks, the limits
// stay in force, and follow opens another stream.
func (s *Service) follow(ctx context.Context) {
	conn, err := grpc.NewClient(s.o.XDS.Address, grpc.WithTransportCredentials(s.o.XDS.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxUpdate)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: probeServer}))
	if err != nil {
		s.o.Logger.Error("envoy: limits not reloaded", "err", err)
		return
	}
	defer conn.Close()
	rejected := "" // the errors of the last update, also if it came on an earlier stream
	for last := ""; ctx.Err() == nil; period.Sleep(ctx, retry) {
		before := s.config.Load()
		err := s.stream(ctx, conn, &rejected)
		if s.config.Load() != before {
			last = ""
		}
		if text := err.Error(); ctx.Err() == nil && text != last {
			last = text
			effect := "the last limits stay in force"
			if !s.Loaded() {
				effect = "there are no limits yet"
			}
			s.o.Logger.Warn("envoy: no connection to the control plane", "err", err, "effect", effect)
		}
	}
}

// stream applies updates until the stream breaks. An update with an error is rejected as a whole
// (NACK). The text of the error is kept in rejected, so that it is logged once.
func (s *Service) stream(ctx context.Context, conn *grpc.ClientConn, rejected *string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := sotw.NewADSClient(ctx, &core.Node{Id: s.o.XDS.Node, UserAgentName: "weir"}, resource.RateLimitConfigType)
	if err := client.InitConnect(conn); err != nil {
		return err
	}
	for {
		update, err := client.Fetch()
		if err != nil {
			return err
		}
		if err = s.apply(update.Resources); err == nil {
			*rejected, err = "", client.Ack()
		} else {
			text := err.Error()
			if len(text) > maxFaults {
				text = strings.ToValidUTF8(text[:maxFaults], "") + "…"
			}
			if text != *rejected {
				*rejected = text
				s.failures.Inc()
				s.o.Logger.Error("envoy: limits not reloaded", "err", text)
			} else { // a server that uses the official library sends a rejected update again at once
				period.Sleep(ctx, retry)
			}
			err = client.Nack(text)
		}
		if err != nil {
			return err
		}
	}
}

// apply replaces all limits with those of an update. After an error, the old limits stay in force.
func (s *Service) apply(resources []*anypb.Any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Config{domains: map[string]*node{}}
	var errs []error
	var messages []*config.RateLimitConfig
	for _, r := range resources {
		m := new(config.RateLimitConfig)
		if err := r.UnmarshalTo(m); err != nil {
			errs = append(errs, err)
		}
		messages = append(messages, m)
	}
	// Messages arrive in any order. Sorting them gives the same update the same errors.
	slices.SortFunc(messages, func(a, b *config.RateLimitConfig) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range messages {
		r := reader{config: c, file: file{path: fmt.Sprintf("resource %q", m.Name)}, merge: s.o.Merge}
		var y fileYAML
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
		if err == nil {
			err = json.Unmarshal(text, &y)
		}
		r.add(&y)
		errs = append(append(errs, err), r.errs...)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.replaceLimits(c, s.o.XDS.Address, len(resources))
	s.Health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	return nil
}
