package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/seed83679106/weir/internal/accesslog"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
)

// try replays an access log against the limits in a file, prints which requests they would have
// refused, and returns the exit status. The status is a failure if nothing could be replayed.
func try(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("weir try", flag.ContinueOnError)
	path := fs.String("access-log", "",
		"`file` of the log, in the Common or Combined Log Format, Envoy's or HAProxy's default HTTP format, or the JSON of Caddy, Traefik or nginx, plain or compressed by gzip; - is the standard input")
	maxKeys := fs.Int("max-keys", 1_000_000,
		"largest `number` of counts that are kept at a time, one for each limit of each key")
	suggest := fs.Bool("suggest", false,
		"also print how many units keys requested, and suggest limits for each rule, in YAML")
	files, err := parseAll(fs, args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	switch {
	case *path == "":
		err = errors.New("-access-log is missing")
	case len(files) != 1:
		err = fmt.Errorf("%d limits files; want one", len(files))
	case *maxKeys < 1:
		err = fmt.Errorf("-max-keys is %d; want at least 1", *maxKeys)
	}
	if err != nil {
		return usageError(err, stderr)
	}
	o := accesslog.Options{MaxKeys: *maxKeys, Suggest: *suggest}
	if err := replay(ctx, *path, files[0], o, stdin, stdout); err != nil {
		printError(stderr, err)
		return exitFailure
	}
	return exitOK
}

// parseAll parses a command line whose flags may also follow arguments, and returns the arguments.
// After an error, which may be a request for help, it prints the error and the flags.
func parseAll(fs *flag.FlagSet, args []string, stderr io.Writer) (rest []string, err error) {
	fs.SetOutput(io.Discard) // what package flag prints may have a password
	for err = parseFlags(fs, args); err == nil && fs.NArg() > 0; err = parseFlags(fs, args) {
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
	if err == nil {
		return rest, nil
	}
	if !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stderr, withoutUsers(err.Error()))
	}
	fs.SetOutput(stderr)
	fs.Usage()
	return nil, err
}

// replay prints which requests in a log the limits of a file would have refused and, with
// o.Suggest, suggests limits. If the log cannot be read to its end, replay uses the part that it
// could read.
func replay(ctx context.Context, path, limits string, o accesslog.Options, stdin io.Reader, stdout io.Writer) error {
	rules, _, err := openRules(limits, memstore.New(memstore.Options{}), config.Options{Secret: anySecret})
	if err != nil {
		return err
	}
	o.Rules, o.Reads, o.Trusted = rules.Rules(), rules.Reads, rules.TrustedProxies()
	report, err := reportOf(ctx, path, o, stdin)
	if report == nil {
		return err
	}
	w := bufio.NewWriter(stdout)
	report.Write(w, path)
	if o.Suggest && err == nil {
		report.WriteSuggestions(w)
	}
	if e := w.Flush(); err == nil {
		return e
	}
	return fmt.Errorf("%s: %w", path, err)
}

// reportOf replays a log. It returns no report if the log cannot be opened.
func reportOf(ctx context.Context, path string, o accesslog.Options, stdin io.Reader) (*accesslog.Report, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	r := accesslog.New(o)
	unread := r.Read(contextReader{ctx, in})
	report, err := r.Report()
	if unread != nil {
		err = unread
	}
	return report, err
}

// A contextReader is a Reader that ends when ctx ends, for example because the user has pressed
// Ctrl-C.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (u contextReader) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, errors.New("interrupted, so the rest was not replayed")
	}
	return u.Reader.Read(p)
}
