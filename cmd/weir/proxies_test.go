package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
)

// A proxied gateway is a gateway, a proxy that asks it, and an upstream behind the proxy.
type proxied struct {
	*gateway
	base     string // the URL of the proxy
	internal *httptest.Server
	served   atomic.Int64 // requests that the upstream served
	limits   string       // the path of the file of limits
}

// behind starts a gateway with this limit (see writeLimits) and an upstream. Then it calls the
// function run, which must start a proxy with its sample configuration. The Replacer puts the
// addresses of this test into the sample.
func behind(t *testing.T, limit int, run func(t *testing.T, ports *strings.Replacer)) *proxied {
	t.Helper()
	p := &proxied{}
	p.gateway, p.limits = start(t, limit)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.served.Add(1)
		if switches(w, r) {
			return
		}
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, "upstream ", r.Method, " ", r.RequestURI)
		if r.URL.Path == "/fields" {
			fmt.Fprint(w, r.Header)
		}
	}))
	t.Cleanup(upstream.Close)
	ln, err := net.Listen("tcp", redistest.FreeAddr()) // which nobody else gets while TestRollingRestart has closed it
	if err != nil {
		t.Fatal(err)
	}
	p.internal = &httptest.Server{Listener: ln, Config: &http.Server{Handler: p.gateway.internal()}}
	p.internal.Start()
	t.Cleanup(p.internal.Close)
	host := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	address := redistest.FreeAddr()
	run(t, strings.NewReplacer("127.0.0.1:9090", host(p.internal), "127.0.0.1:9000", host(upstream),
		"127.0.0.1:8000", address, "localhost:8000", address))
	p.base = "http://" + address
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// find returns the path of a program. If the program is missing, the test is skipped, or fails
// if CI is set.
func find(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

// spawn runs a program until the test ends.
func spawn(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", program, out.String())
		}
	})
}

// nginx returns a function that runs nginx with nginx.conf, for the argument run of behind. The
// edits are pairs: a text of nginx.conf and its replacement.
func nginx(edits ...string) func(t *testing.T, ports *strings.Replacer) {
	return func(t *testing.T, ports *strings.Replacer) {
		t.Helper()
		program := find(t, "nginx")
		sample, err := os.ReadFile("nginx.conf")
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(edits); i += 2 {
			if !bytes.Contains(sample, []byte(edits[i])) {
				t.Fatalf("nginx.conf has no %q", edits[i])
			}
		}
		text := ports.Replace(strings.NewReplacer(edits...).Replace(string(sample)))
		dir := t.TempDir()
		main := "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			main += kind + "_temp_path " + kind + ";\n"
		}
		conf := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(conf, []byte(main+text+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		spawn(t, nil, program, "-p", dir, "-c", conf, "-e", "stderr")
	}
}

// caddy runs Caddy with the Caddyfile. Tests pass it to behind.
func caddy(t *testing.T, ports *strings.Replacer) {
	t.Helper()
	program := find(t, "caddy")
	sample, err := os.ReadFile("Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "Caddyfile")
	text := "{\n\tadmin off\n}\n" + ports.Replace(string(sample))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spawn(t, []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}, program, "run", "--config", conf, "--adapter", "caddyfile")
}

// TestBehindProxy: nginx and Caddy pass on requests that the gateway allows. Refused requests get
// a 429 with Retry-After and problem details. A client cannot pretend to be another client.
func TestBehindProxy(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *strings.Replacer){"nginx": nginx(), "caddy": caddy} {
		t.Run(name, func(t *testing.T) {
			p, began := behind(t, 4, run), time.Now()
			for _, tt := range []struct {
				from, path string
				header     []string
				status     int
				remaining  string // requests
			}{
				{"127.0.0.2", "/a?b=c", nil, 200, "3"},
				{"127.0.0.2", "/a?b=c", nil, 200, "2"},
				{"127.0.0.2", "/a?b=c", []string{"X-Forwarded-For", "192.0.2.1"}, 200, "1"},
				{"127.0.0.2", "/forbidden", nil, 403, "0"}, // the 403 of the upstream
				{"127.0.0.2", "/a", nil, 429, "0"},
				{"127.0.0.2", "/a", []string{"X-Forwarded-For", "192.0.2.1"}, 429, "0"},
				{"127.0.0.2", "/a", []string{"X-Forwarded-For", "192.0.2.2", "X-Forwarded-For", "192.0.2.3"}, 429, "0"},
				{"127.0.0.2", "/a", []string{"X-Real-Ip", "192.0.2.1", "Forwarded", "for=192.0.2.1", "X-Forwarded-Host", "x", "X-Forwarded-Method", "PUT", "X-Forwarded-Uri", "/b"}, 429, "0"},
				{"127.0.0.2", "/weir", nil, 429, "0"}, // nginx answers 404, because a client cannot reach the gateway
				{"127.0.0.3", "/a", nil, 200, "3"},
			} {
				served := p.served.Load()
				resp, body := get(t, from(t, tt.from), p.base+tt.path, tt.header...)
				if name == "nginx" && tt.path == "/weir" {
					if resp.StatusCode != 404 {
						t.Errorf("/weir: got %d, want 404", resp.StatusCode)
					}
					continue
				}
				checkProxied(t, fmt.Sprintf("%+v", tt), resp, body, tt.remaining, p.served.Load()-served, began)
				if resp.StatusCode != tt.status {
					t.Errorf("%+v: got %d, %s", tt, resp.StatusCode, body)
				}
			}
		})
	}
}

