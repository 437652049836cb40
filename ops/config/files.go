package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir/internal/configfile"
)

// maxIncluded is the number of files that a file may include.
const maxIncluded = 1000

// disk is the file system of the operating system. Unlike os.DirFS, it takes any path.
type disk struct{}

func (disk) Open(name string) (fs.File, error)          { return os.Open(name) }
func (disk) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (disk) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

// A content holds what was read from a file and from the files that it includes.
type content struct {
	*decoder // of the file itself
	fsys     fs.FS
	below    string // the directory of the file, with its final slash
	size     int    // bytes read so far
	sum      hash.Hash
	digest   string   // SHA-256 of all files
	paths    []string // the files to watch, and the patterns: a directory, patternIn and the pattern of a name
}

// read reads the file and the files that it includes. It fails only if the file itself cannot be
// read. All other errors are collected by the decoder.
func (f *File) read() (*content, error) {
	d := &decoder{source: source{path: f.path}, o: &f.o}
	r := &content{decoder: d, fsys: f.o.FS, sum: sha256.New(), paths: []string{f.path},
		below: strings.TrimSuffix(f.path, filepath.Base(f.path))}
	read := r.readFile // Open may read a pipe, such as <(command) of a shell
	if f.current.Load() != nil {
		read = r.readRegular
	}
	data, err := read(f.path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	r.sum.Write(data)
	d.parseFile(data, fileFields)
	if n := d.fields["include"]; n != nil {
		r.include(n)
	}
	if err := d.err(); err != nil { // for example because an included file cannot be read
		io.WriteString(r.sum, err.Error())
	}
	r.digest = hex.EncodeToString(r.sum.Sum(nil))
	return r, nil
}

// readFile returns the content of a file. It reads no more than MaxSize + 1 bytes of all
// files together.
func (r *content) readFile(name string) ([]byte, error) {
	file, err := r.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, int64(MaxSize+1-r.size)))
	r.size += len(data)
	return data, err
}

// readRegular is like readFile, but fails if the file is not regular, because opening a named pipe
// would block.
func (r *content) readRegular(name string) ([]byte, error) {
	if info, err := fs.Stat(r.fsys, name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", name)
	}
	return r.readFile(name)
}

// include reads the include field: a pattern, or a list of them.
func (r *content) include(n ast.Node) {
	done := map[string]bool{path.Clean(filepath.ToSlash(r.path)): true}
	for _, n := range r.oneOrMore(n, "include") {
		pattern := r.text(n, "include")
		if pattern == "" {
			continue
		}
		pattern = path.Clean(pattern)
		for _, name := range r.matches(n, pattern) {
			switch clean := path.Clean(filepath.ToSlash(name)); {
			case !done[clean]:
				done[clean] = true
				r.includeFile(n, name)
			case !isPattern(pattern):
				r.errorf(n, "include: %s has been read already", pattern)
			}
			if len(r.errs) > 0 {
				return
			}
		}
	}
}

// matches returns the names of the files that match a pattern, in the order of their names.
func (r *content) matches(n ast.Node, pattern string) (names []string) {
	dir, base := path.Split(pattern)
	_, err := path.Match(base, "")
	switch {
	case !fs.ValidPath(pattern):
		r.errorf(n, "include: %s is not below the directory of the file", pattern)
		return nil
	case err != nil:
		r.errorf(n, "include: %s is no pattern: %v", pattern, err)
		return nil
	case isPattern(dir):
		r.errorf(n, "include: %s has a wildcard in the name of a directory", pattern)
		return nil
	}
	if !isPattern(base) {
		return []string{r.below + pattern}
	}
	r.paths = append(r.paths, path.Clean(r.below+dir)+patternIn+base)
	names, err = filesIn(r.fsys, path.Clean(r.below+dir), base)
	if err != nil {
		r.errorf(n, "include: %v", err)
	}
	for i := range names {
		names[i] = r.below + dir + names[i]
	}
	return names
}

// patternIn separates a directory from the pattern of a name. No path has this byte.
const patternIn = "\x00"

