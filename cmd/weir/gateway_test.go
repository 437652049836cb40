package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

const testLimits = `
trusted-proxies: [127.0.0.1]
free-preflights: true
headers: ietf
limits:
- name: client
  config: [{name: requests, algorithm: sliding-log, limit: %d, period: 60}]
- name: writes
  key: [ip, method]
  config: [{limit: 1000, period: 60}]
`

// writeLimits writes a file of rules. The argument limit is the number of requests that each
// client may send in a minute.
func writeLimits(t *testing.T, path string, limit int) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, testLimits, limit), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start returns a gateway and the path of its file of rules, which writeLimits has written.
func start(t *testing.T, limit int) (g *gateway, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, limit)
	store := memstore.New(memstore.Options{})
	g, err := newGateway(&options{limits: path, readTimeout: time.Minute, bodyPause: time.Minute, recorder: watch.NewRecorder(1000, 100_000)}, &stores{store: store}, overrides.NewLive(overrides.LiveOptions{}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return g, path
}

// from returns an HTTP client whose requests come from addr. Linux accepts every address of
// 127.0.0.0/8; on other systems the test is skipped unless addr is 127.0.0.1.
func from(t *testing.T, addr string) *http.Client {
	if runtime.GOOS != "linux" && addr != "127.0.0.1" {
		t.Skipf("%s has no %s", runtime.GOOS, addr)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}, Timeout: 5 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// get sends a request with header fields, given as pairs. It returns the answer and its body.
func get(t *testing.T, client *http.Client, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// falls reports whether a number of seconds was n at an instant after began, and has fallen since at most.
func falls(seconds string, n int, began time.Time) bool {
	got, err := strconv.Atoi(seconds)
	return err == nil && got <= n && got >= n-int(time.Since(began)/time.Second)
}

// TestProxy: the upstream gets paths and queries as the client sent them, and the address of the client.
// Requests above the limit do not reach the upstream.
func TestProxy(t *testing.T) {
	g, _ := start(t, 2)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RequestURI, " ", r.Header["X-Forwarded-For"])
	}))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g.proxy(to))
	defer server.Close()
	for _, tt := range []struct {
		from, path, forwarded string
		status                int
		body                  string
	}{
		{"127.0.0.2", "/a//b/../%2f?q=%2f&100%&a;b", "", 200, "/a//b/../%2f?q=%2f&100%&a;b [127.0.0.2]"},
		{"127.0.0.2", "/", "192.0.2.1", 200, "/ [192.0.2.1, 127.0.0.2]"},
		{"127.0.0.2", "/", "192.0.2.2", 429, "quota-exceeded"}, // 127.0.0.2 is not trusted, so the field is ignored
		{"127.0.0.2", "/rate_limit", "", 200, `"remaining":0`},
		{"127.0.0.1", "/", "192.0.2.3", 200, "/ [192.0.2.3, 127.0.0.1]"},
		{"127.0.0.1", "/", "192.0.2.4, 192.0.2.3", 200, "/ [192.0.2.4, 192.0.2.3, 127.0.0.1]"},
		{"127.0.0.1", "/", "192.0.2.5, 192.0.2.3", 429, "quota-exceeded"},
	} {
		var header []string
		if tt.forwarded != "" {
			header = []string{"X-Forwarded-For", tt.forwarded}
		}
		resp, body := get(t, from(t, tt.from), server.URL+tt.path, header...)
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.body) {
			t.Errorf("%+v: got %d, %s", tt, resp.StatusCode, body)
		}
	}
	upstream.Close()
	if resp, body := get(t, from(t, "127.0.0.3"), server.URL); resp.StatusCode != 502 || body != "" {
		t.Errorf("without an upstream: got %d, %q; want a bare 502", resp.StatusCode, body)
	}
}

