package weir_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/seed83679106/weir"

// TestImports: the listed packages import neither net/http/pprof nor expvar nor chi's
// middleware, directly or through other packages, because these three add handlers to
// http.DefaultServeMux. Package weirchi imports all of them.
func TestImports(t *testing.T) {
	for _, pkg := range []string{"", "/keys", "/config", "/admin", "/watch"} {
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

// TestImportsNoHTTP: who limits work that is not HTTP compiles no net/http, and not this package.
func TestImportsNoHTTP(t *testing.T) {
	for _, pkg := range []string{"/quota", "/algorithms", "/memstore", "/redisstore", "/lease", "/credit", "/regions", "/storetest", "/stack"} {
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

// TestImportsOfMap: docs/architecture.md has a row for each package that users can import, and the
// row names the packages of this module that it imports, as `go list` sorts them. `internal/…` stands for any number of
// internal packages.
func TestImportsOfMap(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{} // by package, its imports, as the page writes them
	for line := range strings.Lines(string(out)) {
		var names []string
		for _, path := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(path+"/", module+"/"); ok {
				names = append(names, "`"+cmp.Or(strings.TrimSuffix(name, "/"), "weir")+"`")
			}
		}
		got[strings.Trim(names[0], "`")] = strings.Join(names[1:], ", ")
	}
	_, text, _ := strings.Cut(string(page), "## The map")
	table, _, _ := strings.Cut(text, "## Modules")
	cell := regexp.MustCompile("`([^`]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\|[^|]+\\| (`[^|]+) \\|$").FindAllStringSubmatch(table, -1) {
		for _, name := range cell.FindAllStringSubmatch(row[1], -1) {
			imports, known := got[name[1]]
			if strings.Contains(row[2], "`internal/…`") {
				imports = strings.Join(append(slices.DeleteFunc(strings.Split(imports, ", "), func(i string) bool { return strings.HasPrefix(i, "`internal/") }), "`internal/…`"), ", ")
			}
			if delete(got, name[1]); !known || imports != row[2] {
				t.Errorf("the map says that %s imports %s, but it imports %s", name[1], row[2], imports)
			}
		}
	}
	for name := range got {
		if !strings.Contains(name, "internal/") && !regexp.MustCompile("^(docs|tools)|_").MatchString(name) {
			t.Errorf("the map has no row for %s", name)
		}
	}
}

// TestDownloads: a program that uses weir, quota, algorithms and memstore downloads and compiles
// no other module. Its go.mod has one requirement, although this module requires go-redis and
// more, because go.mod files of other modules are read only for packages that are imported.
func TestDownloads(t *testing.T) {
	root, err := os.Getwd()
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
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOTOOLCHAIN=local", "GOPROXY=off", "GOMODCACHE="+t.TempDir()) // nothing can be downloaded
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
	out, err := exec.Command("go", "list", "-deps", module+"/internal/tally").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, store := range []string{"/memstore", "/redisstore", "/lease", "/regions", "/credit", "/stack"} {
		if slices.Contains(deps, module+store) {
			t.Errorf("internal/tally imports %s", store)
		}
	}
	if !slices.Contains(deps, module+"/quota") {
		t.Fatalf("got %d packages without quota, want all that internal/tally imports", len(deps))
	}
}

// TestRequires: the module requires only four other modules. Metrics, tracing, examples and
// the tests that need more have modules of their own, so what they require decides no
// version in a user's module.
func TestRequires(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
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
	if want := []string{"github.com/fsnotify/fsnotify", "github.com/go-chi/chi/v5", "github.com/goccy/go-yaml", "github.com/redis/go-redis/v9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
