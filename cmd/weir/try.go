package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/internal/accesslog"
	"github.com/seed83679106/weir/memstore"
)

// try replays an access log through the limits of a file, prints what they would have refused,
// and returns the exit status: a failure if nothing could be replayed.
func try(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("weir try", flag.ContinueOnError)
	fs.SetOutput(stderr)
	path := fs.String("access-log", "", "`file` of the log, in the Common or Combined Log Format or in the JSON of Caddy, plain or compressed by gzip; - is the standard input")
	maxKeys := fs.Int("max-keys", 1_000_000, "largest `number` of counts that are kept at a time, one for each limit of each key")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	var err error
	switch {
	case *path == "":
		err = errors.New("-access-log is missing")
	case fs.NArg() != 1:
		err = fmt.Errorf("%d files of limits; want one, behind the flags", fs.NArg())
	case *maxKeys < 1:
		err = fmt.Errorf("-max-keys is %d; want at least 1", *maxKeys)
	}
	if err != nil {
		return usageError(err, stderr)
	}
	if err := replay(ctx, *path, fs.Arg(0), *maxKeys, stdin, stdout); err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return exitFailure
	}
	return exitOK
}

// replay prints what the limits of a file make of a log. If the log cannot be read to its end, it
// prints what they make of the part before.
func replay(ctx context.Context, path, limits string, maxKeys int, stdin io.Reader, stdout io.Writer) error {
	rules, _, err := openRules(limits, memstore.New(memstore.Options{}), config.Options{})
	if err != nil {
		return err
	}
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	r := accesslog.New(accesslog.Options{Rules: rules.Rules(), Reads: rules.Reads, Trusted: rules.TrustedProxies(), MaxKeys: maxKeys})
	unread := r.Read(until{ctx, in})
	report, err := r.Report()
	if unread != nil {
		err = unread
	}
	w := bufio.NewWriter(stdout)
	report.Write(w, path)
	if e := w.Flush(); err == nil {
		return e
	}
	return fmt.Errorf("%s: %w", path, err)
}

// An until reads until ctx ends, as it does when the user presses Ctrl-C.
type until struct {
	ctx context.Context
	io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, errors.New("interrupted, so the rest was not replayed")
	}
	return u.Reader.Read(p)
}