// TestPathsUnchanged: whatever net/url would encode in another way, the upstream gets the path with the
// same slashes and dots, encoded or not, as the client sent it.
func TestPathsUnchanged(t *testing.T) {
	g, _ := start(t, 100)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RequestURI)
		if e := r.Header["Accept-Encoding"]; e != nil {
			t.Errorf("%s: got Accept-Encoding %q, which the client has not sent", r.RequestURI, e)
		}
	}))
	defer upstream.Close()
	for base, paths := range map[string][][2]string{
		"": {{"/a%2Fb|c", "/a%2Fb%7Cc"}, {"/%2e%2e/\"^`{}<>\\?|", "/%2e%2e/%22%5E%60%7B%7D%3C%3E%5C?|"}, {"/é%c3?", "/%C3%A9%c3?"}, {"//a|%2F", "//a%7C%2F"},
			{"/!$&'()*+,;=:@[]~%41", "/!$&'()*+,;=:@[]~%41"}, {"/a#%2F", "/a%23%2F"}, {"http://x/a%2F|", "/a%2F%7C"}, {"http://x", "/"}},
		"/base":  {{"/a%2Fb|c", "/base/a%2Fb%7Cc"}, {"/", "/base/"}, {"//a|%2F", "/base//a%7C%2F"}, {"http://x/a%2F", "/base/a%2F"}},
		"/b%2F/": {{"/a%2Fb|c?q", "/b%2F/a%2Fb%7Cc?q"}},
	} {
		to, err := url.Parse(upstream.URL + base)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(g.proxy(to))
		defer server.Close()
		for _, path := range paths {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n", path[0])
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, _ := io.ReadAll(resp.Body); string(body) != path[1] {
				t.Errorf("%s behind %q: got %d %s, want %s", path[0], base, resp.StatusCode, body, path[1])
			}
		}
	}
}

// TestSpacesInPath: a space, which only HTTP/2 can have in a path, does not end the path in the request
// to the upstream.
func TestSpacesInPath(t *testing.T) {
	g, _ := start(t, 100)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	defer upstream.Close()
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	r.RequestURI = "/a HTTP/1.1|%2F?b c HTTP/1.1"
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil {
		t.Fatal(err)
	}
	g.proxy(to).ServeHTTP(w, r)
	if got, want := w.Body.String(), "/a%20HTTP/1.1%7C%2F?b%20c%20HTTP/1.1"; got != want {
		t.Errorf("got %d %s, want %s", w.Code, got, want)
	}
}

// TestAnswersUnchanged: a client gets no media type that the upstream has not sent, because with
// X-Content-Type-Options a browser would believe it. A status that net/http cannot write becomes a 502.
func TestAnswersUnchanged(t *testing.T) {
	g, _ := start(t, 100)
	answer := ""
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	go func() {
		for {
			conn, err := upstream.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(conn))
			fmt.Fprintf(conn, "HTTP/1.1 %s\r\nConnection: close\r\n\r\n<html>", answer)
			conn.Close()
		}
	}()
	server := httptest.NewServer(g.proxy(&url.URL{Scheme: "http", Host: upstream.Addr().String()}))
	defer server.Close()
	for _, tt := range []struct {
		answer string
		status int
		media  []string
	}{
		{"200 OK", 200, nil},
		{"200 OK\r\nX-Content-Type-Options: nosniff", 200, nil},
		{"404 Not Found\r\nContent-Type: image/png", 404, []string{"image/png"}},
		{"200 OK\r\nContent-Type:", 200, []string{""}},
		{"299 Odd", 299, nil},
		{"103 Early Hints\r\n\r\nHTTP/1.1 200 OK", 200, nil},
		{"099 Odd", 502, nil},
		{"000 Odd", 502, nil},
	} {
		answer = tt.answer
		resp, _ := get(t, server.Client(), server.URL)
		if resp.StatusCode != tt.status || !slices.Equal(resp.Header["Content-Type"], tt.media) {
			t.Errorf("%q: got %d, %q", tt.answer, resp.StatusCode, resp.Header["Content-Type"])
		}
	}
}

