package docs_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/seed83679106/weir"

// TestImports: the listed packages import neither net/http/pprof nor expvar nor chi's
// middleware, directly or through other packages, because these three add handlers to
// http.DefaultServeMux. The test of package weirchi says the same of it.
func TestImports(t *testing.T) {
	for _, pkg := range []string{"", "/ops/config", "/ops/admin", "/ops/watch"} {
		out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		for _, bad := range []string{"net/http/pprof", "expvar", "github.com/go-chi/chi/v5/middleware"} {
			if slices.Contains(deps, bad) {
				t.Errorf("%s%s imports %s, which it must not", module, pkg, bad)
			}
		}
		if !slices.Contains(deps, "net/http") {
			t.Fatalf("%s%s: got %d packages without net/http, want all that it imports", module, pkg, len(deps))
		}
	}
}

// TestImportsNoHTTP: who limits work that is not HTTP compiles no net/http, and not the root package.
func TestImportsNoHTTP(t *testing.T) {
	for _, pkg := range []string{"/quota", "/algorithms", "/memstore", "/redisstore", "/contrib/lease", "/contrib/credit", "/contrib/regions", "/quota/storetest", "/redisstore/stack"} {
		out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		for _, bad := range []string{"net/http", module} {
			if slices.Contains(deps, bad) {
				t.Errorf("%s%s imports %s, which it must not", module, pkg, bad)
			}
		}
		if !slices.Contains(deps, module+"/quota") {
			t.Fatalf("%s%s: got %d packages without quota, want all that it imports", module, pkg, len(deps))
		}
	}
}

// TestImportsOfMap: each package imports only what its row in docs/architecture.md allows: the row
// with the longest name that is the package or, with …, a directory around it.
func TestImportsOfMap(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string][]string{} // what a room may import
	_, text, _ := strings.Cut(read(t, "docs/architecture.md"), "| --- | --- | --- | --- |\n")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		if len(cells) < 4 {
			break
		}
		if name := names(cells[0]); len(name) > 0 {
			rooms[name[0]] = append(names(cells[3]), strings.Fields(strings.Trim(cells[3], " |\n"))[0])
		}
	}
	short := func(path string) string {
		return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "weir")
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		paths := strings.Fields(line)
		pkg := short(paths[0])
		room := ""
		for name := range rooms {
			if within(pkg, name) && len(strings.TrimSuffix(name, "…")) > len(strings.TrimSuffix(room, "…")) {
				room = name
			}
		}
		if used[room] = true; room == "" && pkg != "docs" {
			t.Errorf("docs/architecture.md has no row for %s", pkg)
		}
		for _, path := range paths[1:] {
			to := short(path)
			allowed := func(name string) bool { return name == "all" || within(to, name) }
			if strings.HasPrefix(path, module) && !slices.ContainsFunc(rooms[room], allowed) {
				t.Errorf("%s imports %s, which the row of %s in docs/architecture.md does not allow", pkg, to, room)
			}
		}
	}
	for room := range rooms {
		if !used[room] && room != "cmd/weir" { // a module of its own
			t.Errorf("docs/architecture.md has a row for %s, which has no package", room)
		}
	}
}

// TestFilesOfMap: each file that docs/architecture.md names exists.
func TestFilesOfMap(t *testing.T) {
	known := map[string]bool{}
	for _, path := range librarySources(t) {
		known[filepath.Base(path)] = true
	}
	found := 0
	for _, m := range regexp.MustCompile(`\w+\.(go|lua)\b`).FindAllString(read(t, "docs/architecture.md"), -1) {
		if found++; !known[m] && m != "NAME.go" && m != "NAME.lua" {
			t.Errorf("docs/architecture.md names %s, which is no file of the library", m)
		}
	}
	if found < 10 {
		t.Errorf("found %d files, want more", found)
	}
}

// names returns the names in code in a cell of a table.
func names(cell string) (list []string) {
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	return list
}

// within reports whether pkg is the package name, or below the directory d of the name d/….
func within(pkg, name string) bool {
	dir, below := strings.CutSuffix(name, "…")
	return pkg == name || below && strings.HasPrefix(pkg, dir)
}

