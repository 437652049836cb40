package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops"
	weirwatch "github.com/seed83679106/weir/ops/watch"
)

// options are the values of the flags of weir serve.
type options struct {
	limits   string
	upstream string
	addr     string
	authAddr string

	adminAddr, adminToken string
	keySecret             string
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

	warnings []string            // errors that do not prevent weir from serving
	recorder *weirwatch.Recorder // of the decisions, and of the warnings of the logger
}

// A choice is a flag.Value that accepts only certain words.
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

// The values of -redis-down, which determines what serve does while Redis is down.
const (
	downMemory = "memory"
	downOpen   = "open"
	downClosed = "closed"
)

// flags returns the flags that set o. The environment variables and the tables in
// FLAGS.md are derived from these flags.
func (o *options) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("weir serve", flag.ContinueOnError)
	fs.StringVar(&o.limits, "limits", "", "limits `file`, reloaded when it changes and on SIGHUP")
	fs.StringVar(&o.keySecret, "key-secret", "",
		"`secret` of at least 16 random bytes for reservations, and for keys that the limits hash, such as hashed:header:X-Api-Key, the same in all processes that share Redis; set it by -key-secret-file or the environment")
	fileFlag(fs, new(string), "key-secret", "at startup")
	fs.StringVar(&o.upstream, "upstream", "",
		"`URL` of the server to forward requests to; without it, weir is not a reverse proxy")
	fs.StringVar(&o.addr, "addr", "localhost:8080", "`address` for clients, served only with -upstream")
	fs.StringVar(&o.authAddr, "auth-addr", "localhost:9090",
		"`address` of /auth, which proxies call, /reserve, /draw and /settle, which programs call, /metrics, /healthz and /readyz")
	fs.StringVar(&o.adminAddr, "admin-addr", "localhost:9091", "`address` for operators, served only with -admin-token")
	fs.StringVar(&o.adminToken, "admin-token", "",
		"`secret` of at least 16 bytes that operators send as a bearer token, or as the password of any user; set it by -admin-token-file or the environment, because other users of the machine see command lines")
	fs.StringVar(&o.tlsCert, "tls-cert", "", "`file` of the certificate for addresses that begin with tls://, read again when it changes")
	fs.StringVar(&o.tlsKey, "tls-key", "", "`file` of the private key of -tls-cert")
	o.envoy.flags(fs)
	fileFlag(fs, new(string), "admin-token", "at startup")
	o.redis.flags(fs)
	o.redisDown = choice{downMemory, []string{downMemory, downOpen, downClosed}}
	fs.Var(&o.redisDown, "redis-down", "what to do while Redis is down: `memory` (count in this process), open (allow all requests) or closed (answer them with 503)")
	fs.IntVar(&o.replicas, "replicas", 0, "`number` of processes that share Redis; with -redis-down=memory, each divides the limits of -limits by this number while Redis is down; 0 means that they count each other")
	fs.DurationVar(&o.readyAfter, "redis-ready-after", 30*time.Second,
		"with -redis-down=memory, `time` after which /readyz is ready although this process has never reached Redis")
	fs.IntVar(&o.maxKeys, "max-keys", 1_000_000,
		"largest `number` of counts in memory, one for each limit of each key, about 48 bytes each")
	fs.DurationVar(&o.headerTimeout, "header-timeout", 5*time.Second,
		"longest `time` until the header of a request has arrived")
	fs.DurationVar(&o.readTimeout, "read-timeout", 10*time.Second,
		"longest `time` until a request to -auth-addr or -admin-addr has arrived and, with -upstream, until the rules have read what they need of a body, for keys such as json:NAME")
	fs.DurationVar(&o.bodyPause, "body-pause", time.Minute,
		"longest `time` for which the body of a request that -upstream forwards may pause, or a client may read nothing of a response")
	fs.DurationVar(&o.idleTimeout, "idle-timeout", 2*time.Minute,
		"longest `time` that a connection is kept open between two requests")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo,
		"lowest `level` of the lines that are logged: debug, info, warn or error")
	o.logFormat = choice{"json", []string{"json", "text"}}
	fs.Var(&o.logFormat, "log-format", "`format` of the log: json or text")
	fs.IntVar(&o.logRefusals, "log-refusals", 1,
		"largest `number` of log lines a second about refused requests, without keys; 0 means none")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 0,
		"`time` from SIGTERM until the listeners close; /readyz fails meanwhile")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 30*time.Second,
		"longest `time` that requests may take to end after the listeners have closed")
	return fs
}

// parse sets o from a command line. Flags that are missing on the command line are set
// from the environment, a list of texts such as "WEIR_LIMITS=limits.yaml".
func (o *options) parse(args, environ []string, stderr io.Writer) error {
	fs := o.flags()
	fs.SetOutput(io.Discard) // run prints the error
	err := parseFlags(fs, args)
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
	if given["redis-addrs"] && strings.Contains(o.redis.addrs, "@") {
		o.warnings = append(o.warnings, "other users of this machine can read the password in -redis-addrs on the command line; use "+envName("redis-addrs")+" or REDIS_URL")
	}
	warnings, err := setFromEnvironment(fs, "", environ)
	o.warnings = append(o.warnings, warnings...)
	if d := o.redis.timeout; d >= 500*time.Millisecond {
		o.warnings = append(o.warnings, fmt.Sprintf("-redis-timeout is %v: as long may a request wait when Redis is silent, and nginx.conf allows it after 500 ms", d))
	}
	for _, variable := range environ {
		if url, ok := strings.CutPrefix(variable, "REDIS_URL="); ok && o.redis.addrs == "" {
			o.redis.addrs = url
		}
	}
	if o.envoy.enabled() {
		warnings, refused := envoySettings(environ)
		o.warnings, err = append(o.warnings, warnings...), errors.Join(err, refused)
	}
	fs.Visit(func(f *flag.Flag) { o.redis.set(f.Name) })
	return errors.Join(err, o.check(fs))
}

