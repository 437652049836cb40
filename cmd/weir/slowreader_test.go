package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
