package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/seed83679106/weir/cmd/weir/internal/envoy"
)

// envoyOptions are the values of the flags about Envoy's rate limit filter.
type envoyOptions struct {
	config, addr string

	merge, shadow, quota, headers, metadata bool

	names string // of header fields
	near  float64
	over  int
	age   time.Duration

	clientCA, clientName string
}

func (o *envoyOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.config, "envoy-config", "", "`directory`, or one file, of limits in the format of Envoy's rate limit service, checked for changes once a second")
	fs.StringVar(&o.addr, "envoy-rls", "localhost:8081", "`address` for Envoy's rate limit filter (gRPC), served only with -envoy-config")
	fs.BoolVar(&o.merge, "envoy-merge-domains", false, "allow several files of -envoy-config to have descriptors of the same domain")
	fs.BoolVar(&o.shadow, "envoy-shadow", false, "count the hits of Envoy's calls, but answer all calls with OK")
	fs.BoolVar(&o.quota, "envoy-quota", false, "treat all descriptors as if they had quota_mode: a call is refused only if all its descriptors exceed their limits")
	fs.BoolVar(&o.headers, "envoy-headers", false, "tell Envoy to add header fields about the limit with the fewest hits left to responses")
	fs.StringVar(&o.names, "envoy-header-names", strings.Join(envoy.HeaderNames[:], ","), "with -envoy-headers, the `names` of the fields for the limit, the remaining hits and the seconds until the window ends")
	fs.BoolVar(&o.metadata, "envoy-metadata", false, "send Envoy dynamic metadata: the descriptors of the call, and the metadata that the file has for those within their limits")
	fs.Float64Var(&o.near, "envoy-near", 0.8, "`fraction` of a limit above which the metrics count hits as near the limit")
	fs.IntVar(&o.over, "envoy-over", 0, "with -redis-addrs, largest `number` of counts that exceed their limit and that this process remembers until their windows end, so that Redis is not called again; 0 means none")
	fs.DurationVar(&o.age, "envoy-connection-age", 24*time.Hour, "`time` after which Envoy is asked to connect again, so that new replicas get their share of connections; 0 means never")
	fs.StringVar(&o.clientCA, "envoy-client-ca", "", "`file` of the CA certificates that verify the certificate of Envoy, which must then have one; needs -envoy-rls with tls://, read at start")
	fs.StringVar(&o.clientName, "envoy-client-name", "", "with -envoy-client-ca, DNS `name`, or address, that the certificate of Envoy must have")
}

// fieldName matches the names of HTTP header fields, by RFC 9110, section 5.1.
var fieldName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// check returns the errors that parsing each flag alone does not find.
func (o *envoyOptions) check(redis bool) error {
	var errs []error
	invalid := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names := strings.Split(o.names, ",")
	for _, name := range names {
		if !fieldName.MatchString(name) || len(names) != 3 {
			invalid("-envoy-header-names is %q; want three names of header fields, separated by commas", o.names)
			break
		}
	}
	if !o.headers && o.names != strings.Join(envoy.HeaderNames[:], ",") {
		invalid("-envoy-header-names needs -envoy-headers")
	}
	if !(0 < o.near && o.near <= 1) {
		invalid("-envoy-near is %v; want more than 0 and at most 1", o.near)
	}
	if o.over < 0 {
		invalid("-envoy-over is %d; want at least 0", o.over)
	}
	if o.over > 0 && !redis {
		invalid("-envoy-over needs -redis-addrs: counts in memory are not worth remembering")
	}
	if o.age < 0 {
		invalid("-envoy-connection-age is %v; want at least 0", o.age)
	}
	if o.clientCA != "" && !strings.HasPrefix(o.addr, tlsScheme) {
		invalid("-envoy-client-ca needs an -envoy-rls that begins with %s", tlsScheme)
	}
	if o.clientName != "" && o.clientCA == "" {
		invalid("-envoy-client-name needs -envoy-client-ca")
	}
	if o.config == "" && (o.merge || o.shadow || o.quota || o.headers || o.metadata || o.over > 0 || o.clientCA != "") {
		invalid("the flags that begin with -envoy- need -envoy-config")
	}
	return errors.Join(errs...)
}

// options returns the options of the service. The flags must have been checked.
func (o *envoyOptions) options(logger *slog.Logger) envoy.Options {
	return envoy.Options{
		Merge: o.merge, Shadow: o.shadow, Quota: o.quota, Headers: o.headers, HeaderNames: [3]string(strings.Split(o.names, ",")), Metadata: o.metadata,
		Near: float32(o.near), Over: o.over, ConnectionAge: o.age, Logger: logger,
	}
}

// verifyClients makes a server accept only clients that have a certificate of -envoy-client-ca, with
// the name of -envoy-client-name. Without -envoy-client-ca it changes nothing.
func (o *envoyOptions) verifyClients(config *tls.Config) error {
	if o.clientCA == "" {
		return nil
	}
	pem, err := os.ReadFile(o.clientCA)
	if err != nil {
		return fmt.Errorf("-envoy-client-ca: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("-envoy-client-ca: %s has no certificate", o.clientCA)
	}
	if o.clientName != "" {
		config.VerifyConnection = func(s tls.ConnectionState) error { return s.PeerCertificates[0].VerifyHostname(o.clientName) }
	}
	return nil
}
