package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
)

// program is the package that Compile compiles.
const program = "github.com/seed83679106/weir/_examples/playground/wasm"

// Source returns an error unless the go command finds the source code that Compile compiles.
func Source() error {
	list := exec.Command("go", "list", program)
	list.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	if out, err := list.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("the page needs the go command and the source code: start the playground in a clone of the repository (go list: %v %s):\n\tgit clone https://github.com/seed83679106/weir && go run -C weir/_examples ./playground", err, lines[len(lines)-1])
	}
	return nil
}

// Compile compiles the library for browsers. It returns files of the page, by name: weir.bin, a
// program for most scenes of the story; more.bin, one that has what all scenes need; and lab.bin, one
// that also has what try.html and the replay of an access log need; all compressed by gzip. The script
// of the Go distribution runs them. Compile needs the go command and the source code; with go run,
// both are there.
func Compile() (files map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "playground")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files = map[string][]byte{}
	for name, tag := range map[string]string{"weir.bin": "story,first", "more.bin": "story", "lab.bin": "lab"} {
		path := filepath.Join(dir, name)
		// Without inlining, the program has 5 % fewer bytes to load.
		build := exec.Command("go", "build", "-trimpath", "-tags="+tag, "-gcflags=all=-l", "-ldflags=-s -w", "-o", path, program)
		build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build %s: %v\n%s", program, err, out)
		}
		wasm, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[name] = zipped(wasm)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %v", err)
	}
	files["wasm_exec.js"], err = os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	return files, err
}

func zipped(data []byte) []byte {
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	z.Write(data) // cannot fail: packed is a Buffer
	z.Close()
	return packed.Bytes()
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
		if name == "index.html" {
			data = absolute(data, url)
		}
		return os.WriteFile(to, data, 0o644)
	})
	if err != nil {
		return err
	}
	all, err := scenePages()
	if err != nil {
		return err
	}
	for name, data := range all {
		all[name] = absolute(data, url)
	}
	maps.Copy(all, compiled)
	for name, data := range all {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var picture = regexp.MustCompile(`content="(og[^"]*\.png)"`)

// absolute gives the pictures for links to a page the URL of the site, if it is known.
func absolute(page []byte, url string) []byte {
	if url == "" {
		return page
	}
	return picture.ReplaceAll(page, []byte(`content="`+strings.ReplaceAll(html.EscapeString(strings.TrimSuffix(url, "/")), "$", "$$")+`/$1"`))
}

// Precompress writes a smaller copy of each file of a directory that WriteStatic has written, for web
// servers that send such copies: name.br, compressed by brotli, and name.gz. The copy of a program is
// not that of its gzip, but of the program itself; the page tells them apart by their first bytes.
func Precompress(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || entry.IsDir() || !slices.Contains([]string{".bin", ".css", ".html", ".js", ".svg"}, ext) {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && ext == ".bin" {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
				data, err = io.ReadAll(z)
			}
		}
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		quality := brotli.BestCompression // half a minute for weir.bin
		if ext == ".bin" && entry.Name() != "weir.bin" {
			quality -= 2
		}
		z := brotli.NewWriterOptions(&packed, brotli.WriterOptions{Quality: quality, LGWin: 24})
		z.Write(data) // cannot fail: packed is a Buffer
		z.Close()
		err = os.WriteFile(path+".br", packed.Bytes(), 0o644)
		if ext != ".bin" {
			err = cmp.Or(err, os.WriteFile(path+".gz", zipped(data), 0o644))
		}
		return err
	})
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