// faults collects errors in flags.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

// atLeast adds an error for each number or duration of a flag that is below its minimum. The minimum is 0 or
// 1; a duration whose minimum is 1 must be more than 0.
func (f *faults) atLeast(fs *flag.FlagSet, least int, names ...string) {
	for _, name := range names {
		switch v := fs.Lookup(name).Value.(flag.Getter).Get().(type) {
		case time.Duration:
			switch {
			case v < 0 && least == 0:
				f.add("-%s is %v; want at least 0", name, v)
			case v <= 0 && least == 1:
				f.add("-%s is %v; want more than 0", name, v)
			}
		case int:
			if v < least {
				f.add("-%s is %d; want at least %d", name, v, least)
			}
		}
	}
}

// pair adds an error if only one of two flags is set.
func (f *faults) pair(name, value, other, otherValue string) {
	if (value == "") != (otherValue == "") {
		f.add("-%s and -%s need each other", name, other)
	}
}

// secret adds an error if a secret is invalid, unless it is empty. White space at the end of a
// secret is an error, because it probably comes from a file: operators would not send it, and the
// secret of another replica may lack it.
func (f *faults) secret(name, value string, least int) {
	switch n := len(value); {
	case n > 0 && n < least:
		f.add("-%s has %d bytes; want at least %d", name, n, least)
	case strings.TrimSpace(value) != value:
		f.add("-%s begins or ends with white space; want a text without", name)
	}
}

// check returns the errors that are not found when each flag is parsed separately.
func (o *options) check(fs *flag.FlagSet) error {
	var f faults
	if o.limits == "" && !o.envoy.enabled() {
		f.add("-limits, -envoy-config or -envoy-xds is missing")
	}
	if o.limits == "" && (o.upstream != "" || o.adminToken != "") {
		f.add("-upstream and -admin-token need -limits")
	}
	f.secret("admin-token", o.adminToken, ops.MinToken)
	f.secret("key-secret", o.keySecret, storedkey.MinSecret)
	o.checkAddrs(&f)
	f.atLeast(fs, 1, "header-timeout", "read-timeout", "body-pause", "idle-timeout", "max-keys")
	f.atLeast(fs, 0, "shutdown-delay", "shutdown-timeout", "redis-ready-after", "log-refusals", "replicas", "envoy-over",
		"envoy-connection-age")
	switch {
	case o.redis.addrs == "" && o.replicas > 1:
		f.add("-replicas needs -redis-addrs, because without Redis each process enforces whole limits")
	case o.redis.addrs == "" && o.redisDown.value != downMemory:
		f.add("-redis-down %s needs -redis-addrs", o.redisDown.value)
	}
	o.redis.check(&f)
	o.envoy.check(&f, o.redis.addrs != "")
	return errors.Join(f...)
}

// isAt reports whether an address on which weir listens is that of the URL: the ports are equal,
// and the hosts are equal or both name this machine.
func isAt(u *url.URL, addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	local := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || host == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified())
	}
	of := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return err == nil && port == of && (host == u.Hostname() || local(host) && local(u.Hostname()))
}

// upstreamURL returns the URL of the upstream, which is empty if there is none or it is invalid.
func (o *options) upstreamURL(f *faults) *url.URL {
	u, err := url.Parse(o.upstream)
	switch {
	case o.upstream != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"):
		is := strconv.Quote(o.upstream)
		if strings.ContainsAny(o.upstream, "@?") { // perhaps a password
			is = "not usable"
		}
		f.add("-upstream is %s; want a URL such as http://localhost:9000", is)
		return new(url.URL)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		f.add("-upstream has a user, a query or a fragment, which no request would have; want a URL such as http://localhost:9000")
	}
	return u
}

// checkAddrs checks the URL and the addresses.
func (o *options) checkAddrs(f *faults) {
	u := o.upstreamURL(f)
	f.pair("tls-cert", o.tlsCert, "tls-key", o.tlsKey)
	for _, a := range []struct {
		flag, addr string
		used       bool
	}{
		{"addr", o.addr, o.upstream != ""}, {"auth-addr", o.authAddr, true}, {"admin-addr", o.adminAddr, o.adminToken != ""},
		{"envoy-rls", o.envoy.addr, o.envoy.enabled()},
	} {
		rest, secure := strings.CutPrefix(a.addr, tlsScheme)
		if rest == "" && a.used { // net.Listen would choose a port, on all networks
			f.add("-%s is %q; want an address such as localhost:9090", a.flag, a.addr)
		}
		if o.upstream != "" && a.used && isAt(u, rest) {
			f.add("-upstream %s://%s is -%s of weir itself, so requests would go round in circles; want the server behind it", u.Scheme, u.Host, a.flag)
		}
		if secure && o.tlsCert == "" {
			f.add("-%s %s needs -tls-cert and -tls-key", a.flag, a.addr)
		}
	}
}

// newLogger returns a logger that writes to w in the way that the flags choose.
func (o *options) newLogger(w io.Writer) *slog.Logger {
	o.recorder = weirwatch.NewRecorder(1000, 100_000)
	level := &slog.HandlerOptions{Level: o.logLevel}
	var handler slog.Handler = slog.NewJSONHandler(w, level)
	if o.logFormat.value == "text" {
		handler = slog.NewTextHandler(w, level)
	}
	return slog.New(o.recorder.LogHandler(handler))
}
