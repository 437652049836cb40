package weir_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports: what publishes itself on http.DefaultServeMux comes with weirchi
// alone.
func TestImports(t *testing.T) {
	const module = "github.com/seed83679106/weir"
	for _, pkg := range []string{"", "/algorithms", "/memstore", "/redisstore", "/config", "/admin", "/watch", "/storetest"} {
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
