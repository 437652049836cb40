// Weir limits the rates of requests that a proxy forwards. The proxy calls weir for each request,
// or weir is the proxy itself. The limits are in a file, which weir reloads when it changes.
//
//	weir serve -limits limits.yaml        # for nginx, Caddy, Traefik and Envoy
//	weir serve -envoy-config dir          # in place of Envoy's rate limit service, with its files
//	weir check limits.yaml                # exit status 1 if the file has errors
//	weir check -redis-addrs redis:6379    # exit status 1 if this Redis is not usable
//	weir try -access-log log limits.yaml  # what would these limits have refused? -suggest: which would fit?
//	weir version
//
// docs/serve.md in the repository names a sample configuration for each proxy, and FLAGS.md
// lists the flags of weir serve. Each of these flags can also be set by an environment variable:
// -redis-addrs by WEIR_REDIS_ADDRS.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	buildversion "github.com/prometheus/common/version"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/cmd/weir/internal/envoy"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/redisstore/stack"
)

func main() {
	redis.SetLogger(redisLog{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

const usage = `usage:
  weir serve [flags]             run the rate limit service (behind a proxy, or as one); -help lists the flags
  weir check FILE…               print the errors in limits files
  weir check -envoy DIR…         print the errors in files of Envoy's rate limit service
  weir check -redis-addrs …      check that a Redis server is usable, with the -redis flags of serve
  weir try -access-log LOG FILE  replay an access log: what would these limits have refused? -suggest: which fit?
  weir version                   print the version of weir and of Go
`

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // the file has errors, or the service failed
	exitUsage   = 2 // the command line has errors
)

// run executes a command line until it is done or ctx ends, and returns the exit status.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch name, args := args[0], args[1:]; name {
	case "serve":
		var o options
		if err := o.parse(args, environ, stderr); err != nil {
			return usageError(err, stderr)
		}
		direct := o.newLogger(stderr)
		queue := newLogQueue(stderr, func(n int64) {
			direct.Warn("weir: lines of the log dropped", "unlogged", n, "likely", "nobody reads the log, or too slowly")
		})
		defer queue.close(time.Second)
		logger := o.newLogger(queue)
		setDefaults(logger)
		if err := serve(ctx, &o, logger, nil); err != nil {
			printError(queue, err)
			return exitFailure
		}
		logger.Info("weir: ended")
		return exitOK
	case "check":
		return check(ctx, args, environ, stdout, stderr)
	case "try":
		return try(ctx, args, os.Stdin, stdout, stderr)
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, version())
		return exitOK
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	default:
		fmt.Fprintf(stderr, "weir: unknown command %q\n%s", withoutUsers(name), usage)
		return exitUsage
	}
}

// usageError prints an error in a command line and returns the exit status. A request for
// help is not an error.
func usageError(err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	printError(stderr, err)
	return exitUsage
}

func printError(w io.Writer, err error) { fmt.Fprintln(w, "weir:", withoutUsers(err.Error())) }

// userInfo matches the user and the password of a URL in a text, and all before the last @ of the
// line, because a password that can't be in a URL, with a quote or a space, may be the error.
var userInfo = regexp.MustCompile(`://.*@`)

// bareUserInfo matches a user and a password in front of an address that is no URL.
var bareUserInfo = regexp.MustCompile(`[^\s"'/:]*:(?:[^\s"'/][^\s"']*)?@`)

// withoutUsers hides the users and passwords of all URLs and addresses in a text. An error may quote a URL that
// was given for the wrong flag, or without one, and what weir prints may be kept in a log.
func withoutUsers(text string) string {
	return bareUserInfo.ReplaceAllString(userInfo.ReplaceAllString(text, "://…@"), "…@")
}

// check prints the errors in limits files, each with its file and line, and checks whether
// a Redis server is usable. It returns the exit status.
func check(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("weir check", flag.ContinueOnError)
	asEnvoy := fs.Bool("envoy", false, "check files, or directories of files, of Envoy's rate limit service")
	merge := fs.Bool("envoy-merge-domains", false,
		"with -envoy: allow several files of a directory to have descriptors of the same domain")
	var o options
	o.redis.flags(fs)
	files, err := parseAll(fs, args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	if err := o.redis.parse(fs, environ); err != nil {
		return usageError(err, stderr)
	}
	if len(files) == 0 && o.redis.addrs == "" {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	status := exitOK
	report := func(what string, err error) {
		if err != nil {
			status = exitFailure
			fmt.Fprintln(stdout, withoutUsers(err.Error()))
		} else {
			fmt.Fprintf(stdout, "%s: ok\n", what)
		}
	}
	for _, path := range files {
		warnings, err := checkFile(path, *asEnvoy, *merge, hasSecret(environ))
		for _, w := range warnings {
			fmt.Fprintln(stdout, w)
		}
		report(path, err)
	}
	if o.redis.addrs != "" {
		report(o.redis.String(), checkRedis(ctx, &o.redis, stdout))
	}
	return status
}

// checkRedis checks that a Redis server is usable. The error describes what is missing. checkRedis
// also prints the warnings that serve would log.
func checkRedis(ctx context.Context, o *redisOptions, stdout io.Writer) error {
	s, rdb, err := o.open(stack.Options{Replicas: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer s.Close()
	if err := s.Probe(ctx); err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	var lines bytes.Buffer
	s.CheckSettings(ctx, slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	for line := range strings.Lines(lines.String()) {
		fmt.Fprintf(stdout, "%s: warning: %s", o, line)
	}
	return nil
}

// checkFile returns the errors in a file, and warnings about what is not applied or does not work
// with serve. The file is loaded as serve loads it, but no secret to hash keys is needed. If serve
// will have one, secret is true.
func checkFile(path string, asEnvoy, merge, secret bool) (warnings []string, err error) {
	if asEnvoy {
		c, err := envoy.Load(path, merge)
		if err != nil {
			return nil, err
		}
		return c.Warnings, nil
	}
	rules, _, err := openRules(path, memstore.New(memstore.Options{}), config.Options{Secret: anySecret})
	if err != nil {
		return nil, err
	}
	for _, m := range misfits(rules) {
		warnings = append(warnings, fmt.Sprintf("%s: %s", path, m))
	}
	var e *config.Error
	quiet := weir.Options{Logger: slog.New(slog.DiscardHandler)} // openRules has logged the warnings
	if !secret && errors.As(config.Check(path, config.Options{Costs: costs, Limiter: quiet}), &e) {
		warnings = append(warnings, fmt.Sprintf("%s:%d:%d: warning: %s", e.Path, e.Line, e.Column, e.Text))
	}
	return warnings, nil
}

// anySecret is a secret for hashing keys that no other process sees.
var anySecret = bytes.Repeat([]byte("any"), storedkey.MinSecret)

// version returns the version of this program, its commit if the commit is known, and the
// version of Go that built the program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "weir (unknown version)"
	}
	text := "weir " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value
		}
	}
	return text + " " + info.GoVersion
}

// buildInfo returns the collector of the metric weir_build_info, whose labels are the version, the commit as revision,
// and the version of Go.
var buildInfo = sync.OnceValue(func() prometheus.Collector {
	if info, ok := debug.ReadBuildInfo(); ok {
		buildversion.Version = info.Main.Version
	}
	return versioncollector.NewCollector("weir")
})

// setDefaults makes libraries log to the given logger. At most one line of package log is written
// per second, because clients can cause net/http to log, for example if the upstream sends more
// than one response.
func setDefaults(logger *slog.Logger) {
	slog.SetDefault(logger)
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(sparse.Logger(logger).Handler(), slog.LevelWarn).Writer())
}