// TestUpstreamForwarded: the upstream gets the scheme and the host that a trusted proxy has got from the
// client, and those of the connection from any other peer. Otherwise an upstream behind a proxy that ends
// TLS would redirect each request to https for ever. A client cannot send the fields with underscores, which
// many frameworks read as dashes.
func TestUpstreamForwarded(t *testing.T) {
	g, _ := start(t, 100)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header["X-Forwarded-Proto"], r.Header["X-Forwarded-Host"])
		for name, values := range r.Header {
			if strings.Contains(name, "_") {
				fmt.Fprint(w, " ", name, values)
			}
		}
	}))
	defer upstream.Close()
	to, _ := url.Parse(upstream.URL)
	server := httptest.NewServer(g.proxy(to))
	defer server.Close()
	own := strings.TrimPrefix(server.URL, "http://")
	for _, tt := range []struct {
		from   string
		header []string
		want   string
	}{
		{"127.0.0.1", []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "example.com"}, "[https] [example.com]"},
		{"127.0.0.1", []string{"X-Forwarded-Proto", "https"}, "[https] [" + own + "]"},
		{"127.0.0.1", nil, "[http] [" + own + "]"},
		{"127.0.0.2", []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "example.com"}, "[http] [" + own + "]"},
		{"127.0.0.2", []string{"X_Forwarded_Proto", "https", "x-forwarded_FOR", "192.0.2.1", "X_forwarded-Host", "example.com", "X_Id", "1"}, "[http] [" + own + "] X_id[1]"},
	} {
		if _, got := get(t, from(t, tt.from), server.URL, tt.header...); got != tt.want {
			t.Errorf("from %s with %v: got %s, want %s", tt.from, tt.header, got, tt.want)
		}
	}
}

// TestRateLimitIsLimited: a client may ask for its quota 60 times a minute. A trusted proxy names
// the client. Other clients, and the requests of this one, are not affected.
func TestRateLimitIsLimited(t *testing.T) {
	g, _ := start(t, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	to, _ := url.Parse(upstream.URL)
	server := httptest.NewServer(g.proxy(to))
	defer server.Close()
	client, began, statuses := from(t, "127.0.0.1"), time.Now(), map[int]int{}
	for range 200 {
		resp, _ := get(t, client, server.URL+"/rate_limit", "X-Forwarded-For", "192.0.2.1")
		statuses[resp.StatusCode]++
	}
	if most := 61 + int(time.Since(began)/time.Second); statuses[200] < 60 || statuses[200] > most || statuses[200]+statuses[429] != 200 {
		t.Errorf("200 questions: got %v, want 60 to %d times 200, and 429", statuses, most)
	}
	for path, client := range map[string]string{"/rate_limit": "192.0.2.2", "/": "192.0.2.1"} {
		if resp, body := get(t, from(t, "127.0.0.1"), server.URL+path, "X-Forwarded-For", client); resp.StatusCode != 200 {
			t.Errorf("%s of %s: got %d, %s", path, client, resp.StatusCode, body)
		}
	}
}

// TestAuth: a proxy that asks /auth gets 200, or a refusal with Retry-After and the status that
// the parameter refuse names. A question without the necessary fields, or from an address that
// is not trusted, gets a 400 and is not counted.
func TestAuth(t *testing.T) {
	g, _ := start(t, 1)
	server := httptest.NewServer(g.internal())
	defer server.Close()
	began := time.Now()
	asked := func(client string) []string {
		return []string{"X-Forwarded-Method", "POST", "X-Forwarded-Uri", "/x", "X-Forwarded-For", client}
	}
	for _, tt := range []struct {
		name, from, path string
		header           []string
		status           int
		retryAfter       string
	}{
		{"first", "127.0.0.1", "", asked("192.0.2.1"), 200, ""},
		{"second", "127.0.0.1", "", asked("192.0.2.1"), 429, "60"},
		{"for nginx", "127.0.0.1", "/nginx", asked("192.0.2.1"), 403, "60"},
		{"an address that the client forged, before that of the proxy", "127.0.0.1", "", asked("192.0.2.9, 192.0.2.1"), 429, "60"},
		{"another client", "127.0.0.1", "/nginx", asked("192.0.2.2"), 200, ""},
		{"a URI that can't be parsed", "127.0.0.1", "", []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "%zz", "X-Forwarded-For", "192.0.2.2"}, 429, "60"},
		{"a proxy that is not trusted", "127.0.0.2", "", asked("192.0.2.3"), 400, ""},
		{"no client", "127.0.0.1", "", asked("")[:4], 400, ""},
		{"no request", "127.0.0.1", "", nil, 400, ""},
	} {
		resp, body := get(t, from(t, tt.from), server.URL+"/auth"+tt.path, tt.header...)
		wait := resp.Header.Get("Retry-After")
		if resp.StatusCode != tt.status || wait != tt.retryAfter && (tt.retryAfter == "" || !falls(wait, 60, began)) {
			t.Errorf("%s: got %d, Retry-After: %s, %s; want %d, %s", tt.name, resp.StatusCode, wait, body, tt.status, tt.retryAfter)
		}
		if limited := resp.StatusCode != 400; (resp.Header.Get("RateLimit") != "") != limited {
			t.Errorf("%s: got RateLimit: %s", tt.name, resp.Header.Get("RateLimit"))
		}
	}
	_, body := get(t, http.DefaultClient, server.URL+"/metrics")
	if want := `weir_decisions_total{limit="requests",mode="enforced",outcome="allowed",rule="client"} 2`; !strings.Contains(body, want) {
		t.Errorf("got metrics\n%s\nwant %s", body, want)
	}
}

