package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quiet is how long Watch waits after the last change before it reads the files. While a
// program writes a file in place, the file is incomplete.
const quiet = 100 * time.Millisecond

// Watch reloads the file whenever it or a file that it includes changes. It runs until ctx is done
// and then returns ctx.Err(). If the system cannot watch files, Watch returns an error immediately.
// It leaves no goroutines behind. If the file becomes invalid, the rules in force stay unchanged
// until the file is fixed. Watch logs each change and each error to Options.Limiter.Logger. It logs
// a warning for each change that loses counts, and for each rule that no handler uses.
//
// Watch notices when a file is written in place or replaced, and when a symbolic link anywhere in
// its path is replaced. It therefore works with Kubernetes ConfigMaps, except those mounted with
// subPath, which the kubelet never updates. Network file systems do not report changes, so call
// Reload for files on them.
func (f *File) Watch(ctx context.Context) error {
	if f.o.FS != nil {
		return errors.New("config: only files of the operating system can be watched")
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	defer w.Close()
	v := f.current.Load()
	last, paths := v.digest, v.paths
	names, err := watchPaths(w, paths)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	log := cmp.Or(f.o.Limiter.Logger, slog.Default()).With("file", f.path)
	timer := time.NewTimer(0) // the file may have changed since Open
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.Events:
			if slices.ContainsFunc(names, func(name string) bool { return matches(name, e.Name) }) {
				timer.Reset(quiet)
			}
		case err := <-w.Errors: // events may be lost, so read the file
			log.Warn("config: changes of the file may be missed", "err", err)
			timer.Reset(quiet)
		case <-timer.C:
			if now, err := watchPaths(w, paths); err != nil {
				log.Error("config: file not watched", "err", err)
			} else {
				names = now
			}
			now := paths
			if last, now = f.reload(log, last); !slices.Equal(now, paths) {
				paths = now
				timer.Reset(0) // the new files may change before they are watched
			}
		}
	}
}

// matches reports whether two paths are the same or, if the last element of the first path is
// a pattern, whether the second path matches the first.
func matches(matters, name string) bool {
	match, _ := filepath.Match(filepath.Base(matters), filepath.Base(name))
	return matters == name || match && filepath.Dir(matters) == filepath.Dir(name)
}

// reload reads the file and compares its digest with last, which is the digest of the
// content that was read before. If they differ, reload loads the file and logs the changes
// or the errors. It returns the new digest and the paths to watch.
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

// watchPaths watches the directories in which a change can make one of the paths lead to
// another file, and no other directories. It returns the names whose events matter.
func watchPaths(w *fsnotify.Watcher, paths []string) (names []string, err error) {
	for _, path := range paths {
		l, err := links(path)
		if err != nil {
			return nil, err
		}
		names = append(names, l...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var dirs []string
	for _, name := range names {
		dir := filepath.Dir(name)
		err := w.Add(dir)
		for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) { // dir may be made later: watch the directory above it
			names, dirs = append(names, dir), append(dirs, dir)
			dir = filepath.Dir(dir)
			err = w.Add(dir)
		}
		if err != nil {
			return nil, err
		}
		names, dirs = append(names, dir), append(dirs, dir)
	}
	for _, dir := range w.WatchList() {
		if !slices.Contains(dirs, dir) {
			w.Remove(dir) // an error means that dir is gone, and no longer watched
		}
	}
	return names, nil
}

// links returns the absolute paths of all symbolic links on the way to a file. The
// last element is the path of the file itself.
func links(path string) ([]string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var names []string
	const maxLinks = 40 // the limit of Linux
	for range maxLinks {
		link, target := firstLink(path)
		if link == "" {
			return append(names, path), nil
		}
		names = append(names, link)
		rest := strings.TrimPrefix(path, link)
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(link), target)
		}
		path = filepath.Join(target, rest)
	}
	return nil, fmt.Errorf("%s: too many symbolic links", path)
}

// firstLink returns the shortest part of a clean, absolute path that is a symbolic link,
// and the target of the link.
func firstLink(path string) (link, target string) {
	root := filepath.VolumeName(path) + string(filepath.Separator)
	for i := len(root); i <= len(path); i++ {
		if i == len(path) || os.IsPathSeparator(path[i]) {
			if target, err := os.Readlink(path[:i]); err == nil {
				return path[:i], target
			}
		}
	}
	return "", ""
}
