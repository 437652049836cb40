package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/internal/weirtest"
)

// A running service stops at the end of the test, or when stop is called.
type running struct {
	addrs map[string]net.Addr
	log   *weirtest.Log
	stop  func() error
}

// url returns the URL of the address of a flag.
func (r *running) url(flag string) string { return "http://" + r.addrs[flag].String() }

// environment returns a function that looks up variables in m, as os.LookupEnv does in the
// environment.
func environment(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// startService runs weir serve with the given flags on free ports.
func startService(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{log: &weirtest.Log{}}
	var o options
	args = append([]string{"-addr", "127.0.0.1:0", "-auth-addr", "127.0.0.1:0", "-admin-addr", "127.0.0.1:0"}, args...)
	if err := o.parse(args, environment(nil), io.Discard); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	started, done := make(chan map[string]net.Addr, 1), make(chan error, 1)
	go func() {
		done <- serve(ctx, &o, o.newLogger(r.log), func(addrs map[string]net.Addr) { started <- addrs })
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { r.stop() })
	select {
	case r.addrs = <-started:
	case err := <-done:
		done <- err
		t.Fatalf("%v\n%s", err, r.log)
	}
	return r
}

// eventually waits until the function ok returns true, and fails the test if that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: ", what)
		}
	}
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// asking returns the header fields by which a proxy asks about GET / of a client.
func asking(client string) []string {
	return []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/", "X-Forwarded-For", client}
}

// TestServe: one service is a reverse proxy, answers a proxy and operators, and exports
// metrics. It uses a changed file, even if a rule is added, and ignores a file with a mistake.
func TestServe(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "served") }))
	defer upstream.Close()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 2)
	const token = "0123456789abcdef"
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-admin-token", token)
	client := from(t, "127.0.0.2")
	status := func(want ...int) {
		t.Helper()
		for _, want := range want {
			if resp, body := get(t, client, s.url("addr")); resp.StatusCode != want {
				t.Errorf("got %d, %s; want %d", resp.StatusCode, body, want)
			}
		}
	}
	status(200, 200, 429)
	for _, tt := range []struct{ from, path, client, want string }{
		{"127.0.0.1", "/auth", "127.0.0.2", "429"}, // counts for the same client as requests through the reverse proxy
		{"127.0.0.1", "/auth", "127.0.0.3", "200"},
		{"127.0.0.1", "/healthz", "", "200"},
		{"127.0.0.1", "/readyz", "", "200"},
		{"127.0.0.1", "/metrics", "", "200"},
		{"127.0.0.1", "/rules", "", "404"}, // only the address for operators serves /rules
		{"127.0.0.1", "/admin/rules", "", "404"},
	} {
		var header []string
		if tt.client != "" {
			header = asking(tt.client)
		}
		if resp, body := get(t, from(t, tt.from), s.url("auth-addr")+tt.path, header...); fmt.Sprint(resp.StatusCode) != tt.want {
			t.Errorf("%v: got %d, %s", tt, resp.StatusCode, body)
		}
	}
	operate := func(method, path string) string {
		req, _ := http.NewRequest(method, s.url("admin-addr")+path, nil)
		req.SetBasicAuth("anna", token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.Status + string(body)
	}
	if got := operate("POST", "/reset?rule=client&key=127.0.0.2"); !strings.HasPrefix(got, "200") {
		t.Errorf("reset: got %s", got)
	}
	if log := s.log.String(); !strings.Contains(log, `"who":"anna"`) || strings.Contains(log, token) {
		t.Errorf("the log names no operator, or has the token:\n%s", log)
	}
	status(200, 200, 429)

	writeLimits(t, path, 3) // one more request; the mistake below changes nothing
	eventually(t, "a reload", func() bool { return strings.Contains(s.log.String(), "rules reloaded") })
	status(200, 429)
	writeFile(t, path, "limits: [")
	eventually(t, "a failed reload", func() bool { return strings.Contains(s.log.String(), "rules not reloaded") })
	status(429)
	writeFile(t, path, fmt.Sprintf(testLimits, 1000)+"- name: added\n  key: global\n  algorithm: fixed-window\n  config: [{limit: 1, period: 1000h}]\n")
	eventually(t, "a rule that is added", func() bool { return strings.Contains(operate("GET", "/rules"), `"added"`) })
	status(200, 429)
	_, body := get(t, http.DefaultClient, s.url("auth-addr")+"/metrics")
	for _, want := range []string{`weir_decisions_total{limit="1000h",mode="enforced",outcome="refused",rule="added"} 1`, "weir_rules_stale 0\n", "go_goroutines "} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics lack %s:\n%s", want, body)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// TestReloadBySignal: SIGHUP makes weir read the file again.
func TestReloadBySignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 1)
	s := startService(t, "-limits", path)
	writeLimits(t, path, 2)
	syscall.Kill(syscall.Getpid(), syscall.SIGHUP)
	eventually(t, "a reload", func() bool { return strings.Contains(s.log.String(), `"weir: rules reloaded"`) })
}

