package redistest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// FaultProxy passes TCP connections on to a server and damages the answers on demand.
// Requests always reach the server. Any goroutine may change Latency, Swallow, Reset and
// Limit at any time. The changes affect open connections too. A chunk is the result of one
// read from the server. A small answer is one chunk.
type FaultProxy struct {
	Latency atomic.Int64 // nanoseconds by which each chunk is late
	Swallow atomic.Bool  // answers vanish, and the connection stays open
	Reset   atomic.Bool  // the connection is reset (RST) instead of an answer or, with Limit, after the cut chunk
	Limit   atomic.Int64 // if above 0, longer chunks are cut to this many bytes, and the connection is closed
	Lost    atomic.Int64 // how many chunks have vanished

	t              testing.TB
	addr, upstream string
	ctx            context.Context // ends with Close
	cancel         context.CancelFunc
	wg             sync.WaitGroup // of all goroutines

	mu    sync.Mutex
	ln    net.Listener      // nil while the proxy refuses connections
	conns map[net.Conn]bool // whether Forget was called
}

// Proxy starts a FaultProxy in front of the address upstream, where a server may start to
// listen later. The Cleanup of the test closes the proxy.
func Proxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	p := &FaultProxy{t: t, upstream: upstream, conns: map[net.Conn]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for range 10 {
		p.addr = FreeAddr()
		if err := p.listen(); err == nil {
			t.Cleanup(p.Close)
			return p
		}
	}
	t.Fatalf("redistest: no port for a proxy")
	return nil
}

// Addr returns the address of the proxy, even while the proxy refuses connections.
func (p *FaultProxy) Addr() string { return p.addr }

// Refuse closes the listener and every connection, as if the server had died.
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

// Forget makes the answers on all connections that are open vanish, as if a balancer had forgotten
// them. New connections work. Forget returns how many there are.
func (p *FaultProxy) Forget() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		p.conns[c] = true
	}
	return len(p.conns)
}

func (p *FaultProxy) forgot(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[c]
}

// Close ends the proxy and returns when its goroutines have ended. A second Close does
// nothing.
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

// hangUp closes the listener and all connections.
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

// keep remembers a connection for hangUp. It returns false if ln is closed already.
func (p *FaultProxy) keep(ln net.Listener, c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ln != ln {
		return false
	}
	p.conns[c] = false
	return true
}

func (p *FaultProxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// serve passes bytes between a client and the server until either connection ends.
func (p *FaultProxy) serve(ln net.Listener, client net.Conn) {
	defer client.Close()
	if !p.keep(ln, client) {
		return
	}
	defer p.forget(client)
	server, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	// If either connection ends, both connections are closed, which ends both copies even
	// if the server is paused.
	p.wg.Go(func() {
		_, _ = io.Copy(server, client)
		server.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || !p.pass(client, buf[:n]) {
			return
		}
	}
}

// pass sends a chunk of an answer to the client, with the faults that are set. It returns
// false if the connection must be closed.
func (p *FaultProxy) pass(client net.Conn, chunk []byte) (ok bool) {
	if d := p.Latency.Load(); d > 0 {
		select {
		case <-time.After(time.Duration(d)):
		case <-p.ctx.Done():
			return false
		}
	}
	if p.Swallow.Load() || p.forgot(client) {
		p.Lost.Add(1)
		return true
	}
	n, reset := len(chunk), p.Reset.Load()
	if limit := int(p.Limit.Load()); limit > 0 {
		n = min(n, limit)
	} else if reset {
		n = 0
	}
	if _, err := client.Write(chunk[:n]); err != nil {
		return false
	}
	if n < len(chunk) && reset {
		_ = client.(*net.TCPConn).SetLinger(0) // closing sends an RST
	}
	return n == len(chunk)
}
