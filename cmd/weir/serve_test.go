package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// A running service stops at the end of the test, or when stop is called.
type running struct {
	addrs map[string]net.Addr
	log   *weirtest.Log
	stop  func() error
}

// url returns the URL of the address of a flag.
func (r *running) url(flag string) string { return "http://" + r.addrs[flag].String() }

// startService runs weir serve with the given flags on free ports.
func startService(t testing.TB, args ...string) *running {
	t.Helper()
	r := &running{log: &weirtest.Log{}}
	var o options
	args = append([]string{"-addr", "127.0.0.1:0", "-auth-addr", "127.0.0.1:0", "-admin-addr", "127.0.0.1:0"}, args...)
	if err := o.parse(args, nil, io.Discard); err != nil {
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
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: ", what)
		}
	}
}

func writeFile(t testing.TB, path, text string) string {
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
// metrics. It uses a changed file, even if a rule is added, and ignores a file with an error.
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
	if !strings.Contains(s.log.String(), `"store":"memory"`) {
		t.Errorf("the log does not name the store:\n%s", s.log)
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

	writeLimits(t, path, 3) // one more request; the error below changes nothing
	eventually(t, "a reload", func() bool { return strings.Contains(s.log.String(), "rules reloaded") })
	status(200, 429)
	writeFile(t, path, "limits: [")
	eventually(t, "a failed reload", func() bool { return strings.Contains(s.log.String(), "rules not reloaded") })
	status(429)
	writeFile(t, path, fmt.Sprintf(testLimits, 1000)+"- name: added\n  key: global\n  algorithm: fixed-window\n  config: [{limit: 1, period: 1000h}]\n")
	eventually(t, "a rule that is added", func() bool { return strings.Contains(operate("GET", "/rules"), `"added"`) })
	status(200, 429)
	_, body := get(t, http.DefaultClient, s.url("auth-addr")+"/metrics")
	for _, want := range []string{`weir_decisions_total{limit="1000h",mode="enforced",outcome="refused",rule="added"} 1`, "weir_rules_stale 0\n", "go_goroutines ",
		`weir_build_info{`, `goversion="` + runtime.Version() + `"`, `revision="`, `version="` + buildVersion()} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics lack %s:\n%s", want, body)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func buildVersion() string {
	info, _ := debug.ReadBuildInfo()
	return info.Main.Version
}

// TestLogOfRefusals: refused requests are logged at a bounded rate, without the address of the
// client. Probable errors in the file are logged with their codes, at start and after a
// reload: here a rule whose key clients can choose.
func TestLogOfRefusals(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), "trusted-proxies: [127.0.0.1]\nlimits:\n- {name: a, key: header:X-Forwarded-For, config: [{limit: 1, period: 1h}]}")
	s := startService(t, "-limits", path, "-log-refusals", "2")
	began := time.Now()
	for range 100 {
		get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...)
	}
	most := 2 + 2*int(time.Since(began)/time.Second)
	if n := strings.Count(s.log.String(), `"msg":"watch: request refused","rule":"a","limit":"1h"`); n < 1 || n > most {
		t.Errorf("99 refusals are %d lines, want 1 to %d:\n%s", n, most, s.log)
	}
	if strings.Contains(s.log.String(), "192.0.2.1") {
		t.Errorf("the log has the address of a client:\n%s", s.log)
	}
	diagnosed := func() int { return strings.Count(s.log.String(), `"part":"header:X-Forwarded-For"`) }
	if n := diagnosed(); n != 1 {
		t.Errorf("%d lines say that clients can choose their key, want 1:\n%s", n, s.log)
	}
	writeFile(t, path, "trusted-proxies: [127.0.0.1]\nlimits:\n- {name: a, key: header:X-Forwarded-For, config: [{limit: 2, period: 1h}]}")
	eventually(t, "a diagnosis after a reload", func() bool {
		get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...)
		return diagnosed() == 2
	})
}

// TestReloadBySignal: SIGHUP makes weir read the file again.
func TestReloadBySignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGHUP")
	}
	path := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, 1)
	s := startService(t, "-limits", path)
	writeLimits(t, path, 2)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(syscall.SIGHUP)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a reload", func() bool { return strings.Contains(s.log.String(), `"weir: rules reloaded"`) })
}

