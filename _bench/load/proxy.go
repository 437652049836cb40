package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy delays, stops or loses the answers of a server. What clients send it passes on at
// once. It reads the next answers while earlier answers are still delayed, so that each answer
// is late by the delay alone. The proxy of package redistest delays one answer after the other.
type proxy struct {
	delay  atomic.Int64 // of each answer, in ns
	lost   atomic.Bool  // answers vanish
	ln     net.Listener
	server string

	mu      sync.Mutex
	stopped chan struct{} // not nil while answers are held back; closed when the answers go on
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

// stop holds all answers back for d, and then delivers them.
func (p *proxy) stop(d time.Duration) {
	stopped := make(chan struct{})
	p.mu.Lock()
	p.stopped = stopped
	p.mu.Unlock()
	time.Sleep(d)
	p.mu.Lock()
	p.stopped = nil
	p.mu.Unlock()
	close(stopped)
}

// wait returns at once, or, if answers are held back, when they go on.
func (p *proxy) wait() {
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// A chunk is a piece of an answer, as it was read from the server.
type chunk struct {
	data []byte
	due  time.Time // when the client gets the chunk
}

// serve connects a client with the server until either connection ends.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	if secure, ok := client.(*tls.Conn); ok {
		time.Sleep(time.Duration(p.delay.Load())) // a handshake takes a round trip
		if secure.Handshake() != nil {
			return
		}
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	chunks := make(chan chunk, 1024)
	go p.receive(server, chunks)
	p.deliver(client, chunks)
	server.Close()
	for range chunks { // drop the rest until receive ends
	}
}

// receive reads answers of the server, and sends them to chunks with the time at which each
// is due.
func (p *proxy) receive(server net.Conn, chunks chan<- chunk) {
	defer close(chunks)
	for {
		buf := make([]byte, 16<<10)
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		chunks <- chunk{buf[:n], time.Now().Add(time.Duration(p.delay.Load()))}
	}
}

// deliver writes answers to the client when they are due, until the client is gone.
func (p *proxy) deliver(client net.Conn, chunks <-chan chunk) {
	for k := range chunks {
		time.Sleep(time.Until(k.due))
		p.wait()
		if p.lost.Load() {
			continue
		}
		if _, err := client.Write(k.data); err != nil {
			return
		}
	}
}
