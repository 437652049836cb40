package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// switches answers a request for another protocol with 101, as lenient servers do.
func switches(w http.ResponseWriter, r *http.Request) bool {
	protocol := r.Header.Get("Upgrade")
	if protocol == "" {
		return false
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return false
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	return true
}

// upgrade asks the server at base for other protocols, and returns the status of the response.
func upgrade(t *testing.T, base string, protocols ...string) int {
	t.Helper()
	host := strings.TrimPrefix(base, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /upgrade HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", host)
	fmt.Fprint(conn, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n")
	for _, p := range protocols {
		fmt.Fprintf(conn, "Upgrade: %s\r\n", p)
	}
	fmt.Fprint(conn, "\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// upgrades are lists of protocols, and the status of the response to a request for them by way of a
// proxy whose upstream agrees to any. What a client sends after a 101 is not limited: by h2c (RFC
// 7540, 3.2) it could send any number of requests.
var upgrades = []struct {
	protocols []string
	status    int
}{
	{[]string{"websocket"}, 101}, {[]string{"WebSocket"}, 101},
	{[]string{"h2c"}, 200}, {[]string{"H2C"}, 200}, {[]string{"h2c, websocket"}, 200}, {[]string{"websocket, h2c"}, 200},
	{[]string{"TLS/1.0"}, 200}, {[]string{"h2c", "websocket"}, 200}, {nil, 200},
}

// TestUpgrade: weir serve -upstream forwards a request for a WebSocket, and for no other protocol.
func TestUpgrade(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := r.Header["Http2-Settings"]; s != nil {
			t.Errorf("the upstream got HTTP2-Settings: %v", s)
		}
		switches(w, r)
	}))
	defer upstream.Close()
	g, _ := start(t, 100)
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g.proxy(to))
	defer server.Close()
	for _, tt := range upgrades {
		if got := upgrade(t, server.URL, tt.protocols...); got != tt.status {
			t.Errorf("Upgrade %q: got %d, want %d", tt.protocols, got, tt.status)
		}
	}
}

// TestUpgradeBehindProxy: with the sample configurations neither nginx nor Caddy forwards a request
// for another protocol than WebSocket. That of nginx forwards none.
func TestUpgradeBehindProxy(t *testing.T) {
	t.Run("Caddy", func(t *testing.T) {
		p := behind(t, 100, caddy)
		for _, tt := range upgrades {
			if got := upgrade(t, p.base, tt.protocols...); got != tt.status {
				t.Errorf("Upgrade %q: got %d, want %d", tt.protocols, got, tt.status)
			}
		}
	})
	t.Run("nginx", func(t *testing.T) {
		p := behind(t, 100, nginx())
		for _, tt := range upgrades {
			if got := upgrade(t, p.base, tt.protocols...); got != 200 {
				t.Errorf("Upgrade %q: got %d, want 200", tt.protocols, got)
			}
		}
	})
}
