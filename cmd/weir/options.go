package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"
)

// options are what the flags of serve set.
type options struct {
	limits   string
	upstream string
	addr     string
	authAddr string

	adminAddr, adminToken string
	tlsCert, tlsKey       string

	envoyConfig, envoyAddr                               string
	envoyMerge, envoyShadow, envoyHeaders, envoyMetadata bool

	redis     redisOptions
	redisDown choice
	maxKeys   int
	replicas  int

	logLevel  slog.Level
	logFormat choice

	shutdownDelay, shutdownTimeout time.Duration
}

// A choice is one of several words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("want %s", strings.Join(c.of, ", "))
	}
	c.value = s
	return nil
}

// What serve does while Redis does not decide.
const (
	downMemory = "memory"
	downOpen   = "open"
	downClosed = "closed"
)

// envPrefix begins the name of the environment variable of each flag.
const envPrefix = "WEIR_"

// flags returns the flags that set o. It is the only list of them: the command line, the
// environment and the table of docs/serve.md have these.
func (o *options) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("weir serve", flag.ContinueOnError)
	fs.StringVar(&o.limits, "limits", "", "`file` of the limits; read again when it changes, and on SIGHUP")
	fs.StringVar(&o.upstream, "upstream", "", "`URL` to pass requests on to; without it this is no reverse proxy")
	fs.StringVar(&o.addr, "addr", "localhost:8080", "`address` for clients, if there is an upstream")
	fs.StringVar(&o.authAddr, "auth-addr", "localhost:9090", "`address` for proxies that ask (/auth), for /metrics, /healthz and /readyz")
	fs.StringVar(&o.adminAddr, "admin-addr", "localhost:9091", "`address` for operators, if there is an admin-token")
	fs.StringVar(&o.adminToken, "admin-token", "", "secret of operators, at least 16 `bytes`: a bearer token, or the password of any user")
	fs.StringVar(&o.tlsCert, "tls-cert", "", "`file` of the certificate for addresses that begin with tls://; read again when it changes")
	fs.StringVar(&o.tlsKey, "tls-key", "", "`file` of the key of tls-cert")
	fs.StringVar(&o.envoyConfig, "envoy-config", "", "`directory` of limits as those of Envoy's rate limit service, or one file; looked at once a second")
	fs.StringVar(&o.envoyAddr, "envoy-rls", "localhost:8081", "`address` for Envoy's rate limit filter (gRPC), if there is an envoy-config")
	fs.BoolVar(&o.envoyMerge, "envoy-merge-domains", false, "several files of envoy-config may have descriptors of one domain")
	fs.BoolVar(&o.envoyShadow, "envoy-shadow", false, "answer Envoy with OK, whatever the limits say, and count")
	fs.BoolVar(&o.envoyHeaders, "envoy-headers", false, "have Envoy add RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to responses")
	fs.BoolVar(&o.envoyMetadata, "envoy-metadata", false, "answer Envoy with dynamic metadata: the descriptors, and which of quota_mode are used up")
	o.redis.flags(fs)
	o.redisDown = choice{downMemory, []string{downMemory, downOpen, downClosed}}
	fs.Var(&o.redisDown, "redis-down", "while Redis does not answer, count in `memory`, or let all requests pass (open), or refuse them with 503 (closed)")
	fs.IntVar(&o.replicas, "replicas", 1, "`number` of processes that share Redis; while it is down each admits its share of the limits")
	fs.IntVar(&o.maxKeys, "max-keys", 1_000_000, "largest `number` of limits of keys that are counted in memory, 48 bytes each")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "lowest `level` of lines in the log: debug, info, warn or error")
	o.logFormat = choice{"json", []string{"json", "text"}}
	fs.Var(&o.logFormat, "log-format", "`format` of the log: json or text")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 0, "`time` from SIGTERM, when /readyz begins to fail, until the listeners close")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 30*time.Second, "`time` that requests have to end after the listeners close")
	return fs
}

// envName returns the environment variable of a flag: WEIR_REDIS_ADDRS of redis-addrs.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parse sets o from a command line and, for flags that it lacks, from the environment.
func (o *options) parse(args []string, env func(string) (string, bool), stderr io.Writer) error {
	fs := o.flags()
	fs.SetOutput(io.Discard) // run prints the error
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stderr, "usage: weir serve [flags]\nEach flag is also an environment variable, such as %s for -limits.\n", envName("limits"))
		fs.SetOutput(stderr)
		fs.PrintDefaults()
	}
	if err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("serve takes no arguments, got %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		value, ok := env(envName(f.Name))
		if !ok || given[f.Name] {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			if strings.Contains(f.Name, "password") || strings.Contains(f.Name, "token") {
				value = "…"
			}
			errs = append(errs, fmt.Errorf("%s is %q: %w", envName(f.Name), value, err))
		}
	})
	fs.Visit(func(f *flag.Flag) { o.redis.set(f.Name) })
	errs = append(errs, o.check())
	return errors.Join(errs...)
}

// check returns the mistakes that no single flag has.
func (o *options) check() error {
	var errs []error
	mistake := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.limits == "" && o.envoyConfig == "" {
		mistake("-limits is missing, or -envoy-config")
	}
	if o.limits == "" && (o.upstream != "" || o.adminToken != "") {
		mistake("-upstream and -admin-token need -limits")
	}
	if o.upstream != "" {
		if u, err := url.Parse(o.upstream); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			mistake("-upstream %s is not a URL such as http://localhost:9000", o.upstream)
		}
	}
	if n := len(o.adminToken); n > 0 && n < 16 {
		mistake("-admin-token has %d bytes; want at least 16", n)
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		mistake("-tls-cert and -tls-key need each other")
	}
	for name, addr := range map[string]string{"addr": o.addr, "auth-addr": o.authAddr, "admin-addr": o.adminAddr, "envoy-rls": o.envoyAddr} {
		if strings.HasPrefix(addr, tlsScheme) && o.tlsCert == "" {
			mistake("-%s %s needs -tls-cert and -tls-key", name, addr)
		}
	}
	if o.maxKeys < 1 {
		mistake("-max-keys is %d; want at least 1", o.maxKeys)
	}
	if o.replicas < 1 {
		mistake("-replicas is %d; want at least 1", o.replicas)
	}
	errs = append(errs, o.redis.check())
	return errors.Join(errs...)
}

// newLogger returns the logger of a service.
func (o *options) newLogger(w io.Writer) *slog.Logger {
	handler := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat.value == "text" {
		return slog.New(slog.NewTextHandler(w, handler))
	}
	return slog.New(slog.NewJSONHandler(w, handler))
}
