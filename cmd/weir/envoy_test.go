package main

import (
	"bytes"
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

// TestEnvoyFlags: invalid values of the flags about Envoy are errors that name the flag.
func TestEnvoyFlags(t *testing.T) {
	const tls = "-envoy-rls tls://:1 -tls-cert c -tls-key k"
	for _, tt := range []struct{ args, want string }{
		{"-envoy-header-names a,b", `-envoy-header-names is "a,b"; want three names`},
		{"-envoy-headers -envoy-header-names a,b,c:", `-envoy-header-names is "a,b,c:"; want three names`},
		{"-envoy-headers -envoy-header-names a,,c", "want three names"},
		{"-envoy-headers -envoy-header-names a,b,c,d", "want three names"},
		{"-envoy-header-names a,b,c", "-envoy-header-names needs -envoy-headers"},
		{"-envoy-near 0", "-envoy-near is 0; want more than 0 and at most 1"},
		{"-envoy-near NaN", "-envoy-near is NaN"},
		{"-envoy-near 1.1", "-envoy-near is 1.1"},
		{"-envoy-over -1", "-envoy-over is -1"},
		{"-envoy-over 1", "-envoy-over needs -redis-addrs"},
		{"-envoy-connection-age -1s", "-envoy-connection-age is -1s"},
		{"-envoy-client-ca x", "-envoy-client-ca needs an -envoy-rls that begins with tls://"},
		{tls + " -envoy-client-name x", "-envoy-client-name needs -envoy-client-ca"},
		{"-envoy-headers -envoy-header-names X-A,x_b,c -envoy-near 1 -envoy-connection-age 0s -envoy-over 9 -redis-addrs x:1", ""},
		{tls + " -envoy-client-ca x -envoy-client-name y", ""},
	} {
		var o options
		err := o.parse(append([]string{"-envoy-config", "x"}, strings.Fields(tt.args)...), nil, &bytes.Buffer{})
		if got := fmt.Sprint(err); (err == nil) != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.args, got, tt.want)
		}
	}
	var o options
	if err := o.parse([]string{"-limits", "x", "-envoy-shadow"}, nil, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "need -envoy-config") {
		t.Errorf("-envoy-shadow without -envoy-config: got %v", err)
	}
}

// TestEnvoySettings: with -envoy-config, variables that only Envoy's service reads are errors that
// say what to use instead. Those that other programs read, too, are warnings.
func TestEnvoySettings(t *testing.T) {
	for _, tt := range []struct{ variable, refusal, warning string }{
		{"QUOTA_MODE=true", "QUOTA_MODE is a setting of Envoy's rate limit service, which weir does not read: use -envoy-quota", ""},
		{"REDIS_PERSECOND=true", "one Redis has all counts", ""},
		{"BACKEND_TYPE=memcache", "not in Memcached", ""},
		{"CONFIG_TYPE=GRPC_XDS_SOTW", "use -envoy-xds", ""},
		{"REDIS_URL=redis:6379", "", ""}, // weir reads it, too
		{"TRACING_ENABLED=true", "", "no spans"},
		{"GRPC_PORT=9000", "", "use -envoy-rls"},
		{"GRPC_PORT=tcp://10.0.0.1:80", "", ""}, // as Kubernetes sets it
		{"QUOTA_MODE=false", "", ""},
		{"LOCAL_CACHE_SIZE_IN_BYTES=0", "", ""},
		{"BACKEND_TYPE=redis", "", ""},
		{"CONFIG_TYPE=FILE", "", ""},
		{"HOST=x", "", ""},
	} {
		for _, config := range []string{"-envoy-config", "-limits"} {
			var o options
			err := o.parse([]string{config, "x"}, []string{tt.variable}, &bytes.Buffer{})
			if config == "-limits" {
				tt.refusal, tt.warning = "", ""
			}
			warnings := strings.Join(o.warnings, "\n")
			if got := fmt.Sprint(err); (err == nil) != (tt.refusal == "") || !strings.Contains(got, tt.refusal) {
				t.Errorf("%s with %s: got the error %s, want %s", tt.variable, config, got, tt.refusal)
			}
			if (warnings == "") != (tt.warning == "") || !strings.Contains(warnings, tt.warning) || strings.Contains(warnings, "secret") {
				t.Errorf("%s with %s: got the warning %s, want %s", tt.variable, config, warnings, tt.warning)
			}
		}
	}
}

// TestEnvoyClientCertificate: with -envoy-client-ca, only clients that have a certificate of that CA,
// for -envoy-client-name, are answered.
func TestEnvoyClientCertificate(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	path := writeFile(t, file("limits.yaml"), fmt.Sprintf(envoyLimits, 1000))
	pool := x509.NewCertPool()
	for _, name := range []string{"server", "envoy", "other"} {
		if root := redistest.Certificate(t, file(name+".crt"), file(name+".key")); name == "server" {
			pool.AddCert(root)
		}
	}
	serve := []string{"-auth-addr", "127.0.0.1:0", "-envoy-config", path, "-envoy-rls", "tls://127.0.0.1:0", "-tls-cert", file("server.crt"), "-tls-key", file("server.key"), "-envoy-client-ca"}
	refused := codes.Unavailable.String()
	for _, tt := range []struct {
		flags []string
		want  map[string]string // by certificate
	}{
		{[]string{file("envoy.crt")}, map[string]string{"": refused, "other": refused, "envoy": "OK"}},
		{[]string{file("envoy.crt"), "-envoy-client-name", "127.0.0.1"}, map[string]string{"other": refused, "envoy": "OK"}},
		{[]string{file("envoy.crt"), "-envoy-client-name", "envoy.example"}, map[string]string{"envoy": refused}},
	} {
		s := startService(t, append(serve, tt.flags...)...)
		for name, want := range tt.want {
			config := &tls.Config{RootCAs: pool}
			if name != "" {
				cert, err := tls.LoadX509KeyPair(file(name+".crt"), file(name+".key"))
				if err != nil {
					t.Fatal(err)
				}
				config.Certificates = []tls.Certificate{cert}
			}
			if got := askEnvoy(t, dialService(t, s, credentials.NewTLS(config)), "a"); got != want {
				t.Errorf("%q, certificate %q: got %s, want %s", tt.flags[1:], name, got, want)
			}
		}
	}
	for ca, want := range map[string]string{path: "has no certificate", path + "x": "no such file"} {
		var stderr bytes.Buffer
		if status := run(t.Context(), append(append([]string{"serve"}, serve...), ca), nil, &bytes.Buffer{}, &stderr); status != exitFailure || !strings.Contains(stderr.String(), want) {
			t.Errorf("-envoy-client-ca %s: got status %d, %s; want %s", ca, status, stderr.String(), want)
		}
	}
}

const envoyLimits = "domain: app\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]"

// askEnvoy calls the service as Envoy does, with one descriptor k=value. It returns the overall
// code, or the gRPC code of the error.
func askEnvoy(t testing.TB, conn *grpc.ClientConn, value string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