// TestShutdown: after SIGTERM /readyz fails for the shutdown delay. Then the listeners close, and
// a request that has begun still gets its answer.
func TestShutdown(t *testing.T) {
	client := from(t, "127.0.0.2") // first, because it may skip the test
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
		resp, body := get(t, client, s.url("addr"))
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
// the flag or the error.
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
		{[]string{"-limits", path + "x"}, "open " + path + "x: "},
		{[]string{"-limits", writeFile(t, filepath.Join(t.TempDir(), "bad.yaml"), "limits:\n- {name: a, config: [{limit: 0, period: 1}]}")}, "bad.yaml:2:30: limit is 0"},
		{[]string{"-limits", writeFile(t, filepath.Join(t.TempDir(), "headers.yaml"), "limits:\n- {name: a, config: [{limit: 1, period: 1}]}\n- {name: b, headers: ietf, config: [{limit: 1, period: 1}]}")}, "their headers differ"},
		{[]string{"-limits", path, "-tls-cert", path, "-tls-key", path}, "failed to find any PEM data"},
		{[]string{"-limits", path, "-redis-addrs", "127.0.0.1:1", "-redis-tls", "-redis-tls-ca", path}, "has no certificate"},
		{[]string{"-limits", path, "-redis-addrs", "127.0.0.1:1", "-redis-prefix", "{"}, "want a text without braces"},
	} {
		var stderr bytes.Buffer
		status := run(t.Context(), append([]string{"serve"}, tt.args...), nil, io.Discard, &stderr)
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
	first := redistest.Certificate(t, cert, key)
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
	second := redistest.Certificate(t, cert, key)
	os.Chtimes(cert, time.Time{}, time.Now().Add(time.Minute)) // the file system may store whole seconds only
	eventually(t, "the new certificate", func() bool { _, err := ask(second); return err == nil })
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
		body          string
		panel         string // what the page of operators then says
		effect        string // what the log then says
	}
	var replicas []replica
	for _, r := range []replica{{down: downMemory, status: 200, ready: 200, body: "memory\n", panel: "This process decides alone, by what it counts in its own memory", effect: "counting in memory: "},
		{down: downOpen, status: 200, ready: 503, panel: ": 1 were allowed without a limit, and 0 were refused with 503.", effect: "requests are allowed without a limit\""},
		{down: downClosed, status: 503, ready: 503, panel: ": 0 were allowed without a limit, and 1 were refused with 503.", effect: "requests get 503\""}} {
		r.running = startService(t, "-limits", path, "-admin-token", "0123456789abcdef", "-redis-addrs", server.Addr(), "-redis-password", "secret", "-redis-timeout", "5s", "-redis-down", r.down)
		if want := `"store":"redis at ` + server.Addr(); !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not name the store, %s:\n%s", want, r.log)
		}
		replicas = append(replicas, r)
	}
	ask := func(r replica, client string) int {
		resp, _ := get(t, from(t, "127.0.0.1"), r.url("auth-addr")+"/auth", asking(client)...)
		return resp.StatusCode
	}
	panel := func(r replica) string {
		_, body := get(t, http.DefaultClient, r.url("admin-addr")+"/", "Authorization", "Bearer 0123456789abcdef")
		return body
	}
	for i, want := range []int{200, 429, 429} {
		if got := ask(replicas[i], "192.0.2.1"); got != want {
			t.Errorf("replica %d: got %d, want %d", i, got, want)
		}
		if body := panel(replicas[i]); !strings.Contains(body, "<dt>Breaker</dt><dd>closed</dd>") || !strings.Contains(body, "<dt>Counts in</dt><dd>Redis <small>"+server.Addr()+"</small></dd>") || !strings.Contains(body, "<small>read ") {
			t.Errorf("replica %d: the page of operators is\n%s", i, body)
		}
		eventually(t, "ready", func() bool {
			resp, body := get(t, http.DefaultClient, replicas[i].url("auth-addr")+"/readyz")
			return resp.StatusCode == 200 && body == "ready\n"
		})
		_, body := get(t, http.DefaultClient, replicas[i].url("auth-addr")+"/metrics")
		for _, want := range []string{"hit_total ", "miss_total ", "timeout_total ", "conn_total_current [1-9]", "conn_idle_current ", "conn_stale_total "} {
			if !regexp.MustCompile("\nweir_redis_pool_" + want).MatchString(body) {
				t.Errorf("replica %d: no weir_redis_pool_%s in the metrics:\n%s", i, want, body)
			}
		}
	}
	server.Kill()
	for _, r := range replicas {
		if got := ask(r, "192.0.2.2"); got != r.status {
			t.Errorf("without Redis, -redis-down %s: got %d, want %d", r.down, got, r.status)
		}
		if r.down == downMemory { // a single failure is only a note
			eventually(t, r.panel, func() bool { ask(r, "192.0.2.2"); return strings.Contains(panel(r), r.panel) })
		}
		if body := panel(r); !strings.Contains(body, r.panel) || strings.Count(body, server.Addr()) != 1 || strings.Contains(body, "secret") {
			t.Errorf("without Redis, -redis-down %s: the page of operators lacks %q, or has an address beside that of the store, as errors have:\n%s", r.down, r.panel, body)
		}
		resp, body := get(t, http.DefaultClient, r.url("auth-addr")+"/readyz")
		if resp.StatusCode != r.ready || strings.Contains(body, "127.0.0.1") || r.body != "" && body != r.body {
			t.Errorf("without Redis, -redis-down %s: /readyz: got %d, %s; want %d and no error", r.down, resp.StatusCode, body, r.ready)
		}
		if _, body := get(t, http.DefaultClient, r.url("auth-addr")+"/metrics"); !strings.Contains(body, "weir_breaker_open ") {
			t.Errorf("-redis-down %s: the metrics lack the breaker", r.down)
		}
		eventually(t, r.effect, func() bool { ask(r, "192.0.2.2"); return strings.Contains(r.log.String(), `"effect":"`+r.effect) })
		if strings.Contains(r.log.String(), "secret") {
			t.Errorf("the log has the password:\n%s", r.log)
		}
	}
}