// TestOther403: nginx turns a refusal by Weir into a 429, and no other 403: neither one of the upstream, with
// proxy_intercept_errors, nor one of nginx itself.
func TestOther403(t *testing.T) {
	p := behind(t, 2, nginx("proxy_set_header Host $host;\n\t\tproxy_set_header X-Forwarded-For $remote_addr;\n\t}",
		"proxy_set_header Host $host;\n\t\tproxy_set_header X-Forwarded-For $remote_addr;\n\t\tproxy_intercept_errors on;\n\t\tif ($arg_internal) {\n\t\t\treturn 403;\n\t\t}\n\t}"))
	for _, tt := range []struct {
		path string
		want int
	}{{"/?internal=1", 403}, {"/forbidden", 403}, {"/", 200}, {"/", 429}, {"/forbidden", 429}, {"/?internal=1", 403}} {
		resp, body := get(t, from(t, "127.0.0.9"), p.base+tt.path)
		if resp.StatusCode != tt.want || tt.want == 429 && !strings.Contains(body, "quota-exceeded") {
			t.Errorf("%s: got %d %q, want %d", tt.path, resp.StatusCode, body, tt.want)
		}
	}
}

// TestNoRuleBehindProxy: if no rule applies to a request, the client and the upstream get no field about
// limits, and not the name of one that the proxy would have copied.
func TestNoRuleBehindProxy(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *strings.Replacer){"nginx": nginx(), "caddy": caddy} {
		t.Run(name, func(t *testing.T) {
			p := behind(t, 4, run)
			writeFile(t, p.limits, "trusted-proxies: [127.0.0.1]\nheaders: ietf\nlimits: [{name: a, key: header:X-Never, config: [{limit: 1, period: 1h}]}]")
			if _, err := p.rules.Reload(); err != nil {
				t.Fatal(err)
			}
			resp, body := get(t, http.DefaultClient, p.base+"/fields", "RateLimit", `"forged";r=9`)
			for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
				if v, has := resp.Header[http.CanonicalHeaderKey(field)]; has {
					t.Errorf("the client got %s: %q", field, v)
				}
			}
			if strings.Contains(body, "{http") {
				t.Errorf("the upstream got %s", body)
			}
		})
	}
}

// checkProxied checks the fields of an answer that came through a proxy, and that the
// upstream has served the request unless the answer is a 429. The test began to send requests at began.
func checkProxied(t *testing.T, request string, resp *http.Response, body, remaining string, served int64, began time.Time) {
	t.Helper()
	limited := resp.StatusCode == 429
	if (served == 0) != limited {
		t.Errorf("%s: got %d, %s; the upstream served %d", request, resp.StatusCode, body, served)
	}
	want := fmt.Sprintf(`"client/requests";r=%s;t=`, remaining)
	reset, ok := strings.CutPrefix(resp.Header.Get("RateLimit"), want)
	if reset, _, _ = strings.Cut(reset, ","); !ok || !falls(reset, 60, began) {
		t.Errorf("%s: got RateLimit: %s, want %s60", request, resp.Header.Get("RateLimit"), want)
	}
	if want := `"client/requests";q=4;w=60`; !strings.HasPrefix(resp.Header.Get("RateLimit-Policy"), want) {
		t.Errorf("%s: got RateLimit-Policy: %s, want %s", request, resp.Header.Get("RateLimit-Policy"), want)
	}
	if got := resp.Header.Get("Retry-After"); falls(got, 60, began) != limited || !limited && got != "" {
		t.Errorf("%s: got Retry-After: %s", request, got)
	}
	if got := resp.Header.Get("Content-Type"); limited && (got != "application/problem+json" || !strings.Contains(body, "quota-exceeded")) {
		t.Errorf("%s: got %s, %s; want problem details", request, got, body)
	}
}

