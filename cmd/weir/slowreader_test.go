package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// TestSlowReaders: a client that does not read its response gives back its unit in flight after
// -body-pause. One that reads slowly gets its whole response, however long that takes, and so does one
// whose upstream pauses.
func TestSlowReaders(t *testing.T) {
	const pause, size = 2 * time.Second, 64 << 20
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/large":
			io.Copy(w, io.LimitReader(zeros{}, size))
		case "/slow":
			for range 2 {
				fmt.Fprint(w, "x")
				http.NewResponseController(w).Flush()
				time.Sleep(pause)
			}
		}
	}))
	defer upstream.Close()
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), "limits: [{name: busy, key: global, config: [{limit: 1, period: 1h, algorithm: in-flight}]}]")
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-body-pause", pause.String())
	base := s.url("addr")
	conn, err := net.Dial("tcp", s.addrs["addr"].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
	io.ReadFull(conn, make([]byte, 1)) // the request is in flight
	if resp, _ := get(t, http.DefaultClient, base+"/"); resp.StatusCode != 429 {
		t.Fatalf("while the client does not read: got %d, want 429", resp.StatusCode)
	}
	eventually(t, "the unit in flight comes back", func() bool {
		resp, _ := get(t, http.DefaultClient, base+"/")
		return resp.StatusCode == 200
	})
	if _, body := get(t, http.DefaultClient, base+"/slow"); body != "xx" {
		t.Errorf("an upstream that pauses: got %q, want xx", body)
	}
	if n, err := readSlowly(base+"/large", pause); n != size || err != nil {
		t.Errorf("a client that reads slowly: got %d bytes, %v; want %d", n, err, size)
	}
	resp, body := get(t, http.DefaultClient, base+"/") // on a connection whose last deadline may have passed
	if resp.StatusCode != 200 || strings.TrimSpace(body) != "" {
		t.Errorf("afterwards: got %d %q", resp.StatusCode, body)
	}
}

// TestPausesOverHTTP2: over HTTP/2, too, an upstream that pauses for longer than -body-pause between two
// parts of its response, or before it reads two parts of the body, ends no request: nothing waits for the
// client meanwhile. A client that pauses ends its request.
func TestPausesOverHTTP2(t *testing.T) {
	const pause, size = time.Second, 8 << 20
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * pause) // the transport has sent what fits into the buffers of the connection
		n, err := io.Copy(io.Discard, r.Body)
		for range 2 {
			fmt.Fprintf(w, "%d %v;", n, err)
			http.NewResponseController(w).Flush()
			time.Sleep(2 * pause)
		}
	}))
	defer upstream.Close()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pool := x509.NewCertPool()
	pool.AddCert(redistest.Certificate(t, cert, key))
	path := writeFile(t, filepath.Join(dir, "limits.yaml"), "limits: [{name: ip, config: [{limit: 100, period: 1h}]}]")
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-read-timeout", pause.String(), "-body-pause", pause.String(),
		"-addr", "tls://127.0.0.1:0", "-tls-cert", cert, "-tls-key", key)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for _, n := range []int64{0, size} {
		want := strings.Repeat(fmt.Sprint(n, " <nil>;"), 2)
		resp, err := client.Post("https://"+s.addrs["addr"].String(), "text/plain", io.LimitReader(zeros{}, n))
		if err != nil {
			t.Errorf("%d bytes: %v", n, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.ProtoMajor != 2 || string(body) != want || err != nil {
			t.Errorf("%d bytes: got %s %s %q, %v; want %s", n, resp.Proto, resp.Status, body, err, want)
		}
	}
	part, rest := io.Pipe()
	defer rest.Close()
	go rest.Write([]byte("x"))
	resp, err := client.Post("https://"+s.addrs["addr"].String(), "text/plain", part)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 408 {
		t.Errorf("a client that pauses: got %s, want 408", resp.Status)
	}
}

// TestSlowReaderOverHTTP2: a client of HTTP/2 that does not read from its connection, but has a window
// for the whole response, gives back its unit in flight after -body-pause.
func TestSlowReaderOverHTTP2(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			io.Copy(w, io.LimitReader(zeros{}, 64<<20))
		}
	}))
	defer upstream.Close()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pool := x509.NewCertPool()
	pool.AddCert(redistest.Certificate(t, cert, key))
	path := writeFile(t, filepath.Join(dir, "limits.yaml"), "limits: [{name: busy, key: global, config: [{limit: 1, period: 1h, algorithm: in-flight}]}]")
	s := startService(t, "-limits", path, "-upstream", upstream.URL, "-body-pause", "2s",
		"-addr", "tls://127.0.0.1:0", "-tls-cert", cert, "-tls-key", key)
	addr := s.addrs["addr"].String()
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff",        // SETTINGS_INITIAL_WINDOW_SIZE
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00",                // WINDOW_UPDATE of the connection
		"\x00\x00\x0d\x01\x05\x00\x00\x00\x01\x82\x87\x01\x01a\x04\x06/large") // HEADERS of GET /large
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	status := func() int {
		resp, _ := get(t, client, "https://"+addr)
		return resp.StatusCode
	}
	eventually(t, "the request is in flight", func() bool { return status() == 429 })
	eventually(t, "the unit in flight comes back", func() bool { return status() == 200 })
}

// rawUpstream returns the URL of an upstream that serves each connection by a function, and closes the
// connection when the function returns.
func rawUpstream(t *testing.T, serve func(conn net.Conn)) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

// TestEarlyAnswers: an upstream may answer before it has read the body. The transport may then read the
// body, and set its deadline, when the handler has returned: over HTTP/2 that would end the process.
func TestEarlyAnswers(t *testing.T) {
	upstream := rawUpstream(t, func(conn net.Conn) {
		conn.Read(make([]byte, 1))
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		io.Copy(io.Discard, conn)
	})
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pool := x509.NewCertPool()
	pool.AddCert(redistest.Certificate(t, cert, key))
	path := writeFile(t, filepath.Join(dir, "limits.yaml"), "limits: [{name: ip, config: [{limit: 10000, period: 1h}]}]")
	s := startService(t, "-limits", path, "-upstream", upstream,
		"-addr", "tls://127.0.0.1:0", "-tls-cert", cert, "-tls-key", key)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for i := range 1500 {
		body, rest := io.Pipe()
		go func() {
			for range 20 {
				rest.Write([]byte("x"))
			}
		}()
		resp, err := client.Post("https://"+s.addrs["addr"].String(), "text/plain", body)
		if err == nil {
			resp.Body.Close()
		}
		body.Close()
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("request %d: got %v, %v; want 200\n%s", i, resp, err, s.log)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// readSlowly reads the body of a response in steps, with pauses of a tenth of the bound, for longer than
// the bound, and returns how many bytes it has.
func readSlowly(url string, pause time.Duration) (n int64, err error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for range 12 {
		time.Sleep(pause / 10)
		m, err := io.CopyN(io.Discard, resp.Body, 1<<20)
		n += m
		if err != nil {
			return n, err
		}
	}
	m, err := io.Copy(io.Discard, resp.Body)
	return n + m, err
}
