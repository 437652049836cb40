// Weir limits rates for proxies and for the programs behind them. Its limits are in a file,
// which it reads again when the file changes.
//
//	weir serve -limits limits.yaml        # for nginx, ingress-nginx, Caddy, Traefik and Envoy
//	weir serve -envoy-config dir          # as Envoy's rate limit service, from its files
//	weir check limits.yaml                # exit status 1 if the file has mistakes
//	weir version
//
// docs/serve.md in the repository shows how each proxy asks it, and lists all flags. Every
// flag can also be set by an environment variable: -redis-addrs by WEIR_REDIS_ADDRS.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/cmd/weir/internal/envoy"
	"github.com/seed83679106/weir/config"
)

func main() {
	redis.SetLogger(redisLog{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

const usage = `usage:
  weir serve [flags]        answer proxies, or be one; weir serve -help lists the flags
  weir check FILE…          look for mistakes in files of limits
  weir check -envoy DIR…    the same for those of Envoy's rate limit service
  weir version
`

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // the file has mistakes, or the service failed
	exitUsage   = 2 // the command line has mistakes
)

// run executes a command line until it is done or ctx ends, and returns the exit status.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch name, args := args[0], args[1:]; name {
	case "serve":
		var o options
		if err := o.parse(args, env, stderr); err != nil {
			return usageError(err, stderr)
		}
		logger := o.newLogger(stderr)
		slog.SetDefault(logger) // also of the package log, for libraries
		if err := serve(ctx, &o, logger, nil); err != nil {
			fmt.Fprintln(stderr, "weir:", err)
			return exitFailure
		}
		return exitOK
	case "check":
		return check(args, stdout, stderr)
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, version())
		return exitOK
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	default:
		fmt.Fprintf(stderr, "weir: unknown command %q\n%s", name, usage)
		return exitUsage
	}
}

// usageError returns the exit status for a mistake in a command line.
func usageError(err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	fmt.Fprintln(stderr, "weir:", err)
	return exitUsage
}

// check prints the mistakes in files of limits, each with its file, line and column.
func check(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("weir check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	asEnvoy := fs.Bool("envoy", false, "the files, or directories of files, are those of Envoy's rate limit service")
	merge := fs.Bool("envoy-merge-domains", false, "several of them may have descriptors of one domain")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if fs.NArg() == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	status := exitOK
	for _, path := range fs.Args() {
		err := checkFile(path, *asEnvoy, *merge)
		if err != nil {
			status = exitFailure
			fmt.Fprintln(stdout, err)
		} else {
			fmt.Fprintf(stdout, "%s: ok\n", path)
		}
	}
	return status
}

// checkFile returns the mistakes for which serve would not load a file.
func checkFile(path string, asEnvoy, merge bool) error {
	if asEnvoy {
		_, err := envoy.Load(path, merge)
		return err
	}
	return config.Check(path, config.Options{})
}

// version returns the version of the module and of Go that this program was built with.
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