// TestDialects: the rules see the request that each proxy describes in its own header fields.
// The fields of other proxies, which a client could make up, are ignored. The test sends the
// questions that the proxies document. TestBehindProxy also runs nginx and Caddy.
func TestDialects(t *testing.T) {
	const mine, other = "192.0.2.1", "192.0.2.2"
	forged := []string{"X-Forwarded-Method", "PUT", "X-Forwarded-Uri", "/forged", "X-Original-Method", "PUT", "X-Original-Url", "http://forged/forged", "X-Real-Ip", other, "Forwarded", "for=" + other}
	for _, tt := range []struct {
		name, method, path string
		header             []string // the fields that the proxy sends
		request            string   // the method, host and path that the rules see
		refused            int
	}{
		{"Traefik", "GET", "/auth", []string{"X-Forwarded-Method", "POST", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "app.example", "X-Forwarded-Uri", "/a?b=c", "X-Forwarded-For", mine}, "POST app.example /a", 429},
		{"Caddy", "GET", "/auth?", []string{"X-Forwarded-Method", "POST", "X-Forwarded-Proto", "http", "X-Forwarded-Host", "app.example", "X-Forwarded-Uri", "/a?b=c", "X-Forwarded-For", mine}, "POST app.example /a", 429},
		{"nginx, a whole URL of the client", "GET", "/auth/nginx", []string{"X-Forwarded-Method", "POST", "X-Forwarded-Uri", "https://app.example/a?b=c", "X-Forwarded-For", mine}, "POST app.example /a", 403},
		{"Envoy", "POST", "/auth/envoy/a?b=c", []string{"X-Forwarded-For", mine + ", 127.0.0.1", "Content-Length", "0"}, "POST app.example /a", 429},
		{"Envoy, a path that is not clean", "POST", "/auth/envoy//a/../b?q", []string{"X-Forwarded-For", mine}, "POST app.example //a/../b", 429},
		{"Envoy, without a path", "GET", "/auth/envoy", []string{"X-Forwarded-For", mine}, "GET app.example ", 429},
	} {
		var saw *http.Request
		g, _ := start(t, 1)
		limit := g.limit
		g.limit = func(next http.Handler) http.Handler {
			limited := limit(next)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { saw = r; limited.ServeHTTP(w, r) })
		}
		server := httptest.NewServer(g.internal())
		ask := func(header []string) int {
			saw = nil
			return question(t, tt.method, server.URL+tt.path, slices.Concat(forged, header))
		}
		for _, want := range []int{200, tt.refused} {
			if got := ask(tt.header); got != want {
				t.Errorf("%s: got %d, want %d", tt.name, got, want)
			}
		}
		// The content types of RPC protocols, which a client may make up, are refused as well: the
		// proxy would take the status 200, with which these protocols refuse, for "allowed".
		for _, rpc := range []string{"application/grpc", "application/grpc-web", "application/grpc-web-text", "application/connect+proto", "application/proto", "application/json"} {
			if got := ask(slices.Concat(tt.header, []string{"Content-Type", rpc, "Connect-Protocol-Version", "1"})); got != tt.refused {
				t.Errorf("%s, %s: got %d, want %d", tt.name, rpc, got, tt.refused)
			}
		}
		if saw == nil {
			t.Errorf("%s: no rule saw a request", tt.name)
		} else if got := saw.Method + " " + saw.Host + " " + saw.URL.Path; got != tt.request {
			t.Errorf("%s: the rules saw %s, want %s", tt.name, got, tt.request)
		}
		if slices.Contains(tt.header, "X-Forwarded-For") {
			without := slices.Concat(tt.header, []string{"X-Forwarded-For", ""})
			if got := ask(without); got != 400 {
				t.Errorf("%s without X-Forwarded-For: got %d, want 400", tt.name, got)
			}
		}
		server.Close()
	}
}

