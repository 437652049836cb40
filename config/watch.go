package config

import (
	"bytes"
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

// quiet is how long nothing may happen to a file before it is read: programs
// that write in place leave half a file for a moment.
const quiet = 100 * time.Millisecond

// Watch reloads the file whenever it changes, until ctx ends, and returns the
// error of ctx then; it returns before only if the system can't watch files. It
// starts nothing that outlives it. Each change and each mistake is a record of
// the Logger, a change that loses counts a warning: a file that is wrong changes
// nothing, and is read again when it changes again.
//
// It sees files that are written in place or replaced, and symbolic links that
// are, on any part of the path: Kubernetes' ConfigMaps too, unless mounted with
// subPath, which the kubelet never updates. Nobody tells of changes on network
// file systems; call Reload there.
func (f *File) Watch(ctx context.Context) error {
	if f.o.FS != nil {
		return errors.New("config: only files of the operating system can be watched")
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	defer w.Close()
	names, err := follow(w, f.path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	log := f.logger().With("file", f.path)
	last := f.now.Load().data
	timer := time.NewTimer(0) // the file may have changed since Open
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.Events:
			if slices.Contains(names, e.Name) {
				timer.Reset(quiet)
			}
		case err := <-w.Errors: // events may be lost
			log.Warn("config: watching rules", "error", err)
			timer.Reset(quiet)
		case <-timer.C:
			if now, err := follow(w, f.path); err != nil {
				log.Error("config: watching rules", "error", err)
			} else {
				names = now
			}
			last = f.reload(log, last)
		}
	}
}

// reload reads the file, and loads and logs what differs from last, which is
// what was read before, right or wrong. It returns what it has read.
func (f *File) reload(log *slog.Logger, last []byte) []byte {
	data, err := f.read()
	if err == nil && bytes.Equal(data, last) {
		return last
	}
	var changes Changes
	if err == nil {
		changes, err = f.load(data)
	}
	if err != nil {
		mistakes := []error{err}
		if list, ok := err.(interface{ Unwrap() []error }); ok {
			mistakes = list.Unwrap()
		}
		for _, err := range mistakes {
			log.Error("config: rules not reloaded", "error", err)
		}
		return data
	}
	for _, c := range changes {
		level := slog.LevelInfo
		if c.Lost {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "config: rule changed", "rule", c.Rule, "what", c.What, "from", c.From, "to", c.To, "lost", c.Lost)
	}
	log.Info("config: rules reloaded", "changes", len(changes))
	return data
}

// follow watches the directories in which the path may come to mean another
// file, and no others, and returns the names to look out for.
func follow(w *fsnotify.Watcher, path string) ([]string, error) {
	names, err := links(path)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, name := range names {
		dir := filepath.Dir(name)
		err := w.Add(dir)
		for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) { // wait for it to be made
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
			w.Remove(dir) // fails if it is gone, which is as well
		}
	}
	return names, nil
}

// links returns the absolute path of each symbolic link that is met on the way
// to a file, and of the file.
func links(path string) ([]string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	var names []string
	const mostLinks = 40 // as Linux has it
	for range mostLinks {
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

// firstLink returns the first prefix of a clean, absolute path that is a
// symbolic link, and where that leads.
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