// TestReadiness: a process whose Redis can never work is not ready, and the log names the reason.
// A process whose Redis does not answer is not ready at first, and then ready with the body
// "memory", a warning and a metric. No answer has a secret or an address.
func TestReadiness(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	writeLimits(t, path, 1)
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	redistest.Certificate(t, cert, key)
	server, secure := redistest.Server(t), redistest.TLS(t, cert, key)
	for _, command := range []string{"ACL SETUSER few on >verysecret ~* +@all -evalsha -eval", "ACL SETUSER all on >verysecret ~* +@all", "ACL SETUSER default off"} {
		if _, err := server.Do(strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	const unusable, cannot = "cannot work as it is set up", "setup of Redis unusable until it is changed"
	for _, tt := range []struct {
		name, args string
		status     int
		body, log  string
	}{
		{"as it should be", "-redis-addrs " + server.Addr() + " -redis-username all -redis-password verysecret", 200, "ready\n", "serving"},
		{"a wrong password", "-redis-addrs " + server.Addr() + " -redis-username all -redis-password wrongsecret", 503, unusable, cannot},
		{"no password", "-redis-addrs " + server.Addr(), 503, unusable, cannot},
		{"too few rights", "-redis-addrs " + server.Addr() + " -redis-username few -redis-password verysecret", 503, unusable, "lacks +eval"},
		{"plain to a TLS port", "-redis-addrs " + secure, 503, unusable, "TLS"},
		{"nobody there", "-redis-addrs 127.0.0.1:1 -redis-ready-after 1h", 503, "unavailable", "refused"},
		{"nobody there, later", "-redis-addrs 127.0.0.1:1 -redis-ready-after 0s", 200, "memory\n", "weir: ready without Redis"},
		{"nobody there, closed", "-redis-addrs 127.0.0.1:1 -redis-ready-after 0s -redis-down closed", 503, "unavailable", "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startService(t, append(strings.Fields(tt.args), "-limits", path, "-redis-timeout", "5s")...)
			status, text := 0, ""
			ready := func() bool {
				resp, body := get(t, http.DefaultClient, s.url("auth-addr")+"/readyz")
				status, text = resp.StatusCode, body
				return status == tt.status && strings.Contains(body, tt.body) && strings.Contains(s.log.String(), tt.log)
			}
			for deadline := time.Now().Add(time.Minute); !ready(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("got %d, %q, want %d, %q and in the log %q:\n%s", status, text, tt.status, tt.body, tt.log, s.log)
				}
			}
			if strings.Contains(text+s.log.String(), "secret") || strings.Contains(text, "127.0.0.1") {
				t.Errorf("got %s, and the log has a secret, or the answer an address:\n%s", text, s.log)
			}
			if _, metrics := get(t, http.DefaultClient, s.url("auth-addr")+"/metrics"); strings.Contains(metrics, "weir_ready_memory_total 0\n") != (tt.body != "memory\n") {
				t.Errorf("the metric weir_ready_memory_total does not say whether it was ready in memory")
			}
		})
	}
}