// question sends the question of a proxy for app.example, and returns the status of the answer.
// header has names and values in turn. If header has a name twice, the last value counts.
func question(t *testing.T, method, url string, header []string) int {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "app.example"
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestOriginal: the rules see the method, host and URL of the request that the proxy describes.
func TestOriginal(t *testing.T) {
	r := httptest.NewRequest("GET", "http://gateway/auth/nginx", nil)
	for name, value := range map[string]string{"Method": "PUT", "Uri": "/a%2Fb?q=1", "Host": "api.example", "For": "192.0.2.1"} {
		r.Header.Set("X-Forwarded-"+name, value)
	}
	o, _ := forwarded(r)
	if got := fmt.Sprint(o.Method, " ", o.Host, " ", o.URL, " ", o.URL.Query(), " ", o.ContentLength); got != "PUT api.example /a%2Fb?q=1 map[q:[1]] 0" {
		t.Errorf("got %s", got)
	}
}

// TestOperatorsOnly: only requests with the token pass, as a bearer token or as a password.
func TestOperatorsOnly(t *testing.T) {
	const token = "a secret of many bytes"
	g, _ := start(t, 1)
	server := httptest.NewServer(ops.Authenticate(token, g.logger, g.admin))
	defer server.Close()
	basic := func(r *http.Request, password string) { r.SetBasicAuth("anyone", password) }
	bearer := func(r *http.Request, token string) { r.Header.Set("Authorization", "bearer "+token) }
	for _, tt := range []struct {
		set   func(r *http.Request, token string)
		token string
		want  int
	}{
		{func(*http.Request, string) {}, "", 401},
		{basic, "", 401},
		{basic, "A secret of many bytes", 401},
		{basic, token, 200},
		{bearer, "", 401},
		{bearer, token + "x", 401},
		{bearer, token, 200},
	} {
		req, _ := http.NewRequest("GET", server.URL+"/rules", nil)
		tt.set(req, tt.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%s: got %d, want %d", req.Header, resp.StatusCode, tt.want)
		}
	}
}

// TestWrongTokens: wrong tokens are logged, without the token, and an address that sends many gets a
// 429 for each further one. The right token works from every address, as do requests without a token.
// The log does not grow with the number of guesses.
func TestWrongTokens(t *testing.T) {
	var warnings weirtest.Log
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&warnings, nil)))
	defer slog.SetDefault(old)
	defer func() { // a forwarded request of an operator says nothing about the trusted-proxies of the limits
		if strings.Contains(warnings.String(), "trusted prefix") {
			t.Errorf("got the warning %s", &warnings)
		}
	}()
	const token = "a secret of many bytes"
	g, _ := start(t, 1)
	log := &weirtest.Log{}
	server := httptest.NewServer(ops.Authenticate(token, slog.New(slog.NewTextHandler(log, nil)), g.admin))
	defer server.Close()
	ask := func(addr, token string) (status int, retryAfter string) {
		header := []string{"Authorization", "Bearer " + token, "X-Forwarded-For", "203.0.113.9"}
		if token == "" {
			header = nil
		}
		resp, _ := get(t, from(t, addr), server.URL+"/rules", header...)
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	for range 50 {
		if status, _ := ask("127.0.0.2", ""); status != 401 {
			t.Fatalf("without a token: got %d, want 401", status)
		}
	}
	if status, _ := ask("127.0.0.2", token); status != 200 {
		t.Fatalf("after requests without a token: got %d, want 200", status)
	}
	statuses, began := map[int]int{}, time.Now()
	for i := range 100 {
		status, _ := ask("127.0.0.2", fmt.Sprint("guess", i))
		statuses[status]++
	}
	most := 11 + int(time.Since(began)/(6*time.Second))
	if statuses[401] < 10 || statuses[401] > most || statuses[401]+statuses[429] != 100 {
		t.Errorf("100 wrong tokens: got %v, want 10 to %d times 401, and 429", statuses, most)
	}
	for _, addr := range []string{"127.0.0.2", "127.0.0.3"} {
		if status, _ := ask(addr, token); status != 200 {
			t.Errorf("the right token from %s after 100 wrong ones of 127.0.0.2: got %d, want 200", addr, status)
		}
	}
	if status, retry := ask("127.0.0.2", "guess"); time.Since(began) < 6*time.Second && (status != 429 || retry == "" || retry == "0") {
		t.Errorf("another wrong token: got %d, Retry-After %q; want 429 and a wait", status, retry)
	}
	lines := strings.Count(log.String(), "wrong token of an operator")
	if strings.Contains(log.String(), "guess") || lines < 1 || lines > 2+int(time.Since(began)/time.Second) {
		t.Errorf("got %d lines for 100 wrong tokens, want one a second and no token:\n%s", lines, log)
	}
}