// TestShutdown: after SIGTERM /readyz fails for the shutdown delay. Then the listeners close, and
// a request that has begun still gets its answer.
func TestShutdown(t *testing.T) {
	begun, released := make(chan bool), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		<-released
		fmt.Fprint(w, "served")
	}))
	defer upstream.Close()
	release := sync.OnceFunc(func() { close(released) })
	defer release() // in case the test fails
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 2)
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-shutdown-delay", "1s")
	type answer struct {
		status int
		body   string
	}
	answered := make(chan answer, 1)
	go func() {
		resp, body := get(t, from(t, "127.0.0.2"), s.url("addr"))
		answered <- answer{resp.StatusCode, body}
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "unready", func() bool {
		resp, err := http.Get(s.url("auth-addr") + "/readyz")
		if err != nil {
			t.Fatal(err) // the listener must stay open for -shutdown-delay
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	eventually(t, "a closed listener", func() bool {
		conn, err := net.Dial("tcp", s.addrs["addr"].String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("the service has ended before its request: %v", err)
	default:
	}
	release()
	if got := <-answered; got != (answer{200, "served"}) {
		t.Errorf("got %v", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestShutdownTimeout: after the shutdown timeout a running request is cut off, and the service
// ends with an error.
func TestShutdownTimeout(t *testing.T) {
	begun, release := make(chan bool), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- true; <-release }))
	defer upstream.Close()
	defer close(release)
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 2)
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-shutdown-timeout", "50ms")
	go func() {
		if resp, err := http.Get(s.url("addr")); err == nil {
			resp.Body.Close()
		}
	}()
	<-begun
	if err := s.stop(); err == nil {
		t.Error("got no error for a request that was cut off")
	}
}

// TestServeFails: a service that cannot start ends with exit status 1 and an error that names
// the flag or the mistake.
func TestServeFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 2)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-limits", path, "-auth-addr", ln.Addr().String()}, "-auth-addr: listen tcp"},
		{[]string{"-limits", path, "-admin-token", "0123456789abcdef", "-auth-addr", "127.0.0.1:0", "-admin-addr", ln.Addr().String()}, "-admin-addr: listen tcp"},
		{[]string{"-limits", path + "x"}, "no such file"},
		{[]string{"-limits", writeFile(t, filepath.Join(t.TempDir(), "bad.yaml"), "limits:\n- {name: a, config: [{limit: 0, period: 1}]}")}, "bad.yaml:2:30: limit is 0"},
		{[]string{"-limits", writeFile(t, filepath.Join(t.TempDir(), "headers.yaml"), "limits:\n- {name: a, config: [{limit: 1, period: 1}]}\n- {name: b, headers: ietf, config: [{limit: 1, period: 1}]}")}, "their headers differ"},
		{[]string{"-limits", path, "-tls-cert", path, "-tls-key", path}, "failed to find any PEM data"},
		{[]string{"-limits", path, "-redis-addrs", "127.0.0.1:1", "-redis-tls", "-redis-tls-ca", path}, "has no certificate"},
		{[]string{"-limits", path, "-redis-addrs", "127.0.0.1:1", "-redis-prefix", "{"}, "contains a brace"},
	} {
		var stderr bytes.Buffer
		status := run(t.Context(), append([]string{"serve"}, tt.args...), environment(nil), io.Discard, &stderr)
		if status != exitFailure || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: got status %d, %s; want %s", tt.args, status, stderr.String(), tt.want)
		}
	}
}