// TestDownloads: a program that uses weir, quota, algorithms and memstore downloads and compiles
// no other module. Its go.mod has one requirement, although this module requires go-redis and
// more, because go.mod files of other modules are read only for packages that are imported.
func TestDownloads(t *testing.T) {
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": fmt.Sprintf("module example.com/user\n\ngo 1.25\n\nrequire %s v0.1.0\n\nreplace %[1]s => %q\n", module, root),
		"main.go": fmt.Sprintf("package main\n\nimport (\n\t_ %q\n\t_ %q\n\t_ %q\n\t_ %q\n)\n\nfunc main() {}\n",
			module, module+"/quota", module+"/algorithms", module+"/memstore"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOTOOLCHAIN=local", "GOPROXY=off", "GOMODCACHE="+t.TempDir()) // nothing can be downloaded
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := slices.Compact(strings.Fields(string(out)))
	if want := []string{module, "example.com/user"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestImportsOfMetrics: a program that exports metrics links no store for their sake.
func TestImportsOfMetrics(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/ops/internal/tally").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, store := range []string{"/memstore", "/redisstore", "/contrib/lease", "/contrib/regions", "/contrib/credit", "/redisstore/stack"} {
		if slices.Contains(deps, module+store) {
			t.Errorf("ops/internal/tally imports %s", store)
		}
	}
	if !slices.Contains(deps, module+"/quota") {
		t.Fatalf("got %d packages without quota, want all that ops/internal/tally imports", len(deps))
	}
}

// TestRequires: the module requires only three other modules. Metrics, tracing, examples and
// the tests that need more have modules of their own, so what they require decides no
// version in a user's module.
func TestRequires(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", "../go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range mod.Require {
		if !r.Indirect {
			got = append(got, r.Path)
		}
	}
	slices.Sort(got)
	if want := []string{"github.com/goccy/go-yaml", "github.com/redis/go-redis/v9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestImportsTable: the table in docs/imports.md has the modules and, roughly, the packages and lines that
// a program compiles.
func TestImportsTable(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "docs/imports.md"), "| --- | --- | --- | --- | --- |\n")
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) < 5 {
			break
		}
		rows++
		imported, _, _ := strings.Cut(cells[0], ":")
		own, other := compiled(t, names(imported))
		if says, err := strconv.Atoi(cells[1]); err != nil || max(says-own.packages, own.packages-says) > 2 {
			t.Errorf("%s: %d packages of Weir, the page says %s", imported, own.packages, cells[1])
		}
		want := names(cells[3])
		slices.Sort(want)
		if !slices.Equal(other.modules, want) {
			t.Errorf("%s: other modules are %q, the page says %q", imported, other.modules, want)
		}
		for i, lines := range []int{own.lines, other.lines} {
			says, err := strconv.Atoi(strings.ReplaceAll(cells[2+2*i], ",", ""))
			if err != nil || 10*max(says-lines, lines-says) > lines {
				t.Errorf("%s: %d lines, the page says %s", imported, lines, cells[2+2*i])
			}
		}
	}
	if rows < 4 {
		t.Errorf("found %d rows, want more", rows)
	}
}

// A bundle is what a program compiles of Weir, or of other modules.
type bundle struct {
	packages, lines int
	modules         []string
}

// compiled returns what a program compiles that imports packages of Weir.
func compiled(t *testing.T, packages []string) (own, other bundle) {
	t.Helper()
	args := []string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{$.Dir}} {{join $.GoFiles \" \"}}{{end}}"}
	for _, name := range packages {
		args = append(args, strings.TrimSuffix(module+"/"+strings.TrimPrefix(name, "weir"), "/"))
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue // the standard library
		}
		b := &other
		if fields[0] == module {
			b = &own
		}
		b.packages++
		b.modules = append(b.modules, fields[0])
		for _, name := range fields[2:] {
			data, err := os.ReadFile(filepath.Join(fields[1], name))
			if err != nil {
				t.Fatal(err)
			}
			b.lines += strings.Count(string(data), "\n")
		}
	}
	slices.Sort(other.modules)
	other.modules = slices.Compact(other.modules)
	return own, other
}
