package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy is a network of one way: what the server answers comes late, stands
// still, or is lost. Unlike the one in redistest it delays chunks side by side, as
// a long line does.
type proxy struct {
	delay  atomic.Int64 // ns
	lost   atomic.Bool  // a black hole: answers vanish
	ln     net.Listener
	server string

	mu    sync.Mutex
	still chan struct{} // closed when answers go on; nil while they do
}

func newProxy(server string, secure bool) (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if secure {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			return nil, err
		}
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	}
	p := &proxy{ln: ln, server: server}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p, nil
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

// stand stops all answers for d; none is lost.
func (p *proxy) stand(d time.Duration) {
	still := make(chan struct{})
	p.mu.Lock()
	p.still = still
	p.mu.Unlock()
	time.Sleep(d)
	p.mu.Lock()
	p.still = nil
	p.mu.Unlock()
	close(still)
}

func (p *proxy) wait() {
	p.mu.Lock()
	still := p.still
	p.mu.Unlock()
	if still != nil {
		<-still
	}
}

type chunk struct {
	data []byte
	due  time.Time
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	if secure, ok := c.(*tls.Conn); ok {
		time.Sleep(time.Duration(p.delay.Load())) // the handshake's round trip
		if secure.Handshake() != nil {
			return
		}
	}
	u, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer u.Close()
	go func() {
		defer u.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := u.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := u.Read(buf)
			if err != nil {
				return
			}
			chunks <- chunk{buf[:n], time.Now().Add(time.Duration(p.delay.Load()))}
		}
	}()
	for k := range chunks {
		if d := time.Until(k.due); d > 0 {
			time.Sleep(d)
		}
		p.wait()
		if p.lost.Load() {
			continue
		}
		if _, err := c.Write(k.data); err != nil {
			u.Close()
			for range chunks {
			}
			return
		}
	}
}
