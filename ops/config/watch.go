package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// lookEvery is the time between two reads of the files by Watch.
const lookEvery = 500 * time.Millisecond

// Watch reloads the file when it or a file that it includes has changed. It runs until ctx is done and
// then returns ctx.Err(). If the file becomes invalid, the rules in force stay unchanged until the
// file is fixed. Watch logs each change and each error to Options.Limiter.Logger. It logs a warning
// for each change that loses counts, and for each rule that no handler uses.
//
// Watch compares the contents of the files twice a second, and reloads them once they have stayed the
// same for half a second, because a file that a program is writing is incomplete. Because it
// compares contents, Watch also notices changes on network file systems, and in Kubernetes
// ConfigMaps, except those mounted with subPath, which the kubelet never updates.
func (f *File) Watch(ctx context.Context) error {
	v := f.current.Load()
	last, paths := v.digest, v.paths
	log := cmp.Or(f.o.Limiter.Logger, slog.Default()).With("file", f.path)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for read, before := "", ""; ; {
		now := f.look(paths)
		if now == before && now != read { // also at first, because the file may have changed since Open
			last, paths = f.reload(log, last)
			read = now
		}
		before = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look returns a digest of the contents of the files at the paths, and of the names of the files
// that match the patterns.
func (f *File) look(paths []string) string {
	sum, fsys := sha256.New(), f.fsys()
	for _, p := range paths {
		fmt.Fprintf(sum, "\x00%s\x00", p)
		if dir, pattern, ok := strings.Cut(p, patternIn); ok {
			names, err := filesIn(fsys, dir, pattern) // other names may come and go all the time
			fmt.Fprintf(sum, "%q%v", names, err)
			continue
		}
		info, err := fs.Stat(fsys, p)
		var data []byte
		if err == nil && info.Mode().IsRegular() { // reading a named pipe would block
			r := content{fsys: fsys}
			data, err = r.readFile(p)
		}
		sum.Write(data)
		fmt.Fprint(sum, err)
	}
	return string(sum.Sum(nil))
}

// reload reads the file and compares its digest with last, the digest of the content that
// was read previously. If they differ, reload loads the file and logs the changes or the
// errors. It returns the new digest and the paths to watch.
func (f *File) reload(log *slog.Logger, last string) (digest string, paths []string) {
	paths = f.current.Load().paths
	content, err := f.read()
	if err == nil {
		digest = content.digest
		for _, p := range content.paths {
			if !slices.Contains(paths, p) {
				paths = append(slices.Clip(paths), p)
			}
		}
		if digest == last {
			return digest, paths
		}
	}
	changes, err := f.load(content, err)
	if err != nil {
		all := []error{err}
		if list, ok := err.(interface{ Unwrap() []error }); ok {
			all = list.Unwrap()
		}
		for _, err := range all {
			log.Error("config: rules not reloaded", "err", err)
		}
		return digest, paths
	}
	for _, c := range changes {
		c.log(log)
	}
	if unused := f.Unused(); len(unused) > 0 {
		log.Warn("config: rules that no handler names", "rules", unused, "effect", "they limit nothing")
	}
	log.Info("config: rules reloaded", "changes", len(changes), "version", f.Version())
	return digest, content.paths
}
