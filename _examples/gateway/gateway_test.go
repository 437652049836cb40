package main

import (
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
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/memstore"
)

const testLimits = `
trusted-proxies: [127.0.0.1]
headers: ietf
limits:
- name: client
  config: [{name: requests, algorithm: sliding-log, limit: %d, period: 60}]
- name: writes
  key: [ip, method]
  config: [{limit: 1000, period: 60}]
`

// writeLimits writes a file that allows each client so many requests a minute.
func writeLimits(t *testing.T, path string, limit int) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, testLimits, limit), 0o600); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, limit int) (g *gateway, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, path, limit)
	g, err := newGateway(path, memstore.New(memstore.Options{}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return g, path
}

// from returns a client with that address. On Linux this machine has all addresses of
// 127.0.0.0/8.
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

// The upstream gets paths as the client sent them, and the address of the client.
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
	server := httptest.NewServer(g.public(to))
	defer server.Close()
	for _, tt := range []struct {
		from, path, forwarded string
		status                int
		body                  string
	}{
		{"127.0.0.2", "/a//b/../%2f?q=%2f", "", 200, "/a//b/../%2f?q=%2f [127.0.0.2]"},
		{"127.0.0.2", "/", "192.0.2.1", 200, "/ [192.0.2.1, 127.0.0.2]"},
		{"127.0.0.2", "/", "192.0.2.2", 429, "quota-exceeded"}, // the field is not believed
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

func TestAuth(t *testing.T) {
	g, _ := start(t, 1)
	server := httptest.NewServer(g.internal("secret"))
	defer server.Close()
	asked := func(client string) []string {
		return []string{"X-Forwarded-Method", "POST", "X-Forwarded-Uri", "/x", "X-Forwarded-For", client}
	}
	for _, tt := range []struct {
		name, from, query string
		header            []string
		status            int
		retryAfter        string
	}{
		{"first", "127.0.0.1", "", asked("192.0.2.1"), 200, ""},
		{"second", "127.0.0.1", "", asked("192.0.2.1"), 429, "60"},
		{"for Traefik and Caddy", "127.0.0.1", "?refuse=429", asked("192.0.2.1"), 429, "60"},
		{"for nginx", "127.0.0.1", "?refuse=403", asked("192.0.2.1"), 403, "60"},
		{"for somebody else", "127.0.0.1", "?refuse=401", asked("192.0.2.1"), 400, ""},
		{"the client forged what the proxy appends to", "127.0.0.1", "", asked("192.0.2.9, 192.0.2.1"), 429, "60"},
		{"another client", "127.0.0.1", "?refuse=403", asked("192.0.2.2"), 200, ""},
		{"a URI that can't be parsed", "127.0.0.1", "", []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "%zz", "X-Forwarded-For", "192.0.2.2"}, 429, "60"},
		{"who is not trusted", "127.0.0.2", "", asked("192.0.2.3"), 400, ""},
		{"no client", "127.0.0.1", "", asked("")[:4], 400, ""},
		{"no request", "127.0.0.1", "", nil, 400, ""},
	} {
		resp, body := get(t, from(t, tt.from), server.URL+"/auth"+tt.query, tt.header...)
		if resp.StatusCode != tt.status || resp.Header.Get("Retry-After") != tt.retryAfter {
			t.Errorf("%s: got %d, Retry-After: %s, %s; want %d, %s", tt.name, resp.StatusCode, resp.Header.Get("Retry-After"), body, tt.status, tt.retryAfter)
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

// The rules see the request that the proxy describes.
func TestOriginal(t *testing.T) {
	r := httptest.NewRequest("GET", "http://gateway/auth?refuse=403", nil)
	for name, value := range map[string]string{"Method": "PUT", "Uri": "/a%2Fb?q=1", "Host": "api.example", "For": "192.0.2.1"} {
		r.Header.Set("X-Forwarded-"+name, value)
	}
	o := original(r)
	if got := fmt.Sprint(o.Method, " ", o.Host, " ", o.URL, " ", o.URL.Query(), " ", o.ContentLength); got != "PUT api.example /a%2Fb?q=1 map[q:[1]] 0" {
		t.Errorf("got %s", got)
	}
}

func TestAdminNeedsPassword(t *testing.T) {
	g, _ := start(t, 1)
	server := httptest.NewServer(g.internal("secret"))
	defer server.Close()
	for password, want := range map[string]int{"": 401, "Secret": 401, "secret": 200} {
		req, _ := http.NewRequest("GET", server.URL+"/admin/rules", nil)
		if password != "" {
			req.SetBasicAuth("anyone", password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("password %q: got %d, want %d", password, resp.StatusCode, want)
		}
	}
}
