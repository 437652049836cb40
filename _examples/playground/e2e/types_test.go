package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed83679106/weir/_examples/playground/server"
)

// TestTypes checks the scripts of the page with TypeScript, which reads the types in their
// comments. It is skipped if npm cannot fetch TypeScript.
func TestTypes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/types")); err != nil {
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
	check := exec.Command(filepath.Join(dir, "node_modules", ".bin", "tsc"), "-p", ".")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}
