package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed83679106/weir/cmd/weir/internal/envoy"
	"github.com/seed83679106/weir/quota"
)

// envoyOptions are the values of the flags about Envoy's rate limit filter.
type envoyOptions struct {
	envoy.Options

	addr  string
	names string // of header fields

	clientCA, clientName string

	xds, xdsNode string
	xdsTLS       tlsClient
}

func (o *envoyOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.Path, "envoy-config", "",
		"`directory`, or one file, of limits in the format of Envoy's rate limit service, checked for changes once a second")
	fs.StringVar(&o.addr, "envoy-rls", "localhost:8081",
		"`address` for Envoy's rate limit filter (gRPC), served only with -envoy-config or -envoy-xds")
	fs.StringVar(&o.xds, "envoy-xds", "",
		"`address` of a control plane that has the limits, such as Envoy Gateway, in place of -envoy-config; with TLS, tls://host:port")
	fs.StringVar(&o.xdsNode, "envoy-xds-node", "envoy-ratelimit",
		"`id` by which the control plane of -envoy-xds knows this service")
	o.xdsTLS.flags(fs, "envoy-xds", "the control plane", "envoy-xds")
	fs.BoolVar(&o.Merge, "envoy-merge-domains", false,
		"allow several files of -envoy-config to have descriptors of the same domain")
	fs.BoolVar(&o.Shadow, "envoy-shadow", false, "count the hits of Envoy's calls, but answer all calls with OK")
	fs.BoolVar(&o.Quota, "envoy-quota", false,
		"treat all descriptors as if they had quota_mode: a call is refused only if all its descriptors exceed their limits")
	fs.BoolVar(&o.Headers, "envoy-headers", false,
		"make Envoy add header fields to responses, about the limit with the fewest hits left")
	fs.StringVar(&o.names, "envoy-header-names", strings.Join(envoy.HeaderNames[:], ","),
		"with -envoy-headers, the `names` of the fields for the limit, the remaining hits and the seconds until the window ends")
	fs.BoolVar(&o.Metadata, "envoy-metadata", false,
		"send Envoy dynamic metadata: the descriptors of the call, and the metadata that the file has for those within their limits")
	fs.Float64Var(&o.Near, "envoy-near", 0.8, "`fraction` of a limit above which the metrics count hits as near the limit")
	fs.IntVar(&o.Over, "envoy-over", 0, "with -redis-addrs, largest `number` of counts that exceed their limit and that this process remembers until their windows end, so that Redis is not called again; 0 means none")
	fs.DurationVar(&o.ConnectionAge, "envoy-connection-age", 24*time.Hour,
		"`time` after which Envoy must connect again, so that new replicas get their share of connections; 0 means never")
	fs.StringVar(&o.clientCA, "envoy-client-ca", "",
		"`file` of the CA certificates that verify the certificate of Envoy, which must then have one; needs -envoy-rls with tls://, read at startup")
	fs.StringVar(&o.clientName, "envoy-client-name", "",
		"with -envoy-client-ca, DNS `name`, or address, that the certificate of Envoy must have")
}

// fieldName matches the names of HTTP header fields (RFC 9110, section 5.1).
var fieldName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// check adds the errors that are not found when each flag is parsed separately.
func (o *envoyOptions) check(f *faults, redis bool) {
	o.xdsTLS.check(f, strings.HasPrefix(o.xds, tlsScheme), "an -envoy-xds that begins with "+tlsScheme)
	usual := o.names == strings.Join(envoy.HeaderNames[:], ",")
	names := strings.Split(o.names, ",")
	if len(names) != 3 || slices.ContainsFunc(names, func(name string) bool { return !fieldName.MatchString(name) }) {
		f.add("-envoy-header-names is %q; want three names of header fields, separated by commas", o.names)
	}
	for _, fault := range []struct {
		is   bool
		text string
	}{
		{!o.Headers && !usual, "-envoy-header-names needs -envoy-headers"},
		{!(0 < o.Near && o.Near <= 1), fmt.Sprintf("-envoy-near is %v; want more than 0 and at most 1", o.Near)},
		{o.Over > 0 && !redis, "-envoy-over needs -redis-addrs: counts in memory are not worth remembering"},
		{o.clientCA != "" && !strings.HasPrefix(o.addr, tlsScheme), "-envoy-client-ca needs an -envoy-rls that begins with " + tlsScheme},
		{o.clientName != "" && o.clientCA == "", "-envoy-client-name needs -envoy-client-ca"},
		{strings.Contains(o.xds, "@"), "-envoy-xds has a user, whom the control plane would not get; want an address such as localhost:18001"},
		{o.Path != "" && o.xds != "", "-envoy-config and -envoy-xds exclude each other"},
		{!o.enabled() && o.anySet(), "the flags that begin with -envoy- need -envoy-config or -envoy-xds"},
	} {
		if fault.is {
			f.add("%s", fault.text)
		}
	}
}

// enabled reports whether there is a service for Envoy's rate limit filter.
func (o *envoyOptions) enabled() bool { return o.Path != "" || o.xds != "" }

// newService returns the service for Envoy's rate limit filter. The flags must have been checked.
func (o *envoyOptions) newService(store quota.Store, registry *prometheus.Registry, logger *slog.Logger) (*envoy.Service, error) {
	o.HeaderNames, o.Registerer, o.Logger = [3]string(strings.Split(o.names, ",")), registry, logger
	if o.xds == "" {
		return envoy.NewService(store, o.Options)
	}
	address, secure := strings.CutPrefix(o.xds, tlsScheme)
	o.XDS = &envoy.XDS{Address: address, Node: o.xdsNode, Credentials: insecure.NewCredentials()}
	if secure {
		config := new(tls.Config)
		if err := o.xdsTLS.set(config); err != nil {
			return nil, err
		}
		o.XDS.Credentials = credentials.NewTLS(config)
	}
	return envoy.NewService(store, o.Options)
}

// anySet reports whether a flag is set that has no effect without -envoy-config.
func (o *envoyOptions) anySet() bool {
	return o.Merge || o.Shadow || o.Quota || o.Headers || o.Metadata || o.Over > 0 || o.clientCA != ""
}

// verifyClients makes a server accept only clients with a certificate that is signed by
// -envoy-client-ca and has the name -envoy-client-name. Without -envoy-client-ca, it changes
// nothing.
func (o *envoyOptions) verifyClients(config *tls.Config) error {
	if o.clientCA == "" {
		return nil
	}
	pool, err := certificatesIn("envoy-client-ca", o.clientCA)
	if err != nil {
		return err
	}
	config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	if o.clientName != "" {
		config.VerifyConnection = func(s tls.ConnectionState) error { return s.PeerCertificates[0].VerifyHostname(o.clientName) }
	}
	return nil
}