// TestKeySecret: with -key-secret-file, a file can have hashed keys, and the page of operators shows only
// digests. Without it, weir serve does not start; weir check needs no secret, but says so.
func TestKeySecret(t *testing.T) {
	dir := t.TempDir()
	limits := writeFile(t, filepath.Join(dir, "limits.yaml"), "trusted-proxies: [127.0.0.1]\nlimits: [{name: key, key: 'hashed:header:X-Api-Key', config: [{limit: 1, period: 1h}]}]\n")
	secret := writeFile(t, filepath.Join(dir, "secret"), "0123456789abcdef\n")
	const token = "a token of operators"
	s := startService(t, "-limits", limits, "-key-secret-file", secret, "-admin-token", token)
	for _, want := range []int{200, 429} {
		if resp, _ := get(t, http.DefaultClient, s.url("auth-addr")+"/auth", append(asking("192.0.2.1"), "X-Api-Key", "customer-1")...); resp.StatusCode != want {
			t.Errorf("got %d, want %d", resp.StatusCode, want)
		}
	}
	_, top := get(t, http.DefaultClient, s.url("admin-addr")+"/top", "Authorization", "Bearer "+token)
	if want := weir.HashedKey([]byte("0123456789abcdef"), "customer-1"); !strings.Contains(top, want) || strings.Contains(top+s.log.String(), "customer-1") {
		t.Errorf("got %s, want %s", top, want)
	}
	var out bytes.Buffer
	if status := run(t.Context(), []string{"serve", "-limits", limits}, nil, &out, &out); status != 1 || !strings.Contains(out.String(), "a hashed key needs a secret") {
		t.Errorf("without a secret: got %d, %s", status, &out)
	}
	const warning = "limits.yaml:2:27: warning: a hashed key needs a secret: Options.Secret, or -key-secret-file of weir serve\n"
	for _, environ := range [][]string{nil, {"WEIR_KEY_SECRET=0123456789abcdef"}, {"WEIR_KEY_SECRET_FILE=" + secret}} {
		out.Reset()
		if status := run(t.Context(), []string{"check", limits}, environ, &out, &out); status != 0 || strings.Contains(out.String(), warning) != (environ == nil) || !strings.HasSuffix(out.String(), "limits.yaml: ok\n") {
			t.Errorf("weir check with %q: got %d, %s", environ, status, &out)
		}
	}
}

// TestPasswordUnderFleet: if Redis gets a password while a process runs, the process counts in memory and
// stays ready. A process that starts with the wrong password is not ready, and neither is one that
// refuses or allows all requests while Redis is down.
func TestPasswordUnderFleet(t *testing.T) {
	for down, want := range map[string]string{downMemory: "200 memory\n", downOpen: "503 ", downClosed: "503 "} {
		server := redistest.Server(t)
		path := filepath.Join(t.TempDir(), "limits.yaml")
		writeLimits(t, path, 1)
		s := startService(t, "-limits", path, "-redis-addrs", server.Addr(), "-redis-timeout", "5s", "-redis-down", down)
		ready := func() string {
			resp, body := get(t, http.DefaultClient, s.url("auth-addr")+"/readyz")
			return fmt.Sprint(resp.StatusCode, " ", body)
		}
		eventually(t, "ready", func() bool { return ready() == "200 ready\n" })
		conn, err := net.Dial("tcp", server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "CONFIG SET requirepass verysecret\r\nAUTH verysecret\r\nCLIENT KILL TYPE normal SKIPME yes\r\n")
		eventually(t, "the password is noticed", func() bool {
			ready()
			return strings.Contains(s.log.String(), "NOAUTH") && strings.Contains(s.log.String(), "unusable")
		})
		if got := ready(); !strings.HasPrefix(got, want) {
			t.Errorf("-redis-down %s: got %q, want %q", down, got, want)
		}
	}
}

// TestReadyWithOverrides: a process is ready once it has read the overrides in Redis.
func TestReadyWithOverrides(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	read := false
	h.redis, h.check, h.read = memstore.New(memstore.Options{}), func() error { return nil }, func() bool { return read }
	for _, want := range []string{"503 the overrides were not read yet\n", "200 ready\n"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		read = true
	}
}

