package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed83679106/weir/_examples/playground/server"
)

// checked runs a program of npm over the scripts of the page, from a directory of testdata that
// says which version. The test is skipped if npm cannot fetch it.
func checked(t *testing.T, from, program string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", from))); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "page"), server.Page()); err != nil {
		t.Fatal(err)
	}
	if err := npm(dir); errors.Is(err, errNoNPM) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	check := exec.Command(filepath.Join(dir, "node_modules", ".bin", program), args...)
	check.Dir = dir
	out, err := check.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// TestTypes checks the scripts of the page with TypeScript, which reads the types in their
// comments.
func TestTypes(t *testing.T) {
	t.Parallel()
	checked(t, "types", "tsc", "-p", ".")
}

// TestLint checks every script of the page with the rules that oxlint recommends.
func TestLint(t *testing.T) {
	t.Parallel()
	out := checked(t, "lint", "oxlint", "--deny-warnings", "page")
	scripts := 0
	fs.WalkDir(server.Page(), ".", func(path string, _ fs.DirEntry, _ error) error {
		if filepath.Ext(path) == ".js" {
			scripts++
		}
		return nil
	})
	if want := fmt.Sprintf("on %d files", scripts); !strings.Contains(out, want) {
		t.Errorf("oxlint says nothing %s: %s", want, out)
	}
}
