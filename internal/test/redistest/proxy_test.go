package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// conn is a connection of a client that stays open for several commands.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &conn{c, bufio.NewReader(c)}
}

// ping sends PING, and returns the part of "+PONG\r\n" that arrives in time.
func (c *conn) ping(within time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return "", err
	}
	return c.r.ReadString('\n')
}

const soon = time.Minute // long enough on any machine

// TestProxy: each fault damages the answer as documented, and Close ends all goroutines.
func TestProxy(t *testing.T) {
	server := Server(t)
	for _, f := range []struct {
		name   string
		turn   func(p *FaultProxy)
		within time.Duration
		got    string
		err    error
	}{
		{"none", func(p *FaultProxy) {}, soon, "+PONG\r\n", nil},
		{"latency", func(p *FaultProxy) { p.Latency.Store(int64(time.Hour)) }, 50 * time.Millisecond, "", os.ErrDeadlineExceeded},
		{"small latency", func(p *FaultProxy) { p.Latency.Store(int64(30 * time.Millisecond)) }, soon, "+PONG\r\n", nil},
		{"swallow", func(p *FaultProxy) { p.Swallow.Store(true) }, 50 * time.Millisecond, "", os.ErrDeadlineExceeded},
		{"limit", func(p *FaultProxy) { p.Limit.Store(3) }, soon, "+PO", io.EOF},
		{"wide limit", func(p *FaultProxy) { p.Limit.Store(7) }, soon, "+PONG\r\n", nil},
		{"reset", func(p *FaultProxy) { p.Reset.Store(true) }, soon, "", syscall.ECONNRESET},
		{"reset in the middle", func(p *FaultProxy) { p.Limit.Store(3); p.Reset.Store(true) }, soon, "+PO", syscall.ECONNRESET},
	} {
		t.Run(f.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			p := Proxy(t, server.Addr())
			c := dial(t, p.Addr())
			if s, err := c.ping(soon); s != "+PONG\r\n" || err != nil {
				t.Fatalf("before: got %q, %v, want PONG", s, err)
			}
			f.turn(p)
			begin := time.Now()
			if s, err := c.ping(f.within); s != f.got || !errors.Is(err, f.err) {
				t.Errorf("got %q, %v, want %q, %v", s, err, f.got, f.err)
			}
			if d, min := time.Since(begin), time.Duration(p.Latency.Load()); f.err == nil && d < min {
				t.Errorf("answered after %v, want at least %v", d, min)
			}
			p.Close()
			p.Close()
			if err := wait(func() bool { return runtime.NumGoroutine() <= before }); err != nil {
				t.Errorf("got %d goroutines after Close, want %d", runtime.NumGoroutine(), before)
			}
		})
	}
}

// TestProxyRefuse: Refuse closes connections and refuses new ones, until Refuse(false).
func TestProxyRefuse(t *testing.T) {
	p := Proxy(t, Server(t).Addr())
	c := dial(t, p.Addr())
	for range 3 {
		if s, err := c.ping(soon); err != nil {
			t.Fatalf("got %q, %v, want PONG", s, err)
		}
		p.Refuse(true)
		p.Refuse(true)
		if s, err := c.ping(soon); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("open connection: got %q, %v, want it closed", s, err)
		}
		if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("new connection: got %v, want refused", err)
		}
		p.Refuse(false)
		p.Refuse(false)
		c = dial(t, p.Addr())
	}
}

// TestProxyPausedServer: even if the server is paused, the goroutines of a connection end
// when the client hangs up, and all goroutines end with Close.
func TestProxyPausedServer(t *testing.T) {
	s := Server(t)
	before := runtime.NumGoroutine()
	p := Proxy(t, s.Addr())
	accepting := before + 1
	s.Pause()
	c := dial(t, p.Addr())
	if got, err := c.ping(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v, want a timeout", got, err)
	}
	c.Close()
	if err := wait(func() bool { return runtime.NumGoroutine() <= accepting }); err != nil {
		t.Errorf("client gone: got %d goroutines, want %d", runtime.NumGoroutine(), accepting)
	}
	dial(t, p.Addr())
	p.Close()
	if err := wait(func() bool { return runtime.NumGoroutine() <= before }); err != nil {
		t.Errorf("closed: got %d goroutines, want %d", runtime.NumGoroutine(), before)
	}
	s.Kill()
	c = dial(t, Proxy(t, s.Addr()).Addr())
	if got, err := c.ping(soon); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("server gone: got %q, %v, want the connection closed", got, err)
	}
}