// TestTLS: an address with tls:// is served over TLS and by HTTP/2. A certificate that is
// replaced on disk is used without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	writeLimits(t, path, 2)
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first := writeCertificate(t, cert, key)
	s := startService(t, "-limits", path, "-admin-token", "0123456789abcdef", "-admin-addr", "tls://127.0.0.1:0", "-tls-cert", cert, "-tls-key", key)
	ask := func(root *x509.Certificate) (proto string, err error) {
		pool := x509.NewCertPool()
		pool.AddCert(root)
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
		resp, err := client.Get("https://" + s.addrs["admin-addr"].String() + "/rules")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return resp.Proto + " " + resp.Status, nil
	}
	if got, err := ask(first); err != nil || got != "HTTP/2.0 401 Unauthorized" {
		t.Errorf("got %s, %v", got, err)
	}
	second := writeCertificate(t, cert, key)
	os.Chtimes(cert, time.Time{}, time.Now().Add(time.Minute)) // the file system may store whole seconds only
	eventually(t, "the new certificate", func() bool { _, err := ask(second); return err == nil })
}

// writeCertificate writes a new certificate for 127.0.0.1 and its key.
func writeCertificate(t *testing.T, certFile, keyFile string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	writeFile(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestRedis: replicas share their counts in Redis. While Redis is down, -redis-down decides
// whether requests pass and whether /readyz fails. The password is not logged.
func TestRedis(t *testing.T) {
	server := redistest.Server(t)
	if _, err := server.Do("CONFIG", "SET", "requirepass", "secret"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 1)
	type replica struct {
		*running
		down          string
		status, ready int // the answers of /auth and /readyz while Redis is down
	}
	var replicas []replica
	for _, r := range []replica{{down: downMemory, status: 200, ready: 200}, {down: downOpen, status: 200, ready: 503}, {down: downClosed, status: 503, ready: 503}} {
		r.running = startService(t, "-limits", path, "-redis-addrs", server.Addr(), "-redis-password", "secret", "-redis-timeout", "5s", "-redis-down", r.down)
		replicas = append(replicas, r)
	}
	ask := func(r replica, client string) int {
		resp, _ := get(t, from(t, "127.0.0.1"), r.url("auth-addr")+"/auth", asking(client)...)
		return resp.StatusCode
	}
	for i, want := range []int{200, 429, 429} {
		if got := ask(replicas[i], "192.0.2.1"); got != want {
			t.Errorf("replica %d: got %d, want %d", i, got, want)
		}
		if resp, body := get(t, http.DefaultClient, replicas[i].url("auth-addr")+"/readyz"); resp.StatusCode != 200 {
			t.Errorf("replica %d: /readyz: got %d, %s", i, resp.StatusCode, body)
		}
	}
	server.Kill()
	for _, r := range replicas {
		if got := ask(r, "192.0.2.2"); got != r.status {
			t.Errorf("without Redis, -redis-down %s: got %d, want %d", r.down, got, r.status)
		}
		resp, body := get(t, http.DefaultClient, r.url("auth-addr")+"/readyz")
		if resp.StatusCode != r.ready || strings.Contains(body, "127.0.0.1") {
			t.Errorf("without Redis, -redis-down %s: /readyz: got %d, %s; want %d and no error", r.down, resp.StatusCode, body, r.ready)
		}
		if _, body := get(t, http.DefaultClient, r.url("auth-addr")+"/metrics"); !strings.Contains(body, "weir_breaker_open ") {
			t.Errorf("-redis-down %s: the metrics lack the breaker", r.down)
		}
		if strings.Contains(r.log.String(), "secret") {
			t.Errorf("the log has the password:\n%s", r.log)
		}
	}
}

// TestRedisTLS: weir counts in a Redis over TLS only if each side accepts the certificate of
// the other.
func TestRedisTLS(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	writeLimits(t, path, 1)
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key)
	_, port, _ := net.SplitHostPort(freeAddress(t))
	server := redistest.Server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	for _, tt := range []struct {
		args []string
		keys int64 // the number of keys in Redis afterwards
	}{
		{[]string{"-redis-tls", "-redis-tls-ca", cert}, 0}, // Redis wants a certificate
		{[]string{"-redis-tls", "-redis-tls-cert", cert, "-redis-tls-key", key}, 0},
		{[]string{"-redis-tls", "-redis-tls-ca", cert, "-redis-tls-cert", cert, "-redis-tls-key", key}, 2}, // one key for each rule
	} {
		s := startService(t, append([]string{"-limits", path, "-redis-addrs", "127.0.0.1:" + port, "-redis-timeout", "5s"}, tt.args...)...)
		if resp, body := get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...); resp.StatusCode != 200 {
			t.Errorf("%q: got %d, %s", tt.args, resp.StatusCode, body)
		}
		if n, err := server.Do("DBSIZE"); err != nil || n != tt.keys {
			t.Errorf("%q: got %v keys, %v; want %d\n%s", tt.args, n, err, tt.keys, s.log)
		}
	}
}
