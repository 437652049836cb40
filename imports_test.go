package weir_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports: the listed packages import neither net/http/pprof nor expvar nor chi's
// middleware, directly or through other packages, because these three add handlers to
// http.DefaultServeMux. Package weirchi imports all of them.
func TestImports(t *testing.T) {
	const module = "github.com/seed83679106/weir"
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
	const module = "github.com/seed83679106/weir"
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

// TestImportsFew: weir, algorithms and memstore import only packages of this module and of
// the standard library.
func TestImportsFew(t *testing.T) {
	const module = "github.com/seed83679106/weir"
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module, module+"/algorithms", module+"/memstore").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, pkg := range strings.Fields(string(out)) {
		if !strings.HasPrefix(pkg, module) {
			got = append(got, pkg)
		}
	}
	if want := []string(nil); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestImportsOfMetrics: a program that exports metrics links no store for their sake.
func TestImportsOfMetrics(t *testing.T) {
	const module = "github.com/seed83679106/weir"
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
	if !slices.Contains(deps, module+"/watch") {
		t.Fatalf("got %d packages without watch, want all that internal/tally imports", len(deps))
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
