package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
)

// A recorder is a slog.Handler that sends the text of each record to a channel.
type recorder chan string

func (r recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r recorder) WithGroup(string) slog.Handler            { return r }
func (r recorder) Handle(_ context.Context, rec slog.Record) error {
	s := rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		s += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	r <- s
	return nil
}

// A watched is a File for which Watch runs until the test ends.
type watched struct {
	*File
	t       *testing.T
	records recorder
}

func watch(t *testing.T, path string) *watched {
	w := &watched{t: t, records: make(recorder, 100)}
	var err error
	w.File, err = Open(path, memstore.New(memstore.Options{}), Options{Limiter: weir.Options{Logger: slog.New(w.records)}})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch returned %v", err)
		}
		for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Errorf("goroutines: %d before Watch, %d after", before, runtime.NumGoroutine())
				break
			}
		}
	})
	return w
}

// wait returns when a record with that text was logged.
func (w *watched) wait(text string) {
	w.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case r := <-w.records:
			if strings.Contains(r, text) {
				return
			}
			w.t.Logf("skipped: %s", r)
		case <-deadline:
			w.t.Fatalf("no record with %q", text)
		}
	}
}

func (w *watched) waitChange(from, to int) {
	w.t.Helper()
	w.wait(fmt.Sprintf("from=%d per 1h to=%d per 1h", from, to))
	if got := w.Rules()[0].Limits[0].Quota; got != int64(to) {
		w.t.Errorf("the limit is %d, want %d", got, to)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	write := func(t *testing.T, path string, n int) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(limitOf(n)), 0o644))
	}
	link := func(t *testing.T, target, path string) { // atomically, as ln -sfT does
		t.Helper()
		if runtime.GOOS == "windows" {
			t.Skip("Windows cannot replace a link to a directory")
		}
		must(t, os.Symlink(target, path+".tmp"))
		must(t, os.Rename(path+".tmp", path))
	}
	// Each case creates a file with a limit of 1, and changes the limit to 2 and to 3.
	for _, tt := range []struct {
		name   string
		path   string
		create func(t *testing.T, dir string)
		change func(t *testing.T, dir string, n int)
	}{
		{"in place", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) { write(t, dir+"/r.yaml", n) },
		},
		{"renamed over, as editors do", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				write(t, dir+"/r.yaml~", n)
				must(t, os.Rename(dir+"/r.yaml~", dir+"/r.yaml"))
			},
		},
		{"removed and made again", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				must(t, os.Remove(dir+"/r.yaml"))
				write(t, dir+"/r.yaml", n)
			},
		},
		{"a ConfigMap of Kubernetes", "etc/r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/etc/..1/r.yaml", 1)
				link(t, "..1", dir+"/etc/..data")
				link(t, "..data/r.yaml", dir+"/etc/r.yaml")
			},
			func(t *testing.T, dir string, n int) {
				write(t, fmt.Sprintf("%s/etc/..%d/r.yaml", dir, n), n)
				link(t, fmt.Sprintf("..%d", n), dir+"/etc/..data")
				must(t, os.RemoveAll(fmt.Sprintf("%s/etc/..%d", dir, n-1)))
			},
		},
		{"a link to the directory", "current/conf/r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/releases/1/conf/r.yaml", 1)
				link(t, dir+"/releases/1", dir+"/current")
			},
			func(t *testing.T, dir string, n int) {
				write(t, fmt.Sprintf("%s/releases/%d/conf/r.yaml", dir, n), n)
				link(t, fmt.Sprintf("%s/releases/%d", dir, n), dir+"/current")
			},
		},
		{"what a link leads to", "r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/other/r.yaml", 1)
				link(t, "other/r.yaml", dir+"/r.yaml")
			},
			func(t *testing.T, dir string, n int) { write(t, dir+"/other/r.yaml", n) },
		},
		{"the directory removed and made again", "conf/r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/conf/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				must(t, os.RemoveAll(dir+"/conf"))
				write(t, dir+"/conf/r.yaml", n)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.create(t, dir)
			w := watch(t, filepath.Join(dir, tt.path))
			for n := 2; n <= 3; n++ {
				tt.change(t, dir, n)
				w.waitChange(n-1, n)
			}
		})
	}
}

// TestWatchMistake: Watch logs each error of a file, and loads the next file without a
// error. It ignores changes of other files in the directory.
func TestWatchMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	must(t, os.WriteFile(path, []byte(limitOf(1)), 0o644))
	w := watch(t, path)
	must(t, os.WriteFile(path, []byte("limits: [{name: a, config: [{limit: 0, period: x}]}]"), 0o644))
	w.wait("r.yaml:1:37: limit is 0")
	w.wait("r.yaml:1:48: period is \"x\"")
	must(t, os.WriteFile(path+".log", []byte("noise"), 0o644))
	must(t, os.Remove(path))
	w.wait("rules not reloaded err=config: open")
	must(t, os.WriteFile(path, []byte(limitOf(2)), 0o644))
	w.waitChange(1, 2)
}

// TestWatchCut: if a program cuts the file at the end of a line, the rest is a valid file
// with fewer rules. The log then says which rules and limits were removed, and no line has
// an empty value.
func TestWatchCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	const first = "limits:\n- name: a\n  config:\n  - {limit: 10, period: 1h}\n"
	must(t, os.WriteFile(path, []byte(first+"  - {limit: 1, period: 3s}\n- {name: b, config: [{limit: 5, period: 3s}]}\n"), 0o644))
	w := watch(t, path)
	must(t, os.WriteFile(path, []byte(first), 0o644))
	w.wait("config: rule changed rule=a part=limit 3s (gcra) from=1 per 3s lost=true")
	w.wait("config: rule removed rule=b limits=5 per 3s lost=true")
	must(t, os.WriteFile(path, []byte(strings.Replace(first, "1h}", "1h}\n  - {limit: 1, period: 3s}", 1)), 0o644))
	w.wait("config: rule changed rule=a part=limit 3s (gcra) to=1 per 3s")
}

func TestWatchFS(t *testing.T) {
	f, err := Open("r.yaml", memstore.New(memstore.Options{}), Options{FS: fstest.MapFS{"r.yaml": {Data: []byte(limitOf(1))}}})
	must(t, err)
	if err := f.Watch(t.Context()); err == nil {
		t.Error("Watch with Options.FS: got no error")
	}
}
