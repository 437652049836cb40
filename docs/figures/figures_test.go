// Package figures_test draws the figures of the documentation from the real
// algorithms and stores:
//
//	go test ./docs/figures -update
//
// It is a test because their clock is that of testing/synctest. Without -update
// it checks that the files are what it would draw.
package figures_test

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the figures")

// current checks that a file has that text, or gives it.
func current(t *testing.T, name, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil || string(got) != text {
		t.Errorf("%s is not current (%v): run go test ./docs/figures -update, and look at what has changed", name, err)
	}
}
