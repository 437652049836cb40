package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

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
		{"CONFIG_TYPE=GRPC_XDS_SOTW", "not from an xDS server", ""},
		{"REDIS_URL=redis:6379", "", "REDIS_URL is a setting of Envoy's rate limit service, which weir does not read: use -redis-addrs"},
		{"REDIS_URL=redis://u:secret@redis:6379", "", "use -redis-addrs"},
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
