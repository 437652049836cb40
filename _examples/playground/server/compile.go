package server

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is the package that Compile compiles.
const program = "github.com/seed83679106/weir/_examples/playground/wasm"

// Source returns an error unless the go command finds the source code that Compile compiles.
func Source() error {
	list := exec.Command("go", "list", program)
	list.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	if out, err := list.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("the page needs the go command and the source code: start the playground in a clone of the repository (go list: %v %s)", err, lines[len(lines)-1])
	}
	return nil
}

// Compile compiles the library for browsers. It returns two files of the page: the program,
// compressed, and the script of the Go distribution that runs it. Compile needs the go
// command and the source code; with go run, both are there.
func Compile() (files map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "playground")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "weir.wasm")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, program)
	build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %v\n%s", program, err, out)
	}
	wasm, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %v", err)
	}
	script, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	z.Write(wasm) // cannot fail: packed is a Buffer
	z.Close()
	return map[string][]byte{"weir.bin": packed.Bytes(), "wasm_exec.js": script}, nil
}

// WriteStatic writes the page to the directory dir, for any web server to serve. compiled
// holds the files that Compile returned. The argument url is empty or the URL under which
// the page will be. Other sites that show a picture beside a link need it: they load no
// picture whose URL is relative.
func WriteStatic(dir, url string, compiled map[string][]byte) error {
	page := Page()
	err := fs.WalkDir(page, ".", func(name string, entry fs.DirEntry, err error) error {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(page, name)
		if err != nil {
			return err
		}
		if url != "" {
			data = bytes.ReplaceAll(data, []byte(`content="og.png"`), []byte(`content="`+html.EscapeString(strings.TrimSuffix(url, "/"))+`/og.png"`))
		}
		return os.WriteFile(to, data, 0o644)
	})
	if err != nil {
		return err
	}
	for name, data := range compiled {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compiled serves the files that compile returns.
func compiled(compile func() (map[string][]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Playground-Redis", "yes")
		files, err := compile()
		if err != nil {
			// The program logs err, which has paths of this machine, and ends.
			http.Error(w, "The server could not compile the library. Its log has the reason.", http.StatusServiceUnavailable)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if strings.HasSuffix(name, ".js") {
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		} else {
			w.Header().Set("Content-Type", "application/octet-stream")
		}
		w.Write(files[name])
	}
}
