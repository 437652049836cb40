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

// options are the values of the flags of weir serve.
type options struct {
	limits   string
	upstream string
	addr     string
	authAddr string

	adminAddr, adminToken string
	tlsCert, tlsKey       string

	envoy envoyOptions

	redis     redisOptions
	redisDown choice
	maxKeys   int
	replicas  int

	readyAfter time.Duration

	headerTimeout, readTimeout, bodyPause, idleTimeout time.Duration

	logLevel  slog.Level
	logFormat choice

	logRefusals int

	shutdownDelay, shutdownTimeout time.Duration

	warnings []string // errors that do not keep weir from serving
}

// A choice is a flag.Value that is one of several words.
type choice struct {
	value string
	of    []string // the words that Set accepts
}

func (c *choice) String() string { return c.value }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("want %s", strings.Join(c.of, ", "))
	}
	c.value = s
	return nil
}

// The values of -redis-down: what serve does while Redis is down.
const (
	downMemory = "memory"
	downOpen   = "open"
	downClosed = "closed"
)

// flags returns the flags that set o. The environment variables and the tables in
// docs/flags.md are made from these flags.
func (o *options) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("weir serve", flag.ContinueOnError)
	fs.StringVar(&o.limits, "limits", "", "`file` of the limits, read again when it changes and on SIGHUP")
	fs.StringVar(&o.upstream, "upstream", "", "`URL` of the server to forward requests to; without it weir is no reverse proxy")
	fs.StringVar(&o.addr, "addr", "localhost:8080", "`address` for clients, served only with -upstream")
	fs.StringVar(&o.authAddr, "auth-addr", "localhost:9090", "`address` of /auth, which proxies call, and of /metrics, /healthz and /readyz")
	fs.StringVar(&o.adminAddr, "admin-addr", "localhost:9091", "`address` for operators, served only with -admin-token")
	fs.StringVar(&o.adminToken, "admin-token", "", "`secret` of at least 16 bytes that operators send as a bearer token, or as the password of any user; set it by -admin-token-file or the environment, because other users of the machine see command lines")
	fs.StringVar(&o.tlsCert, "tls-cert", "", "`file` of the certificate for addresses that begin with tls://, read again when it changes")
	fs.StringVar(&o.tlsKey, "tls-key", "", "`file` of the private key of -tls-cert")
	o.envoy.flags(fs)
	fileFlag(fs, new(string), "admin-token", "at start")
	o.redis.flags(fs)
	o.redisDown = choice{downMemory, []string{downMemory, downOpen, downClosed}}
	fs.Var(&o.redisDown, "redis-down", "what to do while Redis is down: `memory` (count in this process), open (allow all requests) or closed (answer them with 503)")
	fs.IntVar(&o.replicas, "replicas", 1, "`number` of processes that share Redis; with -redis-down=memory, each divides the limits of -limits by this number while Redis is down")
	fs.DurationVar(&o.readyAfter, "redis-ready-after", 30*time.Second, "with -redis-down=memory, `time` after which /readyz is ready although this process has never reached Redis")
	fs.IntVar(&o.maxKeys, "max-keys", 1_000_000, "largest `number` of counts in memory, one for each limit of each key, about 48 bytes each")
	fs.DurationVar(&o.headerTimeout, "header-timeout", 5*time.Second, "longest `time` until the header of a request has arrived")
	fs.DurationVar(&o.readTimeout, "read-timeout", 10*time.Second, "longest `time` until a request to -auth-addr or -admin-addr has arrived and, with -upstream, until the rules have read what they need of a body, for keys such as json:NAME")
	fs.DurationVar(&o.bodyPause, "body-pause", time.Minute, "with -upstream, longest `time` for which the body of a forwarded request may pause")
	fs.DurationVar(&o.idleTimeout, "idle-timeout", 2*time.Minute, "longest `time` that a connection is kept open between two requests")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "lowest `level` of the lines that are logged: debug, info, warn or error")
	o.logFormat = choice{"json", []string{"json", "text"}}
	fs.Var(&o.logFormat, "log-format", "`format` of the log: json or text")
	fs.IntVar(&o.logRefusals, "log-refusals", 1, "largest `number` of log lines a second about refused requests, without keys; 0 means none")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 0, "`time` from SIGTERM until the listeners close; /readyz fails meanwhile")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 30*time.Second, "longest `time` that requests may take to end after the listeners have closed")
	return fs
}

// parse sets o from a command line. Flags that the command line lacks are set from the
// environment, a list of texts such as "WEIR_LIMITS=limits.yaml".
func (o *options) parse(args, environ []string, stderr io.Writer) error {
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
	for _, name := range secrets {
		if given[name] {
			o.warnings = append(o.warnings, fmt.Sprintf("other users of this machine can read -%s on the command line; use %s or -%s", name, envName(name), name+inFile))
		}
	}
	warnings, err := setFromEnvironment(fs, given, environ)
	o.warnings = append(o.warnings, warnings...)
	err = errors.Join(err, setFromFiles(fs))
	if o.envoy.config != "" {
		warnings, refused := envoySettings(environ)
		o.warnings, err = append(o.warnings, warnings...), errors.Join(err, refused)
	}
	fs.Visit(func(f *flag.Flag) { o.redis.set(f.Name) })
	return errors.Join(err, o.check())
}

// check returns the errors that parsing each flag alone does not find.
func (o *options) check() error {
	var errs []error
	invalid := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.limits == "" && o.envoy.config == "" {
		invalid("-limits or -envoy-config is missing")
	}
	if o.limits == "" && (o.upstream != "" || o.adminToken != "") {
		invalid("-upstream and -admin-token need -limits")
	}
	if o.upstream != "" {
		if u, err := url.Parse(o.upstream); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			invalid("-upstream is %q; want a URL such as http://localhost:9000", o.upstream)
		}
	}
	if n := len(o.adminToken); n > 0 && n < 16 {
		invalid("-admin-token has %d bytes; want at least 16", n)
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		invalid("-tls-cert and -tls-key need each other")
	}
	for _, f := range []struct{ name, addr string }{{"addr", o.addr}, {"auth-addr", o.authAddr}, {"admin-addr", o.adminAddr}, {"envoy-rls", o.envoy.addr}} {
		if strings.HasPrefix(f.addr, tlsScheme) && o.tlsCert == "" {
			invalid("-%s %s needs -tls-cert and -tls-key", f.name, f.addr)
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"header-timeout", o.headerTimeout}, {"read-timeout", o.readTimeout}, {"body-pause", o.bodyPause}, {"idle-timeout", o.idleTimeout}} {
		if f.d <= 0 {
			invalid("-%s is %v; want more than 0", f.name, f.d)
		}
	}
	if o.maxKeys < 1 {
		invalid("-max-keys is %d; want at least 1", o.maxKeys)
	}
	if o.logRefusals < 0 {
		invalid("-log-refusals is %d; want at least 0", o.logRefusals)
	}
	if o.replicas < 1 {
		invalid("-replicas is %d; want at least 1", o.replicas)
	}
	errs = append(errs, o.redis.check(), o.envoy.check(o.redis.addrs != ""))
	return errors.Join(errs...)
}

// newLogger returns the logger that the flags choose, which writes to w.
func (o *options) newLogger(w io.Writer) *slog.Logger {
	handler := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat.value == "text" {
		return slog.New(slog.NewTextHandler(w, handler))
	}
	return slog.New(slog.NewJSONHandler(w, handler))
}