// TestMethodBehindNginx: the rules see the method of the client's request, not that of nginx's
// question.
func TestMethodBehindNginx(t *testing.T) {
	p := behind(t, 4, nginx())
	resp, err := from(t, "127.0.0.2").Post(p.base+"/a", "text/plain", strings.NewReader("a body"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	r := httptest.NewRequest("POST", "/a", nil)
	r.RemoteAddr = "127.0.0.2:4"
	key, _ := p.rules.Rules()[1].Key(r)
	operator := httptest.NewServer(p.admin)
	defer operator.Close()
	_, state := get(t, http.DefaultClient, operator.URL+"/state?rule=writes&key="+url.QueryEscape(key))
	if resp.StatusCode != 200 || !strings.Contains(state, `"remaining":999`) {
		t.Errorf("got status %d, and for the key of its method %s", resp.StatusCode, state)
	}
}

// TestPreflightBehindProxy: with free-preflights, a preflight behind nginx is free, unless it has a body or
// credentials. Behind Caddy all preflights are charged. Each preflight comes from a different
// client, whose limit is used up.
func TestPreflightBehindProxy(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *strings.Replacer){"nginx": nginx(), "caddy": caddy} {
		t.Run(name, func(t *testing.T) {
			p := behind(t, 1, run)
			host := strings.TrimPrefix(p.base, "http://")
			for i, tt := range []struct {
				name, more string
				status     map[string]int
			}{
				{"a preflight", "\r\n", map[string]int{"nginx": 200, "caddy": 429}},
				{"a body", "Content-Length: 1\r\n\r\nx", nil},
				{"a chunked body", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", nil},
				{"Authorization", "Authorization: Bearer x\r\n\r\n", nil},
				{"Cookie", "Cookie: a=b\r\n\r\n", nil},
			} {
				from := from(t, fmt.Sprintf("127.0.1.%d", i+1))
				get(t, from, p.base)
				served := p.served.Load()
				resp := preflight(t, from, host, tt.more)
				want := tt.status[name]
				if want == 0 {
					want = 429
				}
				if resp.StatusCode != want || p.served.Load() == served != (want == 429) {
					t.Errorf("%s: got %d, and the upstream served %d; want %d", tt.name, resp.StatusCode, p.served.Load()-served, want)
				}
			}
		})
	}
}

// preflight sends a CORS preflight and returns the answer. The request ends with the text in
// more: further header fields, an empty line and perhaps a body.
func preflight(t *testing.T, client *http.Client, host, more string) *http.Response {
	t.Helper()
	conn, err := client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "OPTIONS /auth/nginx/no-body HTTP/1.1\r\nHost: %s\r\nOrigin: https://example.com\r\nAccess-Control-Request-Method: POST\r\n%s", host, more)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestReloadBehindNginx: while the file is rewritten again and again, clients get only 200 or
// 429. As many requests pass as the last limit allows.
func TestReloadBehindNginx(t *testing.T) {
	const reloads, clients = 20, 4
	p := behind(t, 1, nginx())
	var statuses [600]atomic.Int64
	var visitors [clients]*http.Client
	for i := range visitors {
		visitors[i] = from(t, "127.0.0.2")
	}
	stop := weirtest.Meanwhile(clients, func(i int) bool {
		resp, err := visitors[i].Get(p.base)
		if err != nil {
			t.Error(err)
			return false
		}
		resp.Body.Close()
		statuses[resp.StatusCode].Add(1)
		return true
	})
	for i := range reloads {
		writeLimits(t, p.limits, 10*(i+1))
		if _, err := p.rules.Reload(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(time.Minute); statuses[200].Load() < int64(10*(i+1)); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) { // the new limit should be used up
				t.Errorf("after %d reloads %d requests got 200", i+1, statuses[200].Load())
				break
			}
		}
		if t.Failed() {
			break
		}
	}
	stop()
	for status := range statuses {
		if n := statuses[status].Load(); n > 0 && status != 200 && status != 429 {
			t.Errorf("%d requests got %d", n, status)
		}
	}
	if n := statuses[200].Load(); n != 10*reloads || p.served.Load() != n {
		t.Errorf("%d requests got 200 and %d reached the upstream, want %d", n, p.served.Load(), 10*reloads)
	}
	t.Logf("%d got 200, %d got 429", statuses[200].Load(), statuses[429].Load())
}

// restarting is a server on a fixed address that can be stopped and started again.
type restarting struct {
	addr string
	h    http.Handler
	srv  *http.Server
}

func (s *restarting) start(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.srv = &http.Server{Handler: s.h}
	go s.srv.Serve(ln)
}

// TestRollingRestart: two replicas behind nginx are restarted one after the other, so that
// one of them always answers. No request passes unchecked.
func TestRollingRestart(t *testing.T) {
	const limit = 20
	var second restarting
	p := behind(t, limit, func(t *testing.T, ports *strings.Replacer) {
		second.addr = redistest.FreeAddr()
		sample, err := os.ReadFile("nginx.conf")
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`server 127\.0\.0\.1:9090.*;`).FindString(string(sample)) // twice, as a user would write it
		nginx(line, line+"\n"+strings.Replace(line, "127.0.0.1:9090", second.addr, 1))(t, ports)
	})
	first := restarting{addr: p.internal.Listener.Addr().String(), h: p.gateway.internal()}
	second.h = first.h
	client := from(t, "127.0.0.2")
	ask := func() {
		for range 2 * limit {
			get(t, client, p.base)
		}
	}
	second.start(t)
	ask()
	p.internal.CloseClientConnections()
	p.internal.Close()
	ask() // the second replica answers
	first.start(t)
	second.srv.Close()
	ask() // the first replica answers
	second.start(t)
	ask()
	first.srv.Close()
	ask()
	second.srv.Close()
	if n := p.served.Load(); n != limit {
		t.Errorf("%d requests passed during the restarts, want %d", n, limit)
	}
}

