package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// TestServeXDS: with -envoy-xds, the limits come from a control plane over TLS, which sees the client
// certificate of weir, and weir is ready once it has limits.
func TestServeXDS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	clients := x509.NewCertPool()
	redistest.Certificate(t, file("plane.crt"), file("plane.key"))
	clients.AddCert(redistest.Certificate(t, file("weir.crt"), file("weir.key")))
	pair, err := tls.LoadX509KeyPair(file("plane.crt"), file("plane.key"))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	plane := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients,
		ClientAuth: tls.RequireAndVerifyClientCert})))
	discovery.RegisterAggregatedDiscoveryServiceServer(plane, server.NewServer(context.Background(), snapshots, nil))
	go plane.Serve(ln)
	defer plane.Stop()

	s := startService(t, "-envoy-rls", "127.0.0.1:0", "-envoy-xds", "tls://"+ln.Addr().String(), "-envoy-xds-ca", file("plane.crt"),
		"-envoy-xds-cert", file("weir.crt"), "-envoy-xds-key", file("weir.key"), "-envoy-headers")
	ready := func() bool {
		resp, _ := get(t, http.DefaultClient, s.url("auth-addr")+"/readyz")
		return resp.StatusCode == 200
	}
	if ready() {
		t.Error("ready without limits")
	}
	snapshot, err := cache.NewSnapshot("1", map[resource.Type][]types.Resource{resource.RateLimitConfigType: {&config.RateLimitConfig{
		Name: "app", Domain: "app", Descriptors: []*config.RateLimitDescriptor{{Key: "k",
			RateLimit: &config.RateLimitPolicy{RequestsPerUnit: 1, Unit: config.RateLimitUnit_YEAR}}}}}})
	if err == nil {
		err = snapshots.SetSnapshot(t.Context(), "envoy-ratelimit", snapshot)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the limits of the control plane are in force", ready)
	conn := dialService(t, s, insecure.NewCredentials())
	for _, want := range []string{"OK", "OVER_LIMIT"} {
		if got := askEnvoy(t, conn, "a"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// TestGatewaySample: the flags in the sample for Envoy Gateway are valid.
func TestGatewaySample(t *testing.T) {
	text, err := os.ReadFile("envoy-gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	args, err := yaml.PathString("$.provider.kubernetes.rateLimitDeployment.patch.value.spec.template.spec.containers[0].args")
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	if err := args.Read(bytes.NewReader(text), &flags); err != nil {
		t.Fatal(err)
	}
	var o options
	if err := o.parse(flags, nil, &bytes.Buffer{}); err != nil || o.envoy.xds == "" {
		t.Errorf("%q: %v", flags, err)
	}
}

// TestXDSFlags: flags about a control plane that do not fit together are errors.
func TestXDSFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"-envoy-xds a:1 -envoy-config b":                     "exclude each other",
		"-envoy-xds tls://a:1 -envoy-xds-cert b":             "-envoy-xds-cert and -envoy-xds-key need each other",
		"-envoy-xds a:1 -envoy-xds-ca b":                     "begins with tls://",
		"-limits x -envoy-xds-server-name b":                 "begins with tls://",
		"-envoy-xds tls://a:1 -envoy-xds-ca b -envoy-shadow": "",
	} {
		var o options
		err := o.parse(strings.Fields(flags), nil, &bytes.Buffer{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", flags, err, want)
		}
	}
	missing := filepath.Join(t.TempDir(), "none.crt")
	for _, flags := range []string{"-envoy-xds-ca " + missing, "-envoy-xds-cert " + missing + " -envoy-xds-key " + missing} {
		var o options
		if err := o.parse(strings.Fields("-envoy-xds tls://a:1 "+flags), nil, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
		if _, err := o.envoy.newService(nil, nil, nil); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: got %v", flags, err)
		}
	}
}
