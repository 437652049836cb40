package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/configfile"
)

// certificatesIn returns the certificates in the file that a flag names.
func certificatesIn(flag, file string) (*x509.CertPool, error) {
	pem, err := configfile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("-%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("-%s: %s has no certificate", flag, file)
	}
	return pool, nil
}

// A tlsClient holds the flags of a TLS client, whose names begin with the prefix.
type tlsClient struct {
	prefix                    string
	ca, cert, key, serverName string
}

// flags adds the flags of a client of the given server, whose address another flag has.
func (c *tlsClient) flags(fs *flag.FlagSet, prefix, server, addrFlag string) {
	c.prefix = prefix
	fs.StringVar(&c.ca, prefix+"-ca", "",
		"`file` of the CA certificates that verify the certificate of "+server+", read at startup; without it, those of the system are used")
	fs.StringVar(&c.cert, prefix+"-cert", "",
		"`file` of the client certificate that weir shows "+server+", read again when it changes")
	fs.StringVar(&c.key, prefix+"-key", "", "`file` of the private key of -"+prefix+"-cert")
	fs.StringVar(&c.serverName, prefix+"-server-name", "",
		"`name` in the certificate of "+server+", if it differs from the host in -"+addrFlag)
}

// check adds the errors that are not found when each flag is parsed separately. If secure is false,
// the client does not use TLS, and needs is what would make it.
func (c *tlsClient) check(f *faults, secure bool, needs string) {
	f.pair(c.prefix+"-cert", c.cert, c.prefix+"-key", c.key)
	if !secure && c.ca+c.cert+c.serverName != "" {
		f.add("-%[1]s-ca, -%[1]s-cert and -%[1]s-server-name need %[2]s", c.prefix, needs)
	}
}

// set makes a client apply the flags.
func (c *tlsClient) set(config *tls.Config) (err error) {
	config.ServerName = cmp.Or(c.serverName, config.ServerName)
	if c.ca != "" {
		if config.RootCAs, err = certificatesIn(c.prefix+"-ca", c.ca); err != nil {
			return err
		}
	}
	if c.cert != "" {
		cert, err := loadCertificate(c.cert, c.key)
		if err != nil {
			return fmt.Errorf("-%s-cert: %w", c.prefix, err)
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
	return c, c.load()
}

// load loads the certificate if its file has changed.
func (c *certificate) load() error {
	info, err := os.Stat(c.certFile)
	if err != nil || info.ModTime().Equal(c.read) {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err == nil {
		c.pair, c.read = &pair, info.ModTime()
	}
	return err
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
		c.load()
	}
	return c.pair, nil
}