// TestRefusalBehindProxy: clients behind nginx get the type of a refusal and its status as Weir
// chose them, also if nginx has little room for the header fields of Weir's answer. A refusal
// with another status than 429 is a refusal for nginx and for Envoy, too, for which a 5xx
// would mean that Weir is down.
func TestRefusalBehindProxy(t *testing.T) {
	p := behind(t, 1, nginx())
	rule := func(name, more string) string {
		return fmt.Sprintf("- {name: %s, %s}\n", name, more)
	}
	const head = "trusted-proxies: [127.0.0.1]\nheaders: [ietf, x-ratelimit]\nlimits:\n"
	long := head
	for i := range 60 {
		long += rule(fmt.Sprintf("a-rule-with-a-long-name-for-header-fields-%d", i), "config: [{name: requests-of-a-client, limit: 1, period: 1h}]")
	}
	for i, tt := range []struct {
		name, file string
		status     int
		kind       string
	}{
		{"a limit", head + rule("a", "config: [{limit: 1, period: 1h}]"), 429, "quota-exceeded"},
		{"a deny list", head + rule("a", "deny: [127.0.1.0/24], config: [{limit: 1, period: 1h}]"), 429, "abnormal-usage-detected"},
		{"another status", head + rule("a", "status: 503, config: [{limit: 1, period: 1h}]"), 503, "temporary-reduced-capacity"},
		{"long header fields", long, 429, "quota-exceeded"},
	} {
		writeFile(t, p.limits, tt.file)
		if _, err := p.rules.Reload(); err != nil {
			t.Fatal(err)
		}
		client := fmt.Sprintf("127.0.1.%d", i+1)
		get(t, from(t, client), p.base)
		served := p.served.Load()
		resp, body := get(t, from(t, client), p.base)
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.kind) || p.served.Load() != served {
			t.Errorf("%s behind nginx: got %d, %s, served: %v; want %d, %s", tt.name, resp.StatusCode, body, p.served.Load() != served, tt.status, tt.kind)
		}
		if resp.Header.Get("Weir-Problem") != "" {
			t.Errorf("%s: the client got the header fields for nginx: %v", tt.name, resp.Header)
		}
		for path, want := range map[string]int{"/auth/envoy": 429, "/auth": tt.status, "/auth/nginx": 403} {
			header := append(asking(client), "X-Original-Method", "GET", "X-Original-Url", "http://a/")
			resp, body := get(t, http.DefaultClient, p.internal.URL+path, header...)
			size := 0
			for name, values := range resp.Header {
				for _, v := range values {
					size += len(name) + len(": \r\n") + len(v)
				}
			}
			if resp.StatusCode != want || size > 4000 { // nginx has room for 4 KiB
				t.Errorf("%s, %s: got %d, %s with %d bytes of header fields; want %d", tt.name, path, resp.StatusCode, body, size, want)
			}
		}
	}
}

// TestNginxWithoutGateway: while the gateway is unreachable, nginx passes requests on. Without
// the error_page of nginx.conf it answers them with a 500.
func TestNginxWithoutGateway(t *testing.T) {
	for _, tt := range []struct {
		edits  []string
		status int
	}{
		{nil, 200},
		{[]string{"error_page 502 504 = @open;", ""}, 500},
	} {
		p := behind(t, 1, nginx(tt.edits...))
		client := from(t, "127.0.0.2")
		for _, want := range []int{200, 429} {
			if resp, body := get(t, client, p.base); resp.StatusCode != want {
				t.Errorf("with a gateway: got %d, %s; want %d", resp.StatusCode, body, want)
			}
		}
		p.internal.CloseClientConnections()
		p.internal.Close()
		for range 3 {
			if resp, body := get(t, client, p.base); resp.StatusCode != tt.status {
				t.Errorf("without a gateway: got %d, %s; want %d", resp.StatusCode, body, tt.status)
			}
		}
	}
}
