package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// certificatesIn returns the certificates in the file that a flag names.
func certificatesIn(flag, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("-%s: %s has no certificate", flag, file)
	}
	return pool, nil
}

// clientFiles are the files of a TLS client. Each may be empty.
type clientFiles struct{ ca, cert, key string }

// set makes a client verify the server with the CA certificates in the files, and present the
// client certificate. The flags are called -prefix-ca and -prefix-cert.
func (f clientFiles) set(config *tls.Config, prefix string) (err error) {
	if f.ca != "" {
		if config.RootCAs, err = certificatesIn(prefix+"-ca", f.ca); err != nil {
			return err
		}
	}
	if f.cert != "" {
		cert, err := loadCertificate(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("-%s-cert: %w", prefix, err)
		}
		config.GetClientCertificate = cert.client
	}
	return nil
}

// A certificate holds a TLS certificate, which is loaded again after its file has changed, for
// example because cert-manager has renewed the certificate.
type certificate struct {
	certFile, keyFile string

	mu     sync.Mutex
	pair   *tls.Certificate
	read   time.Time // the modification time of certFile when pair was loaded
	looked time.Time // when certFile was last checked for a change
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

// client is used as tls.Config.GetClientCertificate.
func (c *certificate) client(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.getCertificate(nil)
}

// getCertificate is used as tls.Config.GetCertificate. It checks at most once a second whether
// certFile has changed. If the new certificate cannot be loaded, for example because its files are
// still being written, getCertificate returns the old certificate.
func (c *certificate) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
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

// modified returns when a file was last changed, or the zero time if that is unknown.
func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
