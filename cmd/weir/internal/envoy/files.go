package envoy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed83679106/weir/internal/symlinks"
)

// maxSize is the size of the largest file, in bytes.
const maxSize = 4 << 20

// A file is the path and the content of a file of limits.
type file struct {
	path    string
	data    []byte
	outside bool // a symbolic link that leads out of the directory
}

// readFiles returns the file at path. If path is a directory, readFiles returns the files *.yaml
// and *.yml of that directory, sorted by name. Files whose names begin with a dot are left out.
func readFiles(path string) ([]file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		paths = nil
		for _, e := range entries { // sorted by name
			if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && e.Name()[0] != '.' {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(paths) == 0 { // such as a directory that is being replaced: it must not end all limits
		return nil, fmt.Errorf("%s has no file *.yaml or *.yml", path)
	}
	var files []file
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		files = append(files, file{p, data, info.IsDir() && symlinks.LeadOut(path, p)})
	}
	return files, nil
}

// Load reads the files of a directory, or one file. Its error lists the errors of all files,
// each with its file and line. If merge is true, several files may have descriptors of the
// same domain.
func Load(path string, merge bool) (*Config, error) {
	files, err := readFiles(path)
	if err != nil {
		return nil, err
	}
	return parse(files, merge, nil)
}

// parse returns the limits of files. Limits with the labels of old metrics keep these.
func parse(files []file, merge bool, old map[[3]string]*stats) (*Config, error) {
	c := &Config{domains: map[string]*node{}, stats: map[[3]string]*stats{}}
	var errs []error
	for _, f := range files {
		r := reader{config: c, old: old, file: f, merge: merge}
		r.read()
		if f.outside && len(r.errs) > 0 { // who may write a link must not read by it what this process may read
			r.errs = []error{fmt.Errorf("%s: %d errors; their texts are not shown, because this path is a symbolic link that leads out of its directory", f.path, len(r.errs))}
		}
		errs = append(errs, r.errs...)
	}
	return c, errors.Join(errs...)
}
