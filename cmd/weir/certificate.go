package main

import (
	"crypto/tls"
	"os"
	"sync"
	"time"
)

// A certificate is read again when its file has changed, as that of cert-manager does.
type certificate struct {
	certFile, keyFile string

	mu     sync.Mutex
	pair   *tls.Certificate
	read   time.Time // when the file was that old
	looked time.Time
}

func loadCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	c.pair, c.read = &pair, modified(certFile)
	return c, nil
}

// get is a tls.Config.GetCertificate. It looks at the file once a second. A pair that
// cannot be read, because it is being written, changes nothing.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= time.Second {
		c.looked = now
		if at := modified(c.certFile); !at.Equal(c.read) {
			if pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile); err == nil {
				c.pair, c.read = &pair, at
			}
		}
	}
	return c.pair, nil
}

// modified returns when a file was last changed, or zero if it cannot be read.
func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