// TestSparseLines: requests that fail because the upstream is gone, and questions from an
// address that is not trusted, are logged once a second, however many there are.
func TestSparseLines(t *testing.T) {
	g, _ := start(t, 100_000)
	log := &weirtest.Log{}
	g.logger = slog.New(slog.NewTextHandler(log, nil))
	gone, _ := url.Parse("http://127.0.0.1:1")
	proxy, internal := httptest.NewServer(g.proxy(gone)), httptest.NewServer(g.internal())
	defer proxy.Close()
	defer internal.Close()
	began := time.Now()
	client := from(t, "127.0.0.2")
	for range 100 {
		get(t, client, proxy.URL+"/secret")
		get(t, client, internal.URL+"/auth/envoy/secret", asking("192.0.2.1")...)
		get(t, http.DefaultClient, internal.URL+"/auth") // a trusted proxy that lacks a line of its sample
	}
	most := 1 + int(time.Since(began)/time.Second)
	for _, line := range []string{"request to the upstream failed", "proxy not in trusted-proxies refused", "request of a proxy without a header field refused"} {
		if n := strings.Count(log.String(), line); n < 1 || n > most {
			t.Errorf("%q is logged %d times for 100 requests, want 1 to %d times", line, n, most)
		}
	}
	if strings.Contains(log.String(), "/secret") {
		t.Errorf("the log has the path of a client:\n%s", log)
	}
}

// TestMiswiredProxies: what a proxy calls /auth with in error is logged by name with a fix, once if
// the call still works, and each refused call is counted.
func TestMiswiredProxies(t *testing.T) {
	const file, fields, paths = "trusted-proxies", "as the sample configurations do", "call /auth/nginx from nginx"
	for _, tt := range []struct {
		name, from, path string
		minor            int // of the version of HTTP/1
		header           []string
		status           int
		reason           string // of the metric
		log, fix         string // "" if nothing is logged
	}{
		{"nginx", "127.0.0.1:1", "/auth/nginx", 0, asking("192.0.2.1"), 200, "", "", ""},
		{"Caddy", "127.0.0.1:1", "/auth", 1, asking("192.0.2.1"), 200, "", "", ""},
		{"another proxy", "127.0.0.2:1", "/auth", 1, asking("192.0.2.1"), 400, "proxy", `addr=127.0.0.2:1`, file},
		{"no field", "127.0.0.1:1", "/auth", 1, asking("192.0.2.1")[2:], 400, "field", "field=X-Forwarded-Method", fields},
		{"a slash at the end", "127.0.0.1:1", "/auth/", 1, asking("192.0.2.1"), 404, "path", "unknown path", paths},
		{"another case", "127.0.0.1:1", "/Auth", 1, asking("192.0.2.1"), 404, "path", "unknown path", paths},
		{"a path with the client's", "127.0.0.1:1", "/auth/nginx/secret", 1, asking("192.0.2.1"), 404, "path", "unknown path", paths},
		{"nginx with the path of others", "127.0.0.1:1", "/auth", 0, asking("192.0.2.1"), 200, "", "HTTP/1.0", paths},
		{"nginx with the parameter of an old nginx.conf", "127.0.0.1:1", "/auth?refuse=403", 1, asking("192.0.2.1"), 200, "", "refuse=403", paths},
		{"a path of another handler", "127.0.0.1:1", "/authors", 1, nil, 404, "path", "unknown path", paths},
		{"the path of the location", "127.0.0.1:1", "/weir", 1, asking("192.0.2.1"), 404, "path", "whose proxy_pass names no path", paths},
		{"the path of the client", "127.0.0.1:1", "/secret", 1, asking("192.0.2.1"), 404, "path", "sends another path: that of the client", paths},
		{"the path of the client, from elsewhere", "127.0.0.2:1", "/secret", 1, asking("192.0.2.1"), 404, "", "", ""},
		{"another method", "127.0.0.1:1", "/reserve", 1, nil, 405, "", "", ""},
		{"another method, behind a proxy", "127.0.0.1:1", "/reserve", 1, asking("192.0.2.1"), 405, "", "", ""},
		{"metrics behind a proxy", "127.0.0.1:1", "/metrics", 1, asking("192.0.2.1"), 200, "", "", ""},
		{"no path of /auth", "127.0.0.1:1", "/au", 1, nil, 404, "", "", ""},
	} {
		g, _ := start(t, 20)
		log := &weirtest.Log{}
		g.logger = slog.New(slog.NewTextHandler(log, nil))
		internal := g.internal()
		for range 3 {
			r := httptest.NewRequest("GET", "http://gateway"+tt.path, nil)
			r.RemoteAddr, r.ProtoMinor = tt.from, tt.minor
			for i := 0; i < len(tt.header); i += 2 {
				r.Header.Set(tt.header[i], tt.header[i+1])
			}
			w := httptest.NewRecorder()
			if internal.ServeHTTP(w, r); w.Code != tt.status {
				t.Errorf("%s: got %d %s, want %d", tt.name, w.Code, w.Body, tt.status)
			}
		}
		text, fix := log.String(), tt.fix
		if lines := strings.Count(text, "level=WARN"); tt.log == "" && lines > 0 || tt.log != "" && (lines < 1 || !strings.Contains(text, tt.log) || !strings.Contains(text, fix)) || strings.Contains(text, "secret") || len(text) > 1000*lines {
			t.Errorf("%s: got the log %q, want %s … %s", tt.name, text, tt.log, fix)
		}
		w := httptest.NewRecorder()
		internal.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, reason := range []string{"proxy", "field", "path"} {
			n := 0
			if reason == tt.reason {
				n = 3
			}
			if want := fmt.Sprintf("weir_auth_rejected_total{reason=%q} %d\n", reason, n); !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: the metrics lack %s", tt.name, want)
			}
		}
	}
}