// filesIn returns the names of the files in a directory that match a pattern, in their order.
func filesIn(fsys fs.FS, dir, pattern string) (names []string, err error) {
	entries, err := fs.ReadDir(fsys, dir)
	for _, e := range entries {
		hidden := strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(pattern, ".")
		if match, _ := path.Match(pattern, e.Name()); match && !hidden && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func isPattern(s string) bool { return strings.ContainsAny(s, `*?[\`) }

// includeFile reads a file that n includes.
func (r *content) includeFile(n ast.Node, name string) {
	r.paths = append(r.paths, name) // also if it cannot be read, so that Watch notices when it can
	if len(r.included) == maxIncluded {
		r.errorf(n, "include: more than %d files", maxIncluded)
		return
	}
	data, err := r.readRegular(name)
	switch {
	case err != nil:
		r.errorf(n, "include: %v", err)
		return
	case r.size > MaxSize:
		r.errorf(n, "include: the files together are larger than %d KiB", MaxSize>>10)
		return
	}
	fmt.Fprintf(r.sum, "\x00%s\x00%s", strings.TrimPrefix(name, r.below),
		data) // the zero bytes keep names and contents apart: no file that is loaded has one
	d := &decoder{o: r.o, source: source{path: name, isIncluded: true, outside: r.fsys == (disk{}) &&
		configfile.LeadOut(cmp.Or(r.below, "."), name)}}
	d.parseFile(data, includedFields)
	r.included = append(r.included, d)
}

// lookEvery is the time between two reads of the files by Watch.
const lookEvery = 500 * time.Millisecond

// Watch reloads the file when the file, or a file that it includes, has changed. Watch runs until
// ctx is done, and then returns ctx.Err(). If the file becomes invalid, the rules in force stay
// unchanged until the file is fixed. Watch logs each change and each error to
// Options.Limiter.Logger. It logs a warning for each change that loses counts, and for each rule
// that no handler uses.
//
// Watch compares the contents of the files twice a second, and reloads them once they have stayed
// the same for half a second, because a file is incomplete while a program writes it. Because it
// compares contents, Watch also notices changes on network file systems, and in Kubernetes
// ConfigMaps, except those mounted with subPath, which the kubelet never updates.
func (f *File) Watch(ctx context.Context) error {
	paths := f.current.Load().paths
	log := f.logger()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for read, before := "", ""; ; {
		now := f.look(paths)
		if now == before && now != read { // also at first, because the file may have changed since Open
			paths, read = f.reload(log), now
		}
		before = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look returns a digest of two things: the contents of the files at the paths, and the names of the
// files that match the patterns.
func (f *File) look(paths []string) string {
	sum, fsys := sha256.New(), f.o.FS
	for _, p := range paths {
		fmt.Fprintf(sum, "\x00%s\x00", p)
		if dir, pattern, ok := strings.Cut(p, patternIn); ok {
			names, err := filesIn(fsys, dir, pattern) // files with other names may appear and disappear all the time
			fmt.Fprintf(sum, "%q%v", names, err)
			continue
		}
		data, err := (&content{fsys: fsys}).readRegular(p)
		sum.Write(data)
		fmt.Fprint(sum, err)
	}
	return string(sum.Sum(nil))
}

// reload loads the file, logs the changes or the errors, and returns the paths to watch.
func (f *File) reload(log *slog.Logger) (paths []string) {
	before, failed := f.current.Load(), f.Err() != nil
	content, err := f.read()
	changes, err := f.load(content, err)
	switch {
	case content == nil:
		paths = before.paths
	case err == nil:
		paths = content.paths
	default: // includes the files of the rules in force, because the error may be that one of them is no longer included
		paths = slices.Concat(before.paths, content.paths)
		slices.Sort(paths)
		paths = slices.Compact(paths)
	}
	if err != nil {
		all := []error{err}
		if list, ok := err.(interface{ Unwrap() []error }); ok {
			all = list.Unwrap()
		}
		for _, err := range all {
			log.Error("config: rules not reloaded", "err", err)
		}
		return paths
	}
	if !failed && f.current.Load().digest == before.digest {
		return paths
	}
	for _, c := range changes {
		c.log(log)
	}
	if unused := f.Unused(); len(unused) > 0 {
		log.Warn("config: rules that no handler names", "rules", unused, "effect", "they limit nothing")
	}
	log.Info("config: rules reloaded", "changes", len(changes), "version", f.Version())
	return paths
}
