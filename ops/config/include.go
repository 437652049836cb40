package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir/internal/configfile"
)

// maxIncluded is how many files a file may include.
const maxIncluded = 1000

// disk is the file system of the operating system. Unlike os.DirFS, it takes any path.
type disk struct{}

func (disk) Open(name string) (fs.File, error)          { return os.Open(name) }
func (disk) Stat(name string) (fs.FileInfo, error)      { return os.Stat(name) }
func (disk) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

func (f *File) fsys() fs.FS {
	if f.o.FS == nil {
		return disk{}
	}
	return f.o.FS
}

// A content is what was read from a file and from the files that it includes.
type content struct {
	*decoder // of the file itself
	fsys     fs.FS
	below    string // the directory of the file, with its final slash
	size     int    // bytes read so far
	sum      hash.Hash
	digest   string   // SHA-256 of all files
	paths    []string // the files to watch, and the patterns: a directory, patternIn and the pattern of a name
}

// read reads the file and the files that it includes. It fails if the file itself cannot be
// read. The decoder has all other errors.
func (f *File) read() (*content, error) {
	d := &decoder{source: source{path: f.path}, o: &f.o}
	r := &content{decoder: d, fsys: f.fsys(), sum: sha256.New(), paths: []string{f.path},
		below: strings.TrimSuffix(f.path, filepath.Base(f.path))}
	data, err := r.readFile(f.path)
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

// include reads the field include: a pattern, or a list of them.
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
	info, err := fs.Stat(r.fsys, name) // opening a named pipe would block
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", name)
	}
	var data []byte
	if err == nil {
		data, err = r.readFile(name)
	}
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
