package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/seed83679106/weir/internal/test/redistest"
)

const envoyLimits = "domain: app\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]"

// askEnvoy calls the service as Envoy does, with one descriptor k=value. It returns the overall
// code, or the gRPC code of the error.
func askEnvoy(t testing.TB, conn *grpc.ClientConn, value string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := ratelimit.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{Domain: "app",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k", Value: value}}}}})
	if err != nil {
		return status.Code(err).String()
	}
	return resp.OverallCode.String()
}

func dialService(t testing.TB, s *running, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.addrs["envoy-rls"].String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestServeEnvoy: with -envoy-config and without -limits, weir serves Envoy over TLS: it
// decides, reports its health and metrics, reloads its file, and stops without an error.
func TestServeEnvoy(t *testing.T) {
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "limits.yaml"), fmt.Sprintf(envoyLimits, 1))
	root := redistest.Certificate(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	s := startService(t, "-envoy-config", path, "-envoy-rls", "tls://127.0.0.1:0",
		"-tls-cert", filepath.Join(dir, "tls.crt"), "-tls-key", filepath.Join(dir, "tls.key"))
	pool := x509.NewCertPool()
	pool.AddCert(root)
	conn := dialService(t, s, credentials.NewTLS(&tls.Config{RootCAs: pool}))
	for _, want := range []string{"OK", "OVER_LIMIT"} {
		if got := askEnvoy(t, conn, "a"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || resp.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: got %v, %v", resp, err)
	}
	for path, want := range map[string]string{"/metrics": `ratelimit_service_rate_limit_over_limit{domain="app",key1="k",key2=""} 1`, "/readyz": "ready"} {
		if resp, body := get(t, http.DefaultClient, s.url("auth-addr")+path); resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: got %d, %s; want %s", path, resp.StatusCode, body, want)
		}
	}
	if resp, _ := get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...); resp.StatusCode != 404 {
		t.Errorf("/auth without -limits: got %d, want 404", resp.StatusCode)
	}
	writeFile(t, path, fmt.Sprintf(envoyLimits, 1_000_000))
	eventually(t, "a reload", func() bool { return askEnvoy(t, conn, "a") == "OK" })
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if s.addrs["addr"] != nil || s.addrs["admin-addr"] != nil {
		t.Errorf("without -limits: got the addresses %v", s.addrs)
	}
}

// TestEnvoyWithoutRedis: while Redis is down, the hits of Envoy's calls are counted in memory
// or the calls fail, as -redis-down says. -replicas does not divide the limits of Envoy.
func TestEnvoyWithoutRedis(t *testing.T) {
	server := redistest.Server(t)
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), fmt.Sprintf(envoyLimits, 2))
	var conns []*grpc.ClientConn
	downs := []string{downMemory, downOpen, downClosed}
	for _, down := range downs {
		s := startService(t, "-envoy-config", path, "-envoy-rls", "127.0.0.1:0", "-redis-addrs", server.Addr(), "-redis-timeout", "5s", "-redis-down", down, "-replicas", "2")
		conns = append(conns, dialService(t, s, insecure.NewCredentials()))
	}
	for i, want := range []string{"OK", "OK", "OVER_LIMIT"} { // the replicas share one count
		if got := askEnvoy(t, conns[i], "a"); got != want {
			t.Errorf("-redis-down %s: got %s, want %s", downs[i], got, want)
		}
	}
	server.Kill()
	for i, want := range []string{"OK", codes.Unavailable.String(), codes.Unavailable.String()} {
		if got := askEnvoy(t, conns[i], "b"); got != want {
			t.Errorf("without Redis, -redis-down %s: got %s, want %s", downs[i], got, want)
		}
	}
	for _, want := range []string{"OK", "OVER_LIMIT"} {
		if got := askEnvoy(t, conns[0], "b"); got != want {
			t.Errorf("without Redis, in memory: got %s, want %s", got, want)
		}
	}
}