// TestCheckRedis: weir check with the flags of a Redis says whether that Redis can decide, and
// names what is missing. The environment can set the password, but only -redis-addrs makes
// weir check ask a Redis.
func TestCheckRedis(t *testing.T) {
	server := redistest.Server(t)
	for _, command := range []string{"ACL SETUSER few on >verysecret ~* +@all -evalsha", "ACL SETUSER all on >verysecret ~* +@all", "ACL SETUSER default off"} {
		if _, err := server.Do(strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	const password = "WEIR_REDIS_PASSWORD=verysecret"
	evicting := redistest.Server(t)
	if _, err := evicting.Do("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	timeless := "-redis-timeout 5s -redis-addrs " + redistest.Lua54(t).RefuseTime().Addr()
	at := "-redis-addrs " + server.Addr() + " -redis-timeout 5s"
	for _, tt := range []struct {
		args, variable string
		status         int
		want           string
	}{
		{at + " -redis-username all", password, 0, "redis at " + server.Addr() + ": ok\n"},
		{at + " -redis-username all limits.yaml", password, 0, "limits.yaml: ok\nredis at " + server.Addr() + ": ok\n"},
		{at + " -redis-username few", password, 1, "evalsha"},
		{at + " -redis-username all -redis-password wrong", password, 1, "WRONGPASS"},
		{"-redis-addrs 127.0.0.1:1", "", 1, "redis at 127.0.0.1:1: "},
		{"-redis-addrs redis://all:verysecret@" + server.Addr() + " -redis-timeout 5s", "", 0, "redis at " + server.Addr() + ": ok\n"},
		{"-redis-addrs redis://all:verysecret@127.0.0.1:1", "", 1, "redis at 127.0.0.1:1: "},
		{"-redis-addrs redis://all:verysecret@" + server.Addr() + "/x", "", 1, "want host:port, such as localhost:6379, a URL"},
		{"-redis-addrs localhost", "", 1, `the address "localhost" can't be used; want host:port`},
		{"limits.yaml", "REDIS_URL=redis://127.0.0.1:1", 0, "limits.yaml: ok\n"},
		{"-redis-timeout 5s -redis-addrs " + evicting.Addr(), "", 0, "redis at " + evicting.Addr() + `: warning: msg="stack: setting of Redis lets it evict keys that are being limited" text="maxmemory-policy allkeys-lru" effect="an evicted key has its whole quota again" fix="set maxmemory-policy to volatile-lfu, or to noeviction"` + "\nredis at " + evicting.Addr() + ": ok\n"},
		{timeless, "", 1, "Options.SendTime"},
		{timeless + " -redis-send-time -redis-lock-keys", "", 0, ": ok"},
		{at + " -redis-username all -redis-lock-keys", password, 1, "Options.LockKeys"},
		{"limits.yaml", "WEIR_REDIS_ADDRS=127.0.0.1:1", 0, "limits.yaml: ok\n"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), append([]string{"check"}, strings.Fields(tt.args)...), []string{tt.variable}, &stdout, &stderr)
		if status != tt.status || !strings.Contains(stdout.String(), tt.want) || strings.Contains(stdout.String(), "secret") {
			t.Errorf("weir check %s: got status %d, %s%s; want %d, %s", tt.args, status, stdout.String(), stderr.String(), tt.status, tt.want)
		}
	}
}

// TestHelpOfURLs: the help of each command shows the form of a URL whole.
func TestHelpOfURLs(t *testing.T) {
	for _, name := range []string{"serve", "check"} {
		var out bytes.Buffer
		if got := run(t.Context(), []string{name, "-help"}, nil, &out, &out); got != exitOK || !strings.Contains(out.String(), "rediss://user:password@host:port") {
			t.Errorf("weir %s -help: got the status %d and %s", name, got, &out)
		}
	}
}

// TestLargeFiles: a file that is too large for what a flag reads from it is an error, not out of memory.
func TestLargeFiles(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(large, bytes.Repeat([]byte("x"), 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"serve -limits x -admin-token-file ", "check -redis-addrs rediss://127.0.0.1:1 -redis-tls-ca ", "check -envoy ", "check ",
	} {
		var out bytes.Buffer
		run(t.Context(), strings.Fields(args+large), nil, &out, &out)
		if !strings.Contains(out.String(), "larger than 4096 KiB") {
			t.Errorf("weir %s: got %.200s", args, &out)
		}
	}
}

// TestURLsWithPasswords: an error about a URL that can't be used, or was given for the wrong flag, does not
// show the password, nor does the log.
func TestURLsWithPasswords(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, limits, 5)
	const url = "redis://user:verysecret@127.0.0.1:1"
	for _, args := range []string{
		"serve -upstream ftp://user:verysecret@h", "serve -upstream user:verysecret@h:80", "serve -upstream ftp://h?token=verysecret",
		"serve -upstream http://user:verysecret@localhost:8080", "serve -redis-tls " + url, "serve -redis-db " + url, "serve -envoy-xds " + url,
		"serve -auth-addr 127.0.0.1:0 -redis-master-name m -redis-addrs user:verysecret@127.0.0.1:1",
		"check -redis-timeout 1ms -redis-master-name m -redis-addrs user:verysecret@127.0.0.1:1",
		"check -redis-master-name m -redis-addrs redis://:x,verysecret@127.0.0.1:1", "check " + url, "check -redis-db " + url, "try -max-keys " + url, "try -access-log x " + url, url,
		"serve -redis-db user:verysecret@h:1", "serve -redis-down user:verysecret@h:1", "check user:verysecret@h:1", "try -max-keys :verysecret@h", "user:verysecret@h",
	} {
		fields := strings.Fields(args)
		if fields[0] == "serve" {
			fields = append(fields, "-limits", limits)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // serve, if the flags are valid, ends at once
		var out bytes.Buffer
		run(ctx, fields, nil, &out, &out)
		if strings.Contains(out.String(), "secret") || out.Len() == 0 {
			t.Errorf("weir %s: got %s; want an error without the password", args, &out)
		}
	}
	if got, want := withoutUsers("a \"redis://u:\\\"very secret@h\"\nb@c"), "a \"redis://…@h\"\nb@c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRedisURL: weir serve takes the Redis from a URL in -redis-addrs or, if neither the flag nor its own
// variable is set, from REDIS_URL, and never prints the password. It does not start with an address
// that can't be used, instead of counting in memory for ever.
func TestRedisURL(t *testing.T) {
	server := redistest.Server(t)
	if _, err := server.Do("CONFIG", "SET", "requirepass", "verysecret"); err != nil {
		t.Fatal(err)
	}
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, limits, 5)
	good := "redis://:verysecret@" + server.Addr()
	for _, tt := range []struct {
		args, environ []string
		want          string // in the log, or in the error
	}{
		{[]string{"-redis-addrs", good}, nil, `"store":"redis at ` + server.Addr() + `"`},
		{nil, []string{"REDIS_URL=" + good}, `"store":"redis at ` + server.Addr() + `"`},
		{nil, []string{"WEIR_REDIS_ADDRS=" + good, "REDIS_URL=redis://127.0.0.1:1"}, `"store":"redis at ` + server.Addr() + `"`},
		{nil, []string{"REDIS_URL="}, `"store":"memory"`},
		{[]string{"-redis-addrs", "http://:verysecret@" + server.Addr()}, nil, `the address "http://" can't be used; want host:port`},
		{nil, []string{"REDIS_URL=redis"}, `the address "redis" can't be used; want host:port`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var o options
		args := append([]string{"-limits", limits, "-addr", "127.0.0.1:0", "-auth-addr", "127.0.0.1:0"}, tt.args...)
		if err := o.parse(args, tt.environ, io.Discard); err != nil {
			t.Fatal(err)
		}
		var log weirtest.Log
		err := serve(ctx, &o, o.newLogger(&log), func(addrs map[string]net.Addr) {
			base := "http://" + addrs["auth-addr"].String()
			eventually(t, base+"/readyz is ready", func() bool {
				resp, body := get(t, http.DefaultClient, base+"/readyz")
				return resp.StatusCode == 200 && body == "ready\n"
			})
			cancel()
		})
		cancel()
		if got := fmt.Sprint(err, log.String()); !strings.Contains(got, tt.want) || strings.Contains(got, "verysecret") {
			t.Errorf("%q %q: got %s; want %s, and no password", tt.args, tt.environ, got, tt.want)
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
	redistest.Certificate(t, cert, key)
	_, port, _ := net.SplitHostPort(redistest.FreeAddr())
	server := redistest.Server(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	for _, tt := range []struct {
		args []string
		logs int // the number of logs in Redis afterwards: the rule client has one for each prefix
	}{
		{[]string{"-redis-tls", "-redis-tls-ca", cert}, 0}, // Redis wants a certificate
		{[]string{"-redis-tls", "-redis-tls-cert", cert, "-redis-tls-key", key}, 0},
		{[]string{"-redis-tls", "-redis-tls-ca", cert, "-redis-tls-cert", cert, "-redis-tls-key", key}, 1},
		{[]string{"-redis-addrs", "rediss://127.0.0.1:" + port, "-redis-tls-ca", cert, "-redis-tls-cert", cert, "-redis-tls-key", key, "-redis-prefix", "url:"}, 2},
	} {
		s := startService(t, append([]string{"-limits", path, "-redis-addrs", "127.0.0.1:" + port, "-redis-timeout", "5s"}, tt.args...)...)
		if resp, body := get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...); resp.StatusCode != 200 {
			t.Errorf("%q: got %d, %s", tt.args, resp.StatusCode, body)
		}
		keys, err := server.Do("KEYS", "*client:log:{.192.0.2.1}") // the key of the other rule expires after 60 ms
		if err != nil || strings.Count(fmt.Sprint(keys), "{") != tt.logs {
			t.Errorf("%q: got the keys %v, %v; want %d\n%s", tt.args, keys, err, tt.logs, s.log)
		}
	}
}

// TestRotatedPassword: new connections use the password that the file has then. If there is no file, the
// log says so, although the outage began with another error.
func TestRotatedPassword(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "limits.yaml")
	writeLimits(t, path, 1000)
	server := redistest.Server(t)
	if _, err := server.Do("CONFIG", "SET", "requirepass", "old"); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(dir, "password"), "old\n")
	s := startService(t, "-limits", path, "-redis-addrs", server.Addr(), "-redis-timeout", "5s", "-redis-password-file", file)
	ready := func(when string) { // a connection may just have been closed, or not made yet
		t.Helper()
		eventually(t, when+": /readyz answers 200 ready", func() bool {
			resp, body := get(t, http.DefaultClient, s.url("auth-addr")+"/readyz")
			return resp.StatusCode == 200 && strings.TrimSpace(body) == "ready"
		})
	}
	ready("before")
	rotate := func(from, to string) {
		admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: from})
		defer admin.Close()
		for _, args := range [][]any{{"CONFIG", "SET", "requirepass", to}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
			if err := admin.Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	writeFile(t, file, "new\n")
	rotate("old", "new")
	ready("after")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	rotate("new", "newer")
	eventually(t, "the log names the file", func() bool {
		get(t, http.DefaultClient, s.url("auth-addr")+"/auth", asking("192.0.2.1")...)
		return strings.Contains(s.log.String(), `"msg":"weir: password of Redis not read","err":"open `+file)
	})
}

// TestSlowBodies: a request whose body does not arrive is charged and ends, whether a rule reads
// the body or only the upstream does. A body that arrived is no reason to end a slow request.
func TestSlowBodies(t *testing.T) {
	const timeout = 500 * time.Millisecond
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(2 * timeout):
			fmt.Fprint(w, "served")
		case <-r.Context().Done():
		}
	}))
	defer upstream.Close()
	dir := t.TempDir()
	const byIP, byUser = "- {name: ip, config: [{limit: 100, period: 1h}]}\n", "- {name: user, key: json:user, config: [{limit: 100, period: 1h}]}\n"
	for _, tt := range []struct {
		name, rules, body, want string
	}{
		{"a body that a rule reads", byUser + byIP, `{"us`, " 408 "},
		{"a body that only the upstream reads", byIP, `{"us`, " 408 "},
		{"a whole body that a rule reads", byUser + byIP, `{"user": "anna"}    `, " 200 "},
		{"a whole body that only the upstream reads", byIP, strings.Repeat("x", 20), " 200 "},
	} {
		path := writeFile(t, filepath.Join(dir, "limits.yaml"), "limits:\n"+tt.rules)
		s := startService(t, "-limits", path, "-upstream", upstream.URL, "-read-timeout", timeout.String(), "-body-pause", timeout.String())
		conn, err := net.Dial("tcp", s.addrs["addr"].String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n%s", tt.body)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		answer := make([]byte, 12)
		if _, err := io.ReadFull(conn, answer); err != nil || !strings.Contains(string(answer), strings.TrimRight(tt.want, " ")) {
			t.Errorf("%s: got %q, %v; want%s", tt.name, answer, err, tt.want)
		}
		want := `weir_decisions_total{limit="1h",mode="enforced",outcome="allowed",rule="ip"} 1`
		if _, metrics := get(t, http.DefaultClient, s.url("auth-addr")+"/metrics"); !strings.Contains(metrics, want) {
			t.Errorf("%s: the rule ip did not charge the request", tt.name)
		}
	}
}

// TestSlowBodyWithoutUpstream: a client whose request does not reach the upstream is answered, even if its
// body does not arrive, and does not hold a connection for ever: net/http waits for the body first.
func TestSlowBodyWithoutUpstream(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), "limits: [{name: ip, config: [{limit: 100, period: 1h}]}]")
	s := startService(t, "-limits", path, "-upstream", "http://127.0.0.1:1", "-read-timeout", "100ms")
	for _, line := range []string{"GET /rate_limit", "OPTIONS *"} {
		conn, err := net.Dial("tcp", s.addrs["addr"].String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n", line)
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
			t.Errorf("%s: got %q, %v; want 200 and a closed connection", line, answer, err)
		}
	}
}

