package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
)

// TestLogQueue: writing never blocks, lines keep their order, and the number of dropped lines is
// reported once lines can be written again. close gives up in time.
func TestLogQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		q := newLogQueue(w, func(n int64) { fmt.Fprintf(w, "dropped %d\n", n) })
		const all = mostQueued + 1000
		for i := range all {
			fmt.Fprintln(q, i)
			if i == 0 {
				synctest.Wait() // until it is being written: later, a line would leave the queue between dropped ones
			}
		}
		synctest.Wait()
		lines := bufio.NewScanner(r)
		next, dropped := 0, 0
		for next+dropped < all && lines.Scan() {
			n := 0
			if _, err := fmt.Sscanf(lines.Text(), "dropped %d", &n); err == nil {
				dropped += n
				continue
			}
			if lines.Text() != fmt.Sprint(next) {
				t.Fatalf("got the line %q, want %d", lines.Text(), next)
			}
			next++
		}
		if next < mostQueued || dropped == 0 {
			t.Errorf("got %d lines and %d that were dropped", next, dropped)
		}
		fmt.Fprintln(q, "last")
		began := time.Now()
		q.close(time.Second) // nobody reads
		if took := time.Since(began); took != time.Second {
			t.Errorf("close took %v, want 1s", took)
		}
		r.Close()
	})
}

// TestUnreadLog: a log that nobody reads holds up neither requests, nor /readyz in an outage, nor the end
// of the process.
func TestUnreadLog(t *testing.T) {
	limits, addr := filepath.Join(t.TempDir(), "limits.yaml"), redistest.FreeAddr()
	writeLimits(t, limits, 1)
	r, unread := io.Pipe()
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		args := []string{"serve", "-limits", limits, "-auth-addr", addr, "-redis-addrs", "127.0.0.1:1", "-redis-ready-after", "1ns", "-log-level", "debug"}
		ended <- run(ctx, args, nil, io.Discard, unread)
	}()
	client := &http.Client{Timeout: time.Minute}
	eventually(t, "the service answers", func() bool {
		resp, err := client.Get("http://" + addr + "/readyz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == 200
	})
	for range 20 { // the first logs that the proxy is not trusted
		get(t, client, "http://"+addr+"/auth")
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the process has not ended a minute after the signal")
	}
}

// TestEndIsLogged: the last line of the log says that weir has ended.
func TestEndIsLogged(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeLimits(t, limits, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log bytes.Buffer
	if status := run(ctx, []string{"serve", "-limits", limits, "-auth-addr", "127.0.0.1:0"}, nil, io.Discard, &log); status != 0 {
		t.Fatalf("got status %d, %s", status, &log)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"msg":"weir: ended"`) {
		t.Errorf("got the last line %s", last)
	}
}

// TestLinesOfNetHTTP: an upstream that sends more than its responses makes net/http log a line for each
// request, of which the log gets one a second.
func TestLinesOfNetHTTP(t *testing.T) {
	upstream := rawUpstream(t, func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore")
		}
		_, _ = conn.Read(make([]byte, 1)) // a request that net/http sends before it sees the rest gets no answer
	})
	limits, addr := filepath.Join(t.TempDir(), "limits.yaml"), redistest.FreeAddr()
	writeLimits(t, limits, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var log weirtest.Log
	began := time.Now()
	go func() {
		ended <- run(ctx, []string{"serve", "-limits", limits, "-addr", addr, "-auth-addr", "127.0.0.1:0", "-upstream", upstream}, nil, io.Discard, &log)
	}()
	eventually(t, "the service answers", func() bool {
		resp, err := http.Get("http://" + addr)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	for range 50 {
		get(t, http.DefaultClient, "http://"+addr)
	}
	cancel()
	<-ended
	if lines := strings.Count(log.String(), "Unsolicited response"); lines > 1+int(time.Since(began)/time.Second) {
		t.Errorf("got %d lines for 50 requests in %v, want one a second:\n%.1000s", lines, time.Since(began), log.String())
	}
}