// TestUpstreamFields: a client gets the limits of the file, and none of the upstream's, after a 100 of
// the upstream too.
func TestUpstreamFields(t *testing.T) {
	g, _ := start(t, 20)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // net/http then sends the 100
		w.Header().Set("RateLimit-Policy", "777")
		w.Header().Set("X-RateLimit-Limit", "777")
	}))
	defer upstream.Close()
	to, _ := url.Parse(upstream.URL)
	server := httptest.NewServer(g.proxy(to))
	defer server.Close()
	want := `["client/requests";q=20;w=60, "writes";q=1000;w=60] []`
	for _, expect := range []string{"", "100-continue"} {
		r, _ := http.NewRequest("POST", server.URL, strings.NewReader("body"))
		r.Header.Set("Expect", expect)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := fmt.Sprint(res.Header["Ratelimit-Policy"], res.Header["X-Ratelimit-Limit"]); res.StatusCode != 200 || got != want {
			t.Errorf("Expect %q: %d %s, want 200 %s", expect, res.StatusCode, got, want)
		}
	}
}

// TestUpstreamConnections: requests that run at the same time leave their connections to the upstream to
// the next ones.
func TestUpstreamConnections(t *testing.T) {
	const many = 40
	g, _ := start(t, 1_000_000)
	var opened atomic.Int64
	together := make(chan chan struct{}, many)
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		all := make(chan struct{})
		together <- all
		<-all
	}))
	upstream.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	upstream.Start()
	defer upstream.Close()
	to, _ := url.Parse(upstream.URL)
	proxy := g.proxy(to)
	for range 3 {
		var running sync.WaitGroup
		for range many {
			running.Go(func() {
				w := httptest.NewRecorder()
				proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if w.Code != 200 {
					t.Errorf("got %d, want 200", w.Code)
				}
			})
		}
		var all []chan struct{}
		for range many {
			all = append(all, <-together)
		}
		for _, one := range all {
			close(one)
		}
		running.Wait()
	}
	if n := opened.Load(); n > many {
		t.Errorf("%d connections for %d requests at a time", n, many)
	}
}
