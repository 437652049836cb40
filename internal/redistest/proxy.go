package redistest

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// FaultProxy passes TCP connections on to a server and breaks them on demand.
// Requests always go through; the knobs are about answers, hold for open
// connections too, and may be turned at any time by any goroutine. A chunk is
// what one read from the server gives: of small answers, one.
type FaultProxy struct {
	Latency atomic.Int64 // nanoseconds by which each chunk is late
	Swallow atomic.Bool  // answers vanish, the connection stays: a black hole
	Reset   atomic.Bool  // instead of an answer, RST; with Limit, after the cut
	Limit   atomic.Int64 // > 0: a longer chunk is cut after so many bytes and the connection closed

	t              testing.TB
	addr, upstream string
	ctx            context.Context // ends with Close
	cancel         context.CancelFunc
	wg             sync.WaitGroup // all goroutines

	mu    sync.Mutex
	ln    net.Listener // nil while refusing
	conns map[net.Conn]struct{}
}

// Proxy starts a FaultProxy in front of the address upstream, which need not
// answer yet. It closes in the test's Cleanup.
func Proxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	p := &FaultProxy{t: t, upstream: upstream, conns: map[net.Conn]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for range 10 {
		p.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(randomPort()))
		if err := p.listen(); err == nil {
			t.Cleanup(p.Close)
			return p
		}
	}
	t.Fatalf("redistest: no port for a proxy")
	return nil
}

// Addr is where the proxy listens, or would.
func (p *FaultProxy) Addr() string { return p.addr }

// Refuse closes the listener and every connection, as a server that dies does;
// Refuse(false) listens again on the same port.
func (p *FaultProxy) Refuse(refuse bool) {
	if refuse {
		p.hangUp()
		return
	}
	if err := p.listen(); err != nil {
		p.t.Errorf("redistest: proxy: %v", err)
	}
}

// Close ends the proxy and returns when its goroutines are gone. A second
// Close does nothing.
func (p *FaultProxy) Close() {
	p.cancel()
	p.hangUp()
	p.wg.Wait()
}

func (p *FaultProxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ln != nil || p.ctx.Err() != nil {
		return nil
	}
	ln, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.ln = ln
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(ln, c) })
		}
	})
	return nil
}

func (p *FaultProxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ln != nil {
		p.ln.Close()
		p.ln = nil
	}
	for c := range p.conns {
		c.Close()
	}
}

// keep remembers a connection for hangUp, unless that has been.
func (p *FaultProxy) keep(ln net.Listener, c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ln != ln {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *FaultProxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *FaultProxy) serve(ln net.Listener, c net.Conn) {
	defer c.Close()
	if !p.keep(ln, c) {
		return
	}
	defer p.forget(c)
	u, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return
	}
	defer u.Close()
	// When either end goes, both connections close: that ends the other copy,
	// even in front of a paused server.
	p.wg.Go(func() {
		_, _ = io.Copy(u, c)
		u.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := u.Read(buf)
		if err != nil {
			return
		}
		if d := p.Latency.Load(); d > 0 {
			select {
			case <-time.After(time.Duration(d)):
			case <-p.ctx.Done():
				return
			}
		}
		if p.Swallow.Load() {
			continue
		}
		pass, reset := n, p.Reset.Load()
		if limit := int(p.Limit.Load()); limit > 0 {
			pass = min(n, limit)
		} else if reset {
			pass = 0
		}
		if _, err := c.Write(buf[:pass]); err != nil {
			return
		}
		if pass < n {
			if reset {
				_ = c.(*net.TCPConn).SetLinger(0) // close sends RST
			}
			return
		}
	}
}