// TestBrokenBodies: a client whose body is malformed, or ends too early, gets 400 if it gets anything. The
// log does not blame the upstream.
func TestBrokenBodies(t *testing.T) {
	var bodies atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		bodies.Add(1)
	}))
	defer upstream.Close()
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), "limits: [{name: ip, config: [{limit: 100, period: 1h}]}]")
	s := startService(t, "-limits", path, "-upstream", upstream.URL)
	for i, body := range []string{"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "Content-Length: 20\r\n\r\nhello"} {
		conn, err := net.Dial("tcp", s.addrs["addr"].String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\n%s", body)
		conn.(*net.TCPConn).CloseWrite()
		if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
			t.Errorf("%q: got %q, %v; want 400", body, answer, err)
		}
		eventually(t, "the upstream sees the end", func() bool { return bodies.Load() == int64(i)+1 })
	}
	if log := s.log.String(); strings.Contains(log, "upstream") {
		t.Errorf("the log says:\n%s", log)
	}
}

// TestFlood: a client that floods the service gets its quota, whatever -redis-down says, and
// its refusals come from memory: the flood runs few scripts. Without a fallback, requests that
// Redis has no capacity for are refused. With one, memory may admit the quota once more. With
// open, a request beyond the quota passes only if Redis did not answer in time, and is counted.
func TestFlood(t *testing.T) {
	const connections, quota = 400, 100
	each := rounds.N(20, 50)
	server := redistest.Server(t)
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), "limits: [{name: client, config: [{limit: 100, period: 60}]}]")
	for _, down := range []string{downMemory, downOpen, downClosed} {
		t.Run(down, func(t *testing.T) {
			server.Do("FLUSHALL")
			server.Do("CONFIG", "RESETSTAT")
			var served atomic.Int64
			upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
			defer upstream.Close()
			s := startService(t, "-limits", path, "-upstream", upstream.URL, "-redis-addrs", server.Addr(), "-redis-down", down)
			client := from(t, "127.0.0.2")
			client.Timeout = time.Minute
			client.Transport.(*http.Transport).MaxIdleConnsPerHost = connections
			began := time.Now()
			weirtest.Together(connections, func(int) {
				for range each {
					resp, err := client.Get(s.url("addr"))
					if err != nil {
						t.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body) // so that the connection is used again
					resp.Body.Close()
				}
			})
			most := quota + 1 + int64(time.Since(began)*quota/time.Minute)
			_, metrics := get(t, http.DefaultClient, s.url("auth-addr")+"/metrics")
			if down == downMemory && strings.Contains(s.log.String(), "counting in memory") {
				most *= 2
			}
			for _, m := range regexp.MustCompile(`weir_errors_total{cause="(\w+)",outcome="passed"} (\d+)`).FindAllStringSubmatch(metrics, -1) {
				n, _ := strconv.ParseInt(m[2], 10, 64)
				if most += n; n > 0 && (down != downOpen || m[1] == "busy" || m[1] == "unusable") {
					t.Errorf("%d requests passed undecided because of %s", n, m[1])
				}
			}
			if n := served.Load(); n > most {
				t.Errorf("%d of %d requests passed, want %d at most\n%s", n, connections*each, most, s.log)
			}
			stats, err := server.Do("INFO", "commandstats")
			if err != nil {
				t.Fatal(err)
			}
			if n := scripts(fmt.Sprint(stats)); n > connections*each/10 {
				t.Errorf("%d requests ran %d scripts", connections*each, n)
			} else {
				t.Logf("%d of %d requests passed, with %d scripts", served.Load(), connections*each, n)
			}
			if !strings.Contains(metrics, `weir_served_total{from="memory",kind="hybrid"} `) {
				t.Errorf("the metrics lack the refusals from memory:\n%s", metrics)
			}
		})
	}
}

// scripts returns how many scripts a Redis has run, by the text of INFO commandstats.
func scripts(stats string) (n int) {
	for _, m := range regexp.MustCompile(`cmdstat_(?:evalsha|eval|fcall):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls, _ := strconv.Atoi(m[1])
		n += calls
	}
	return n
}
